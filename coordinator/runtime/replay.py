"""Replays the batches of a log into shards, the compiled way where there is one (`coordinator.fastpath`)."""

import logging
from collections.abc import Mapping
from typing import Protocol

from coordinator import fastpath
from coordinator.shard import Shard
from protocol.record_batch import LogRecord, decode_batches
from protocol.state_records import decode_record

_logger = logging.getLogger(__name__)

# States that are given to a shard before other work on the event loop gets its turn.
FINISH_BATCH = 2_000


class Replay(Protocol):
    """Replays the log of one shard, in log order. Before it is finished the shard is not to be looked at."""

    def take(self, data: bytes, /) -> int:
        """Replay one or more record batches; return the number of records that count. Raises DecodeError."""
        ...

    def finish(self, count_max: int, /) -> bool:
        """Do what is left for so many share-partitions at most; return whether nothing is left."""
        ...


class GeneralReplay:
    """The definition: every record is decoded, applied and settled by itself."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def take(self, data: bytes, /) -> int:
        """Replay one or more record batches; return the number of records that count. Raises DecodeError."""
        count = 0
        for batch in decode_batches(data):
            if not batch.is_control:
                for log_record in batch.records:
                    count += replay_record(self._shard, log_record)
        return count

    def finish(self, count_max: int, /) -> bool:
        """Say that nothing is left, which is always so."""
        return True


def make_replays(shards: Mapping[int, Shard]) -> dict[int, Replay]:
    """Make what replays each of these shards; what they are told of names is shared."""
    if fastpath.loading is None:
        return {partition: GeneralReplay(shard) for partition, shard in shards.items()}
    names = fastpath.loading.InternedNames()
    return {
        partition: fastpath.loading.Replay(shard, names, replay_record) for partition, shard in shards.items()
    }


def release_memory() -> None:
    """Give memory that replays took back to the system, when they are gone."""
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
