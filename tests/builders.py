"""Construct keys, parts of requests and state batches for tests."""

from typing import Any

from coordinator.log.base import StateLog
from coordinator.serve.service import Service
from coordinator.shard import (
    CoordinatorResult,
    RequestContext,
    Shard,
    ShareState,
    SnapshotLimits,
    SnapshotPolicy,
)
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.record_batch import decode_batches
from protocol.state_batches import StateBatch, pack, unpack
from protocol.state_records import SharePartitionKey, decode_record

TOPIC_ID = bytes(range(16))
OTHER_TOPIC_ID = bytes(range(16, 32))
KEY = SharePartitionKey("group", TOPIC_ID, 0)

AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4

BatchTuple = tuple[int, int, int, int]


def execute(service: Service, *request: Any, **more: Any) -> None:
    """Execute all steps of a request of one of the five RPCs; see `Service.handle`."""
    for _ in service.handle(*request, **more):
        pass


def pack_batches(*batches: BatchTuple) -> bytes:
    """Return batches, given as (first, last, state, count), in wire form."""
    return pack(StateBatch(*batch) for batch in batches)


def unpack_batches(batches: bytes) -> list[BatchTuple]:
    """Return state batches in wire form as plain tuples."""
    return [tuple(batch) for batch in unpack(batches)]  # type: ignore[misc]


def make_initialize(
    state_epoch: int = 0, start_offset: int = 0, partition: int = 0
) -> initialize_api.PartitionData:
    return initialize_api.PartitionData(partition, state_epoch, start_offset)


def make_read(leader_epoch: int = 0, partition: int = 0) -> read_api.PartitionData:
    return read_api.PartitionData(partition, leader_epoch)


def make_write(
    *batches: BatchTuple,
    start_offset: int = 0,
    state_epoch: int = 0,
    leader_epoch: int = 0,
    complete_count: int = 0,
    partition: int = 0,
) -> write_api.PartitionData:
    return write_api.PartitionData(
        partition, state_epoch, leader_epoch, start_offset, complete_count, pack_batches(*batches)
    )


def make_limits(records_max: int) -> SnapshotLimits:
    """Return limits for `records_max` snapshots of any size in one run of a snapshot job."""
    return SnapshotLimits(records_max, bytes_max=1 << 30)


async def replay_log(
    log: StateLog, state_partitions: int, policy: SnapshotPolicy
) -> dict[SharePartitionKey, ShareState]:
    """Return the state of each share-partition after a replay of a log."""
    shards = [Shard(partition, policy) for partition in range(state_partitions)]
    async for chunk in log.read(range(state_partitions)):
        for partition, batches in chunk:
            for batch in decode_batches(batches):
                for logged in batch.records:
                    record = decode_record(logged.key, logged.value)
                    assert record is not None
                    shards[partition].replay(record, logged.offset, logged.timestamp_ms)
    return {key: state for shard in shards for key, state in shard.items()}


class DrivenShard:
    """A shard that applies each record at once, as if it were durable; `log` holds the records by log
    offset.
    """

    def __init__(self, policy: SnapshotPolicy | None = None) -> None:
        self.policy = policy or SnapshotPolicy()
        self.shard = Shard(0, self.policy)
        self.log: list[tuple[Any, int]] = []
        self.now_ms = 1_700_000_000_000
        self.topic_known = True

    def _execute(self, result: CoordinatorResult) -> Any:
        for record in result.records:
            self.append(record)
        return result.answer

    def append(self, record: Any) -> None:
        """Append a record to the log and apply it, as the runtime does when the record is durable."""
        self.shard.replay(record, len(self.log), self.now_ms)
        self.log.append((record, self.now_ms))

    @property
    def request_context(self) -> RequestContext:
        """Return the request context for the next operation."""
        return RequestContext(self.now_ms, self.topic_known)

    def initialize(self, *unit: initialize_api.PartitionData, key: SharePartitionKey = KEY) -> Any:
        """Execute an Initialize."""
        return self._execute(self.shard.initialize_state(key, unit, self.request_context))

    def read(self, *unit: read_api.PartitionData, key: SharePartitionKey = KEY) -> Any:
        """Execute a Read."""
        return self._execute(self.shard.read_state(key, unit, self.request_context))

    def write(self, *unit: write_api.PartitionData, key: SharePartitionKey = KEY) -> Any:
        """Execute a Write."""
        return self._execute(self.shard.write_state(key, unit, self.request_context))

    def delete(self, *, key: SharePartitionKey = KEY) -> Any:
        """Execute a Delete."""
        return self._execute(
            self.shard.delete_state(key, [delete_api.PartitionData(key.partition)], self.request_context)
        )

    def summary(self, *, key: SharePartitionKey = KEY) -> Any:
        """Execute a ReadSummary."""
        part = summary_api.PartitionData(key.partition, 0)
        return self._execute(self.shard.read_state_summary(key, [part], self.request_context))

    def reload(self, from_log_offset: int | None = None) -> "DrivenShard":
        """Return a shard loaded from this log, pruned below an offset (by default, the redundant offset)."""
        other = DrivenShard(self.policy)
        other.now_ms = self.now_ms
        first = self.shard.redundant_offset if from_log_offset is None else from_log_offset
        other.log = list(self.log)
        for log_offset in range(first, len(self.log)):
            record, timestamp_ms = self.log[log_offset]
            other.shard.replay(record, log_offset, timestamp_ms)
        return other
