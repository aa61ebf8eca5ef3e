"""Counts of acknowledged, released, rejected and skipped user records from one state record."""

import pytest

from coordinator.observe.signals import RecordChange, compute_change
from coordinator.shard import ShareState
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_records import StateRecord
from tests.builders import ACKNOWLEDGED, ARCHIVED, AVAILABLE, KEY, BatchTuple, pack_batches


def make_state(*batches: BatchTuple, start_offset: int = 100, state_epoch: int = 1) -> ShareState:
    return ShareState(
        start_offset=start_offset, batches=pack_batches(*batches), state_epoch=state_epoch, leader_epoch=3
    )


def make_update(*batches: BatchTuple, start_offset: int = 100) -> StateRecord:
    return StateRecord(KEY, ShareUpdateValue(0, 3, start_offset, pack_batches(*batches), 0))


def make_snapshot(
    *batches: BatchTuple, start_offset: int = 100, state_epoch: int = 1, leader_epoch: int = 3
) -> StateRecord:
    value = ShareSnapshotValue(1, state_epoch, leader_epoch, start_offset, 5, 5, pack_batches(*batches), 0)
    return StateRecord(KEY, value)


@pytest.mark.parametrize(
    ("known", "record", "counts"),
    [
        pytest.param(
            make_state(),
            make_update((100, 103, ACKNOWLEDGED, 1), (104, 105, AVAILABLE, 1), (106, 106, ARCHIVED, 1)),
            {ACKNOWLEDGED: 4, AVAILABLE: 2, ARCHIVED: 1},
            id="update",
        ),
        pytest.param(
            make_state((100, 103, ACKNOWLEDGED, 1)),
            make_update((101, 103, ACKNOWLEDGED, 1)),
            {},
            id="retried write",
        ),
        pytest.param(
            make_state((100, 100, AVAILABLE, 1)),
            make_update((100, 100, AVAILABLE, 2)),
            {AVAILABLE: 1},
            id="second release",
        ),
        pytest.param(
            make_state((100, 103, ACKNOWLEDGED, 1), (104, 104, AVAILABLE, 2)),
            make_snapshot((100, 103, ACKNOWLEDGED, 1), (104, 104, AVAILABLE, 2)),
            {},
            id="periodic snapshot",
        ),
        pytest.param(
            make_state((100, 103, ACKNOWLEDGED, 1)),
            make_snapshot((100, 105, ACKNOWLEDGED, 1)),
            {ACKNOWLEDGED: 2},
            id="snapshot in place of an update",
        ),
        pytest.param(
            make_state((100, 103, ACKNOWLEDGED, 1), (104, 104, ARCHIVED, 5)),
            make_update(start_offset=105),
            {},
            id="start offset beyond completed records",
        ),
        pytest.param(
            make_state((100, 101, AVAILABLE, 1)),
            make_update((100, 104, ACKNOWLEDGED, 1), start_offset=105),
            {ACKNOWLEDGED: 5},
            id="records completed and passed in one update",
        ),
        pytest.param(make_state(), StateRecord(KEY, None), {}, id="deletion"),
        pytest.param(None, make_update((100, 103, ACKNOWLEDGED, 1)), {}, id="no known state"),
    ],
)
def test_changed_records_are_counted_and_none_is_skipped(
    known: ShareState | None, record: StateRecord, counts: dict[int, int]
) -> None:
    assert compute_change(known, record) == RecordChange(counts)


@pytest.mark.parametrize("known", [(), ((103, 106, AVAILABLE, 2),)])
def test_incomplete_records_below_a_new_start_offset_are_counted_as_skipped(
    known: tuple[BatchTuple, ...],
) -> None:
    change = compute_change(make_state((100, 102, ACKNOWLEDGED, 1), *known), make_update(start_offset=107))
    assert (change.skipped, change.skipped_to) == (4, 107)


@pytest.mark.parametrize(
    "record",
    [
        make_snapshot(start_offset=500, state_epoch=2, leader_epoch=0),
        # Brokers 4.1 to 4.4 alter offsets without a new state epoch.
        make_snapshot(start_offset=500, leader_epoch=0),
    ],
)
def test_initialization_is_a_reset_and_skips_nothing(record: StateRecord) -> None:
    assert compute_change(make_state((100, 102, AVAILABLE, 1)), record) == RecordChange(is_reset=True)
