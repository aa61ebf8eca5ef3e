"""Derive from one log record what happened to user records: acknowledged, released, rejected, or skipped.

A ShareUpdate holds the state batches of one write; a ShareSnapshot holds the whole state.  Both are compared
with the state before them, so a retried write and a periodic snapshot count nothing.  The delivery states are
those of Kafka's RecordState (KIP-932).
"""

from collections.abc import Sequence
from typing import NamedTuple

from coordinator.shard import ShareState
from coordinator.shard.batches import combine
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import unpack
from protocol.state_records import StateRecord

AVAILABLE = 0
ACKNOWLEDGED = 2
ARCHIVED = 4
COMPLETE = (ACKNOWLEDGED, ARCHIVED)


class RecordChange(NamedTuple):
    """Numbers of user records whose state one log record changed.

    `skipped` are records below the new start offset that never completed: the start offset jumped over them.
    `skipped_to` is that start offset, -1 if nothing was skipped.  `is_reset` marks an initialization (a new
    group, or an operator who altered the offsets), which skips records on purpose and counts none.
    """

    acknowledged: int = 0
    released: int = 0
    rejected: int = 0
    skipped: int = 0
    skipped_to: int = -1
    is_reset: bool = False


NO_CHANGE = RecordChange()


def change_of(before: ShareState | None, record: StateRecord) -> RecordChange:
    """Compare a record with the state before it. The state must be that of the record's share-partition."""
    value = record.value
    if not isinstance(value, ShareUpdateValue | ShareSnapshotValue):
        return NO_CHANGE
    if before is None:
        return NO_CHANGE if isinstance(value, ShareUpdateValue) else RecordChange(is_reset=True)
    if isinstance(value, ShareSnapshotValue) and _is_initialization(before, value):
        return RecordChange(is_reset=True)
    counts = {AVAILABLE: 0, ACKNOWLEDGED: 0, ARCHIVED: 0}
    known = list(unpack(before.batches))
    for first, last, state, count in unpack(value.state_batches):
        if state in counts:
            counts[state] += _offsets_that_differ(known, first, last, state, count)
    skipped = 0
    if before.start_offset >= 0 and value.start_offset > before.start_offset:
        skipped = value.start_offset - before.start_offset
        for first, last, state, _ in unpack(
            combine(before.batches, value.state_batches, before.start_offset)
        ):
            if state in COMPLETE and first < value.start_offset:
                skipped -= min(last, value.start_offset - 1) - first + 1
    return RecordChange(
        acknowledged=counts[ACKNOWLEDGED],
        released=counts[AVAILABLE],
        rejected=counts[ARCHIVED],
        skipped=skipped,
        skipped_to=value.start_offset if skipped else -1,
    )


def _is_initialization(before: ShareState, value: ShareSnapshotValue) -> bool:
    """Return whether a snapshot begins the state anew, which always sets leader epoch 0 and no batches."""
    if value.state_epoch != before.state_epoch:
        return True
    return value.leader_epoch == 0 and not value.state_batches and before.leader_epoch > 0


def _offsets_that_differ(
    known: Sequence[tuple[int, int, int, int]], first: int, last: int, state: int, count: int
) -> int:
    """Return how many offsets of first..last are not yet in this state with this delivery count."""
    same = sum(
        max(0, min(last, known_last) - max(first, known_first) + 1)
        for known_first, known_last, known_state, known_count in known
        if known_state == state and known_count == count
    )
    return last - first + 1 - same
