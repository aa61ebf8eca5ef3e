"""The state of one share-partition, and `apply_record`, which applies a record to it.

The coordinator, the loader, the recovery jobs and the simulator apply records with `apply_record`.
No other code defines the effect of a record.  States are immutable, so callers may keep them.

Kafka keeps four maps with the same key (state, greatest leader epoch, greatest state epoch, number of
updates) consistent by hand; we keep one value.  The greatest state epoch needs no separate field: the
state epoch never decreases between two deletions, so the current one is the greatest.
"""

import msgspec

from coordinator.shard.batches import NO_START_OFFSET, combine, normalise
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import BATCH_BYTES
from protocol.state_records import StateRecord, UnreadableValue

NO_LEADER_EPOCH = -1

# Approximate size of a record on the log without its batches, to compare updates with snapshots.
RECORD_OVERHEAD_BYTES = 60


class ShareState(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """State of one share-partition.

    `batches` are normalised batches in wire form (`coordinator.shard.batches`). ReadShareGroupStateSummary
    returns `leader_epoch`; requests are fenced by `leader_epoch_max`. A re-initialisation sets `leader_epoch`
    to 0 and keeps `leader_epoch_max`. `updates` and `update_bytes` count the updates since the last snapshot
    of this share-partition. `unreadable` is None, or the reason why the last record could not be decoded. If
    `unreadable` is set, no other field may be served.
    """

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    leader_epoch_max: int = 0
    start_offset: int = NO_START_OFFSET
    delivery_complete_count: int = -1
    create_timestamp: int = 0
    write_timestamp: int = 0
    batches: bytes = b""
    updates: int = 0
    update_bytes: int = 0
    last_write_ms: int = 0
    unreadable: str | None = None

    @property
    def snapshot_bytes(self) -> int:
        """Approximate size in bytes of a snapshot of this state on the log."""
        return RECORD_OVERHEAD_BYTES + len(self.batches)

    @property
    def batch_count(self) -> int:
        """Number of state batches in this state."""
        return len(self.batches) // BATCH_BYTES


def apply_record(state: ShareState | None, record: StateRecord, timestamp_ms: int) -> ShareState | None:
    """Apply one record of a share-partition to its state and return the new state; None means "no state".

    `timestamp_ms` is the record's timestamp on the log.  An update without an earlier snapshot begins a
    state, because a pruned log can begin with an update.  Source: ShareCoordinatorShard.replay of Kafka 4.4.
    """
    value = record.value
    if value is None:
        return None
    if isinstance(value, ShareUpdateValue):
        return _apply_update(state, value, timestamp_ms)
    if isinstance(value, ShareSnapshotValue):
        return _apply_snapshot(state, value, timestamp_ms)
    return _mark_unreadable(state, value, timestamp_ms)


def _apply_update(state: ShareState | None, value: ShareUpdateValue, timestamp_ms: int) -> ShareState:
    if state is None:
        state = ShareState(snapshot_epoch=value.snapshot_epoch)
    start_offset = state.start_offset if value.start_offset == NO_START_OFFSET else value.start_offset
    leader_epoch = state.leader_epoch if value.leader_epoch == NO_LEADER_EPOCH else value.leader_epoch
    return ShareState(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=leader_epoch,
        leader_epoch_max=max(state.leader_epoch_max, leader_epoch),
        start_offset=start_offset,
        delivery_complete_count=value.delivery_complete_count,
        create_timestamp=state.create_timestamp,
        write_timestamp=state.write_timestamp,
        batches=combine(state.batches, value.state_batches, start_offset),
        updates=state.updates + 1,
        update_bytes=state.update_bytes + RECORD_OVERHEAD_BYTES + len(value.state_batches),
        last_write_ms=timestamp_ms,
        # If an earlier record could not be decoded, a readable update does not make the state readable.
        unreadable=state.unreadable,
    )


def _apply_snapshot(state: ShareState | None, value: ShareSnapshotValue, timestamp_ms: int) -> ShareState:
    leader_epoch_seen = state.leader_epoch_max if state is not None else 0
    return ShareState(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        leader_epoch_max=max(leader_epoch_seen, value.leader_epoch, value.leader_epoch_max),
        start_offset=value.start_offset,
        delivery_complete_count=value.delivery_complete_count,
        create_timestamp=value.create_timestamp,
        write_timestamp=value.write_timestamp,
        # Kafka 4.3 and older stored adjacent equal batches unmerged, and batches that end before they begin.
        batches=normalise(value.state_batches, value.start_offset),
        last_write_ms=timestamp_ms,
    )


def _mark_unreadable(state: ShareState | None, value: UnreadableValue, timestamp_ms: int) -> ShareState:
    if state is None:
        state = ShareState()
    return msgspec.structs.replace(state, unreadable=value.reason, last_write_ms=timestamp_ms)


def next_snapshot(state: ShareState, *, now_ms: int) -> ShareSnapshotValue:
    """Return the next snapshot of a state; only the snapshot epoch and the write time change."""
    return ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch + 1,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        create_timestamp=state.create_timestamp,
        write_timestamp=now_ms,
        state_batches=state.batches,
        delivery_complete_count=state.delivery_complete_count,
        leader_epoch_max=stored_leader_epoch_max(state.leader_epoch, state.leader_epoch_max),
    )


def stored_leader_epoch_max(leader_epoch: int, leader_epoch_max: int) -> int:
    """Return the greatest leader epoch for a snapshot, or -1 if the snapshot's leader epoch is the greatest.

    Kafka loses the greatest leader epoch of a re-initialised share-partition when older records are pruned;
    we write it into the snapshot as a tagged field, which Kafka ignores.
    """
    return leader_epoch_max if leader_epoch_max > leader_epoch else -1
