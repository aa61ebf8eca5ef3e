"""Replay the batches of a log into shards, with compiled code if available (`coordinator.fastpath`)."""

import logging
from collections.abc import Mapping
from typing import Protocol

from coordinator import fastpath
from coordinator.shard import Shard
from protocol.record_batch import LogRecord, decode_batches
from protocol.state_records import decode_record

_logger = logging.getLogger(__name__)

# The number of states that are moved to a shard before other callbacks of the event loop run.
FINISH_BATCH = 2_000


class Replay(Protocol):
    """Replays the log of one shard, in log order. The shard must not be read before `finish` returns True."""

    def replay_batches(self, data: bytes, /) -> int:
        """Replay one or more record batches; return the number of valid records. Raises DecodeError."""
        ...

    def finish(self, count_max: int, /) -> bool:
        """Complete up to `count_max` share-partitions; return whether all are complete."""
        ...


class GeneralReplay:
    """The reference implementation: it decodes and applies each record separately."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def replay_batches(self, data: bytes, /) -> int:
        """Replay one or more record batches; return the number of valid records. Raises DecodeError."""
        count = 0
        for batch in decode_batches(data):
            if not batch.is_control:
                for log_record in batch.records:
                    count += replay_record(self._shard, log_record)
        return count

    def finish(self, count_max: int, /) -> bool:
        """Return True: `replay_batches` leaves nothing to complete."""
        return True


def make_replays(shards: Mapping[int, Shard]) -> dict[int, Replay]:
    """Return a replay for each shard; the replays share their strings of names."""
    if fastpath.loading is None:
        return {partition: GeneralReplay(shard) for partition, shard in shards.items()}
    names = fastpath.loading.InternedNames()
    return {
        partition: fastpath.loading.Replay(shard, names, replay_record) for partition, shard in shards.items()
    }


def release_memory() -> None:
    """Return unused memory of completed replays to the system."""
    if fastpath.loading is not None:
        fastpath.loading.release_memory()


def replay_record(shard: Shard, log_record: LogRecord) -> bool:
    """Replay one record; False if its type is unknown, and it is skipped. Raises DecodeError."""
    record = decode_record(log_record.key, log_record.value)
    if record is None:
        _logger.warning(
            "Skipped a record of an unknown type at log offset %d of state partition %d.",
            log_record.offset,
            shard.state_partition,
        )
        return False
    shard.replay(record, log_record.offset, log_record.timestamp_ms)
    return True
