"""The state of one share-partition, and `advance`, the one function that moves it.

The live coordinator, the loader, the recovery jobs and the simulator all fold records with `advance`;
what a record means is written here and nowhere else.  States are immutable: a state that was handed
out stays what it was.

Kafka keeps four maps with the same key (state, greatest leader epoch, greatest state epoch, number of
updates) in step by hand; we keep one value.  The greatest state epoch needs no field: it never falls
between two deletions, so it is the current one.
"""

import msgspec

from coordinator.shard.batches import NO_START_OFFSET, combine, normalise
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import BATCH_BYTES
from protocol.state_records import StateRecord, UnreadableValue

NO_LEADER_EPOCH = -1

# What a record takes on the log beside its batches, near enough to compare updates with snapshots.
RECORD_OVERHEAD_BYTES = 60


class ShareState(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is known of one share-partition.

    `batches` is a run in wire form (see `coordinator.shard.batches`).  `leader_epoch` is what a
    summary answers, `leader_epoch_max` what fences: they differ after a re-initialisation, which sets
    the first to 0 and must not forget the second.  `updates` and `update_bytes` count the updates
    since the last snapshot of this share-partition.  `unreadable` is None, or why the last record
    could not be understood: then nothing else here may be served.
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
        """About what a snapshot of this state takes on the log."""
        return RECORD_OVERHEAD_BYTES + len(self.batches)

    @property
    def batch_count(self) -> int:
        """Number of state batches in flight."""
        return len(self.batches) // BATCH_BYTES


def advance(state: ShareState | None, record: StateRecord, timestamp_ms: int) -> ShareState | None:
    """Fold one record of a share-partition into its state; None means "no state".

    `timestamp_ms` is the record's own time on the log.  Source: ShareCoordinatorShard.replay of Kafka
    4.4, including that an update without a snapshot before it begins a state, which is what the head
    of a pruned log looks like.
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
        # What lies under an update that could be read may still hold something that could not.
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
        # Kafka 4.3 and older left equal neighbours unjoined, and stored what ends before it begins.
        batches=normalise(value.state_batches, value.start_offset),
        last_write_ms=timestamp_ms,
    )


def _mark_unreadable(state: ShareState | None, value: UnreadableValue, timestamp_ms: int) -> ShareState:
    if state is None:
        state = ShareState()
    return msgspec.structs.replace(state, unreadable=value.reason, last_write_ms=timestamp_ms)


def next_snapshot(state: ShareState, *, now_ms: int) -> ShareSnapshotValue:
    """Make the next snapshot of a state, unchanged but for its snapshot epoch and write time."""
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
    """Return what a snapshot must say of the greatest leader epoch: -1 if its own leader epoch is it.

    Kafka forgets the greatest leader epoch when a re-initialised share-partition's older records are
    pruned; we write it into the snapshot, in a tagged field that Kafka's readers skip.
    """
    return leader_epoch_max if leader_epoch_max > leader_epoch else -1
