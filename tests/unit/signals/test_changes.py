"""Counts of acknowledged, released, rejected and skipped user records from one log record."""

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


def test_update_counts_its_batches_by_delivery_state() -> None:
    record = make_update((100, 103, ACKNOWLEDGED, 1), (104, 105, AVAILABLE, 1), (106, 106, ARCHIVED, 1))
    counts = {ACKNOWLEDGED: 4, AVAILABLE: 2, ARCHIVED: 1}
    assert compute_change(make_state(), record) == RecordChange(counts)


def test_retried_write_counts_nothing() -> None:
    known = make_state((100, 103, ACKNOWLEDGED, 1))
    assert compute_change(known, make_update((101, 103, ACKNOWLEDGED, 1))) == RecordChange()


def test_second_release_of_a_record_is_counted() -> None:
    known = make_state((100, 100, AVAILABLE, 1))
    assert compute_change(known, make_update((100, 100, AVAILABLE, 2))).counts[AVAILABLE] == 1


def test_periodic_snapshot_counts_nothing() -> None:
    known = make_state((100, 103, ACKNOWLEDGED, 1), (104, 104, AVAILABLE, 2))
    record = make_snapshot((100, 103, ACKNOWLEDGED, 1), (104, 104, AVAILABLE, 2))
    assert compute_change(known, record) == RecordChange()


def test_snapshot_in_place_of_an_update_counts_new_records() -> None:
    known = make_state((100, 103, ACKNOWLEDGED, 1))
    assert compute_change(known, make_snapshot((100, 105, ACKNOWLEDGED, 1))).counts[ACKNOWLEDGED] == 2


def test_start_offset_beyond_completed_records_skips_none() -> None:
    known = make_state((100, 103, ACKNOWLEDGED, 1), (104, 104, ARCHIVED, 5))
    assert compute_change(known, make_update(start_offset=105)) == RecordChange()


def test_record_completed_and_passed_in_one_update_is_not_skipped() -> None:
    record = make_update((100, 104, ACKNOWLEDGED, 1), start_offset=105)
    assert compute_change(make_state((100, 101, AVAILABLE, 1)), record) == RecordChange({ACKNOWLEDGED: 5})


@pytest.mark.parametrize("known", [(), ((103, 106, AVAILABLE, 2),)])
def test_passed_records_that_never_completed_are_skipped(known: tuple[BatchTuple, ...]) -> None:
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


def test_deletion_and_update_without_known_state_count_nothing() -> None:
    assert compute_change(make_state(), StateRecord(KEY, None)) == RecordChange()
    assert compute_change(None, make_update((100, 103, ACKNOWLEDGED, 1))) == RecordChange()
