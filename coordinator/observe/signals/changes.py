"""Derive from a log record how user records changed: acknowledged, released, rejected, or skipped.

A ShareUpdate has the state batches of one write; a ShareSnapshot has the whole state.  Each record is
compared with the state before the record, so retried writes and periodic snapshots count as no change. The
delivery states are those of Kafka's RecordState (KIP-932).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
# Records that get these states were acknowledged, released or rejected.
COUNTED = (ACKNOWLEDGED, AVAILABLE, ARCHIVED)


class RecordCounts(defaultdict[int, float]):
    """Numbers of user records by the delivery state that they got; other states count as 0."""

    def __init__(self) -> None:
        super().__init__(float)

    def add(self, counts: Mapping[int, float]) -> None:
        for state, records in counts.items():
            self[state] += records


class RecordChange(NamedTuple):
    """The user records whose state one log record changed.

    `counts` has the records that were acknowledged, released and rejected, by delivery state. `skipped`
    counts records below the new start offset whose delivery was not complete. `skipped_to` is the new start
    offset, -1 if nothing was skipped. `is_reset` marks an initialisation: a new group, or altered offsets. An
    initialisation skips records intentionally, so no skipped records are counted.
    """

    counts: Mapping[int, int] = {}
    skipped: int = 0
    skipped_to: int = -1
    is_reset: bool = False


NO_CHANGE = RecordChange()


def compute_change(before: ShareState | None, record: StateRecord) -> RecordChange:
    """Compare a record with the previous state of its share-partition."""
    value = record.value
    if not isinstance(value, ShareUpdateValue | ShareSnapshotValue):
        return NO_CHANGE
    if before is None:
        return NO_CHANGE if isinstance(value, ShareUpdateValue) else RecordChange(is_reset=True)
    if isinstance(value, ShareSnapshotValue) and _is_initialization(before, value):
        return RecordChange(is_reset=True)
    counts = dict.fromkeys(COUNTED, 0)
    known = list(unpack(before.batches))
    for first, last, state, count in unpack(value.state_batches):
        if state in counts:
            counts[state] += _count_differing_offsets(known, first, last, state, count)
    skipped = 0
    if before.start_offset >= 0 and value.start_offset > before.start_offset:
        skipped = value.start_offset - before.start_offset
        for first, last, state, _ in unpack(
            combine(before.batches, value.state_batches, before.start_offset)
        ):
            if state in COMPLETE and first < value.start_offset:
                skipped -= min(last, value.start_offset - 1) - first + 1
    counts = {state: records for state, records in counts.items() if records}
    return RecordChange(counts, skipped, value.start_offset if skipped else -1)


def _is_initialization(before: ShareState, value: ShareSnapshotValue) -> bool:
    """Return whether a snapshot re-initialises the state.

    A re-initialising snapshot has leader epoch 0 and no state batches.
    """
    if value.state_epoch != before.state_epoch:
        return True
    return value.leader_epoch == 0 and not value.state_batches and before.leader_epoch > 0


def _count_differing_offsets(
    known: Sequence[tuple[int, int, int, int]], first: int, last: int, state: int, count: int
) -> int:
    """Return how many offsets of first..last are not yet in this state with this delivery count."""
    same = sum(
        max(0, min(last, known_last) - max(first, known_first) + 1)
        for known_first, known_last, known_state, known_count in known
        if known_state == state and known_count == count
    )
    return last - first + 1 - same
