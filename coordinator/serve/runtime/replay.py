"""Replay the batches of a log into shards, with compiled code if available (`coordinator.fastpath`)."""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from coordinator import fastpath
from coordinator.shard import Shard
from protocol.record_batch import LogRecord, decode_batches
from protocol.state_records import decode_record

_logger = logging.getLogger(__name__)


class Replay(Protocol):
    """Replays the log of one shard, in log order."""

    def replay_batches(self, data: bytes, /) -> int:
        """Replay one or more record batches; return the number of valid records. Raises DecodeError."""


class ReferenceReplay:
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


def make_replays(shards: Mapping[int, Shard]) -> dict[int, Replay]:
    """Return a log replay for each shard; equal group ids and topic ids share one object in memory."""
    if fastpath.compiled is None:
        return {partition: ReferenceReplay(shard) for partition, shard in shards.items()}
    make_replay, shared_ids = fastpath.compiled.Replay, dict[Any, Any]()
    return {partition: make_replay(shard, shared_ids, replay_record) for partition, shard in shards.items()}


def replay_record(shard: Shard, log_record: LogRecord) -> bool:
    """Replay one record; return False if its type is unknown, so it is skipped. Raises DecodeError."""
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
