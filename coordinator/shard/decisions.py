"""Compute the record and the response of each of the five operations, from the state and the request.

Each function is pure: it reads the state of one share-partition and changes nothing.  Each function returns
the value of the record to write (None: no record; `TOMBSTONE`: delete) and the response.  The response must
not be sent before the record is durable.  These functions also decide whether the record is a snapshot.

Source of the rules: ShareCoordinatorShard of Kafka 4.4, KIP-932, KIP-1226.  Intended differences are
marked "Kafka ...; we ..."; docs/differences.md lists them for users.
"""

from collections.abc import Sequence
from typing import NamedTuple

from coordinator.shard import checks
from coordinator.shard.batches import NO_START_OFFSET, combine, normalise
from coordinator.shard.checks import Refusal
from coordinator.shard.state import ShareState, stored_leader_epoch_max
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue

NO_DELIVERY_COMPLETE_COUNT = -1

RecordValue = ShareSnapshotValue | ShareUpdateValue


class Tombstone:
    """Marker for an operation that deletes the state."""


TOMBSTONE = Tombstone()


class SnapshotPolicy(NamedTuple):
    """Thresholds that make the next record of a state a snapshot.

    A snapshot is due after `updates_max` updates (share.coordinator.snapshot.update.records.per.snapshot in
    Kafka). A snapshot is also due when the updates since the last snapshot take more bytes than a snapshot
    would, and more than `update_bytes_min`. The log therefore takes at most about twice the size of the
    state.
    """

    updates_max: int = 500
    update_bytes_min: int = 16_384

    def is_due(self, state: ShareState) -> bool:
        """Return whether the next record of this state must be a snapshot."""
        return state.updates >= self.updates_max or state.update_bytes > max(
            self.update_bytes_min, state.snapshot_bytes
        )


class RequestContext(NamedTuple):
    """External inputs of an operation: the time, and whether the topic and partition exist in the cluster."""

    now_ms: int
    topic_known: bool = True


def decide_initialize(
    state: ShareState | None,
    part: initialize_api.PartitionData,
    context: RequestContext,
    policy: SnapshotPolicy,
) -> tuple[RecordValue | None, initialize_api.PartitionResult]:
    """Initialise the state of a share-partition, or re-initialise it if it exists.

    Kafka 4.4 writes a new snapshot for each accepted request, so a retry loses delivery progress; we succeed
    without a record for a retry. A request counts as a retry if it would change nothing, or if it has the
    current state epoch and no start offset. (An operator's offset reset always sends a start offset. An
    offset reset therefore takes effect at the same state epoch, as brokers 4.1 to 4.4 send it.)
    """
    refusal = _check_initialize(state, part, context)
    if refusal is not None:
        return None, initialize_api.PartitionResult(part.partition, *refusal)
    accepted = initialize_api.PartitionResult(part.partition)
    start_offset = part.start_offset
    complete_count = NO_DELIVERY_COMPLETE_COUNT if start_offset == NO_START_OFFSET else 0
    if state is not None and state.unreadable is None and state.state_epoch == part.state_epoch:
        untouched = not state.batches and state.delivery_complete_count == complete_count
        if start_offset == NO_START_OFFSET or (start_offset == state.start_offset and untouched):
            return None, accepted
    leader_epoch_max = 0 if state is None else state.leader_epoch_max
    snapshot = ShareSnapshotValue(
        snapshot_epoch=0 if state is None else state.snapshot_epoch + 1,
        state_epoch=part.state_epoch,
        leader_epoch=0,
        start_offset=start_offset,
        create_timestamp=context.now_ms,
        write_timestamp=context.now_ms,
        state_batches=b"",
        delivery_complete_count=complete_count,
        leader_epoch_max=stored_leader_epoch_max(0, leader_epoch_max),
    )
    return snapshot, accepted


def _check_initialize(
    state: ShareState | None, part: initialize_api.PartitionData, context: RequestContext
) -> Refusal | None:
    if part.partition < 0:
        return checks.NEGATIVE_PARTITION
    if part.state_epoch < 0:
        return checks.NEGATIVE_STATE_EPOCH
    if state is not None:
        refusal = checks.check_state_epoch(state, part.state_epoch)
        if refusal is not None:
            return refusal
    return None if context.topic_known else checks.UNKNOWN_TOPIC


def decide_read(
    state: ShareState | None, part: read_api.PartitionData, context: RequestContext, policy: SnapshotPolicy
) -> tuple[RecordValue | None, read_api.PartitionResult]:
    """Return the state, and record a higher leader epoch; no other operation changes the leader epoch."""
    refusal = _check_leader_epoch(state, part.partition, part.leader_epoch, context)
    if refusal is not None:
        return None, read_api.PartitionResult(part.partition, *refusal)
    assert state is not None
    answer = read_api.PartitionResult(
        partition=part.partition,
        state_epoch=state.state_epoch,
        start_offset=state.start_offset,
        state_batches=state.batches,
    )
    if part.leader_epoch == state.leader_epoch_max:
        return None, answer
    record = _make_record(
        state, policy, context, part.leader_epoch, state.start_offset, state.delivery_complete_count, b""
    )
    return record, answer


def merge_writes(
    state: ShareState | None, unit: Sequence[write_api.PartitionData], context: RequestContext
) -> write_api.PartitionData:
    """Merge the writes of one share-partition in a request into one; return the first invalid write, if any.

    If writes were applied one by one, each of them would be merged with all state batches.
    """
    for part in unit:
        if _check_write(state, part, context) is not None:
            return part
    start_offset = max([part.start_offset for part in unit])
    return write_api.PartitionData(
        unit[0].partition,
        unit[0].state_epoch,
        unit[0].leader_epoch,
        start_offset,
        max([part.delivery_complete_count for part in unit if part.start_offset == start_offset]),
        b"".join([part.state_batches for part in unit]),
    )


def decide_write(
    state: ShareState | None, part: write_api.PartitionData, context: RequestContext, policy: SnapshotPolicy
) -> tuple[RecordValue | None, write_api.PartitionResult]:
    """Merge a leader's batches into the state; each accepted write makes one record.

    The start offset never decreases. The delivery complete count comes from the request or the state,
    whichever has the greater start offset. The record carries the epochs of the state, because a write never
    changes them.
    """
    refusal = _check_write(state, part, context)
    if refusal is not None:
        return None, write_api.PartitionResult(part.partition, *refusal)
    assert state is not None
    start_offset = max(part.start_offset, state.start_offset)
    complete_count = _merged_complete_count(state, part)
    answer = write_api.PartitionResult(part.partition)
    record = _make_record(
        state, policy, context, state.leader_epoch, start_offset, complete_count, part.state_batches
    )
    return record, answer


def _check_write(
    state: ShareState | None, part: write_api.PartitionData, context: RequestContext
) -> Refusal | None:
    if part.partition < 0:
        return checks.NEGATIVE_PARTITION
    if part.leader_epoch < 0:
        return checks.NEGATIVE_LEADER_EPOCH
    if part.state_epoch < 0:
        return checks.NEGATIVE_STATE_EPOCH
    if state is None:
        return checks.UNINITIALISED
    refusal = checks.check_leader_epoch(state, part.leader_epoch) or checks.check_state_epoch(
        state, part.state_epoch
    )
    if refusal is not None:
        return refusal
    if not context.topic_known:
        return checks.UNKNOWN_TOPIC
    return checks.check_readable(state) or checks.check_batch_order(part.state_batches)


def _merged_complete_count(state: ShareState, part: write_api.PartitionData) -> int:
    if part.start_offset > state.start_offset:
        return part.delivery_complete_count
    if part.start_offset == state.start_offset:
        return max(part.delivery_complete_count, state.delivery_complete_count)
    return state.delivery_complete_count


def _make_record(
    state: ShareState,
    policy: SnapshotPolicy,
    context: RequestContext,
    leader_epoch: int,
    start_offset: int,
    complete_count: int,
    written: bytes,
) -> RecordValue:
    if not policy.is_due(state):
        return ShareUpdateValue(
            snapshot_epoch=state.snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            state_batches=normalise(written, start_offset),
            delivery_complete_count=complete_count,
        )
    return ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch + 1,
        state_epoch=state.state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        create_timestamp=context.now_ms,
        write_timestamp=context.now_ms,
        state_batches=combine(state.batches, written, start_offset),
        delivery_complete_count=complete_count,
        leader_epoch_max=stored_leader_epoch_max(leader_epoch, state.leader_epoch_max),
    )


def decide_delete(
    state: ShareState | None, part: delete_api.PartitionData, context: RequestContext, policy: SnapshotPolicy
) -> tuple[Tombstone | None, delete_api.PartitionResult]:
    """Delete the state; if there is no state, the operation succeeds without a record.

    Kafka refuses the request if the topic was deleted, so a group with state of a deleted topic cannot be
    deleted; we delete the state even if the topic does not exist.
    """
    if part.partition < 0:
        return None, delete_api.PartitionResult(part.partition, *checks.NEGATIVE_PARTITION)
    return (None if state is None else TOMBSTONE), delete_api.PartitionResult(part.partition)


def decide_summary(
    state: ShareState | None, part: summary_api.PartitionData, context: RequestContext, policy: SnapshotPolicy
) -> tuple[None, summary_api.PartitionResult]:
    """Return epochs, start offset and complete count; without state, return start offset -1."""
    if part.partition < 0:
        return None, summary_api.PartitionResult(part.partition, *checks.NEGATIVE_PARTITION)
    if not context.topic_known:
        return None, summary_api.PartitionResult(part.partition, *checks.UNKNOWN_TOPIC)
    if state is None:
        return None, summary_api.PartitionResult(part.partition, start_offset=NO_START_OFFSET)
    refusal = checks.check_readable(state)
    if refusal is not None:
        return None, summary_api.PartitionResult(part.partition, *refusal)
    return None, summary_api.PartitionResult(
        partition=part.partition,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
    )


def _check_leader_epoch(
    state: ShareState | None, partition: int, leader_epoch: int, context: RequestContext
) -> Refusal | None:
    if partition < 0:
        return checks.NEGATIVE_PARTITION
    if leader_epoch < 0:
        return checks.NEGATIVE_LEADER_EPOCH
    if state is None:
        return checks.UNINITIALISED
    refusal = checks.check_leader_epoch(state, leader_epoch)
    if refusal is not None:
        return refusal
    return checks.check_readable(state) if context.topic_known else checks.UNKNOWN_TOPIC
