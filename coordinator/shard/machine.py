"""The state machine of one state partition: decide, apply, mark durable, replay.

A `Shard` holds the states of all share-partitions of its state partition.  *Deciding* an operation reads
states and returns records and a response.  *Applying* a record changes the state.  *Marking* a record durable
updates the pruning offsets.  *Replaying* a record from the log applies it and marks it durable.  `apply`
cannot be undone: if applied records did not reach the log, the caller discards the shard and loads a new one.

A shard belongs to one task.  No method blocks or awaits.  The caller passes each record exactly once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from coordinator.shard import decisions
from coordinator.shard.decisions import TOMBSTONE, RequestContext, SnapshotPolicy, Tombstone
from coordinator.shard.packed_state import (
    NOT_DURABLE,
    first_needed_offset,
    is_readable,
    pack,
    snapshot_bytes,
    unpack,
)
from coordinator.shard.pruning_offsets import PruningOffsets
from coordinator.shard.state import RECORD_OVERHEAD_BYTES, ShareState, apply_record, next_snapshot
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import BATCH_BYTES
from protocol.state_records import SharePartitionKey, StateRecord, UnreadableValue

# Idle share-partitions get a new snapshot only if the log holds more records per share-partition than this.
# Below this limit, a new snapshot costs more than the pruning that it permits.
RECORDS_PER_SHARE_PARTITION_MAX = 2


class CoordinatorResult(NamedTuple):
    """Result of an operation: the records to append, and the response to send after they are durable.

    The response is the `PartitionResult` of the requested API.
    """

    records: Sequence[StateRecord]
    answer: Any


class SnapshotLimits(NamedTuple):
    """Limits of the snapshots of one call, in records and bytes; the last snapshot may exceed `bytes_max`."""

    records_max: int
    bytes_max: int


_Decide = Callable[
    [ShareState | None, Any, RequestContext, SnapshotPolicy],
    tuple[decisions.RecordValue | Tombstone | None, Any],
]


class Shard:
    """The states of all share-partitions of one state partition, and the operations on them.

    Each of the five operations takes a *unit*: one or more requests for one share-partition, decided in order
    and written together; writes are merged first.  If any request is refused, the unit writes nothing and
    returns that refusal.  If all requests are accepted, the unit returns the response to the last request.
    (Brokers send several writes of a share-partition in one request.  Kafka returns the result of the last
    one, and so may report a refused write as stored; we report success only if all writes are accepted.)
    """

    __slots__ = ("_key_bytes", "_policy", "_pruning_offsets", "_states", "live_bytes", "state_partition")

    def __init__(self, state_partition: int, policy: SnapshotPolicy) -> None:
        self.state_partition = state_partition
        # Approximate size of the snapshots of all states in the log, and the part of it that keys take.
        self.live_bytes = 0
        self._key_bytes = 0
        self._policy = policy
        self._states: dict[SharePartitionKey, bytes] = {}
        self._pruning_offsets = PruningOffsets(self._states)

    # Decide.

    def initialize_state(
        self, key: SharePartitionKey, unit: Sequence[initialize_api.PartitionData], context: RequestContext
    ) -> CoordinatorResult:
        return self._decide(decisions.decide_initialize, key, unit, context)

    def read_state(
        self, key: SharePartitionKey, unit: Sequence[read_api.PartitionData], context: RequestContext
    ) -> CoordinatorResult:
        return self._decide(decisions.decide_read, key, unit, context)

    def write_state(
        self, key: SharePartitionKey, unit: Sequence[write_api.PartitionData], context: RequestContext
    ) -> CoordinatorResult:
        if len(unit) > 1:
            unit = [decisions.merge_writes(self.state(key), unit, context)]
        return self._decide(decisions.decide_write, key, unit, context)

    def delete_state(
        self, key: SharePartitionKey, unit: Sequence[delete_api.PartitionData], context: RequestContext
    ) -> CoordinatorResult:
        return self._decide(decisions.decide_delete, key, unit, context)

    def read_state_summary(
        self, key: SharePartitionKey, unit: Sequence[summary_api.PartitionData], context: RequestContext
    ) -> CoordinatorResult:
        return self._decide(decisions.decide_summary, key, unit, context)

    def _decide(
        self, decide: _Decide, key: SharePartitionKey, unit: Sequence[Any], context: RequestContext
    ) -> CoordinatorResult:
        state = self.state(key)
        records: list[StateRecord] = []
        answer: Any = None
        record: StateRecord | None = None
        for part in unit:
            if record is not None:
                state, record = apply_record(state, record, context.now_ms), None
            value, answer = decide(state, part, context, self._policy)
            if answer.error_code:
                return CoordinatorResult((), answer)
            if value is not None:
                record = StateRecord(key, None if value is TOMBSTONE else value)  # type: ignore[arg-type]
                records.append(record)
        return CoordinatorResult(records, answer)

    def snapshot_cold(self, *, now_ms: int, interval_ms: int, limits: SnapshotLimits) -> list[StateRecord]:
        """Snapshot idle share-partitions whose old records prevent pruning, oldest first, up to the limits.

        A share-partition is cold if its last snapshot is older than `interval_ms`. No record is returned
        while the log is short compared to the number of share-partitions. The scan stops at the first state
        that is not cold or not readable, because an unreadable state prevents pruning permanently. Kafka
        snapshots all idle share-partitions in one atomic batch; we snapshot only those that prevent pruning,
        a few at a time.
        """
        end_log_offset = self._pruning_offsets.end_log_offset
        length = end_log_offset - self._pruning_offsets.redundant_offset
        if length <= RECORDS_PER_SHARE_PARTITION_MAX * len(self._states):
            return []

        def is_cold(key: SharePartitionKey) -> bool:
            state = unpack(self._states[key])
            # If the clock was set back, the age is negative; the state still counts as cold.
            return state.unreadable is None and not 0 <= now_ms - state.write_timestamp < interval_ms

        oldest = self._pruning_offsets.keys_needed_below(end_log_offset)
        return self._snapshot_keys(takewhile(is_cold, oldest), now_ms=now_ms, limits=limits)

    def snapshot_before(self, log_offset: int, *, now_ms: int, limits: SnapshotLimits) -> list[StateRecord]:
        """Snapshot share-partitions that need records below a log offset, up to the limits."""
        oldest = self._pruning_offsets.keys_needed_below(log_offset)
        return self._snapshot_keys(oldest, now_ms=now_ms, limits=limits)

    def _snapshot_keys(
        self, keys: Iterable[SharePartitionKey], *, now_ms: int, limits: SnapshotLimits
    ) -> list[StateRecord]:
        """Snapshot the share-partitions in `keys` that have a readable state, up to the limits."""
        records: list[StateRecord] = []
        size_bytes = 0
        for key in keys:
            state = unpack(self._states[key])
            if state.unreadable is not None:
                continue
            records.append(StateRecord(key, next_snapshot(state, now_ms=now_ms)))
            size_bytes += state.snapshot_bytes
            if len(records) >= limits.records_max or size_bytes >= limits.bytes_max:
                break
        return records

    # Apply records.

    def apply(self, record: StateRecord, timestamp_ms: int) -> None:
        """Change the state of one share-partition according to a record."""
        key = record.key
        packed = self._states.get(key)
        before = None if packed is None else unpack(packed)
        after = apply_record(before, record, timestamp_ms)
        if before is not None:
            self.live_bytes -= before.snapshot_bytes
        if after is not None:
            self.live_bytes += after.snapshot_bytes
            if packed is None:
                self._add_key_bytes(len(key.group_id))
            self._states[key] = pack(after, NOT_DURABLE if packed is None else first_needed_offset(packed))
        elif packed is not None:
            del self._states[key]
            self._add_key_bytes(-len(key.group_id))
            self._pruning_offsets.record_pending_delete(key, packed)

    def mark_durable(self, record: StateRecord, log_offset: int) -> None:
        """Mark a record durable at `log_offset`, and update the pruning offsets."""
        assert log_offset >= self._pruning_offsets.end_log_offset, "records become durable in log order"
        if record.value is None:
            self._pruning_offsets.record_delete(record.key, log_offset)
        elif isinstance(record.value, ShareUpdateValue | UnreadableValue):
            self._pruning_offsets.record_update(record.key, log_offset)
        else:
            self._pruning_offsets.record_snapshot(record.key, log_offset)

    def mark_updates_durable(self, end_log_offset: int) -> None:
        """Mark all records below a log offset durable.

        Records that were not passed to `mark_durable` must be updates of share-partitions that already need
        earlier records.
        """
        assert end_log_offset >= self._pruning_offsets.end_log_offset, "records become durable in log order"
        self._pruning_offsets.end_log_offset = end_log_offset

    def replay(self, record: StateRecord, log_offset: int, timestamp_ms: int) -> None:
        """Apply a record that was read from the log, and mark it durable."""
        self.apply(record, timestamp_ms)
        self.mark_durable(record, log_offset)

    def install_state(self, key: SharePartitionKey, packed: bytes) -> None:
        """Store a packed state that another component built from durable records.

        States must arrive in ascending order of their first needed offsets. The caller then passes the end
        log offset to `mark_updates_durable`.
        """
        before = self._states.pop(key, None)
        if before is None:
            self._add_key_bytes(len(key.group_id))
        else:
            self.live_bytes -= snapshot_bytes(before)
        self.live_bytes += snapshot_bytes(packed)
        self._states[key] = packed

    def remove_readable_state(self, key: SharePartitionKey) -> bytes | None:
        """Remove a readable state and return it packed, or None; the caller applies its later records."""
        packed = self._states.get(key)
        if packed is None or not is_readable(packed):
            return None
        del self._states[key]
        self.live_bytes -= snapshot_bytes(packed)
        self._add_key_bytes(-len(key.group_id))
        return packed

    def _add_key_bytes(self, size_bytes: int) -> None:
        self._key_bytes += size_bytes
        self.live_bytes += size_bytes

    # Read states.

    @property
    def redundant_offset(self) -> int:
        """The log offset below which no record is needed any more."""
        return self._pruning_offsets.redundant_offset

    @property
    def state_batches(self) -> int:
        """Number of state batches in the states of all share-partitions."""
        overhead_bytes = self._key_bytes + RECORD_OVERHEAD_BYTES * len(self._states)
        return (self.live_bytes - overhead_bytes) // BATCH_BYTES

    def state(self, key: SharePartitionKey) -> ShareState | None:
        packed = self._states.get(key)
        return None if packed is None else unpack(packed)

    def packed_state(self, key: SharePartitionKey) -> bytes | None:
        return self._states.get(key)

    def share_partitions(self) -> list[SharePartitionKey]:
        """Return a list of the share-partitions that have state now."""
        return list(self._states)

    def items(self) -> Iterator[tuple[SharePartitionKey, ShareState]]:
        """Iterate over the states; the shard must not change meanwhile."""
        return ((key, unpack(packed)) for key, packed in self._states.items())

    def __len__(self) -> int:
        return len(self._states)
