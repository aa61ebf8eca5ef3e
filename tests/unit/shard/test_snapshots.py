"""Each snapshot has the complete state with fencing, whether it replaces an update or a job writes it.

With updates_max=0, each record is a snapshot, so a reload depends on the last record alone.
"""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from coordinator.shard import SnapshotLimits, SnapshotPolicy
from protocol.errors import ErrorCode
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.state_records import StateRecord, UnreadableValue
from tests.builders import (
    ACKNOWLEDGED,
    AVAILABLE,
    KEY,
    DrivenShard,
    make_initialize,
    make_limits,
    make_read,
    make_write,
    unpack_batches,
)


@pytest.fixture
def driver() -> DrivenShard:
    shard = DrivenShard(SnapshotPolicy(updates_max=0))
    shard.initialize(make_initialize())
    return shard


def reload_last_record(driven: DrivenShard) -> DrivenShard:
    reloaded = driven.reload()
    assert driven.shard.redundant_offset == len(driven.log) - 1, (
        "all records before the last snapshot are redundant"
    )
    return reloaded


def test_snapshot_of_a_read_fences_the_previous_leader(driver: DrivenShard) -> None:
    driver.read(make_read(leader_epoch=5))
    for shard in (driver, reload_last_record(driver)):
        assert shard.write(make_write(leader_epoch=4)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert shard.summary().leader_epoch == 5


def test_snapshot_of_a_write_changes_no_epoch(driver: DrivenShard) -> None:
    driver.read(make_read(leader_epoch=5))
    driver.write(make_write((0, 4, ACKNOWLEDGED, 1), leader_epoch=8, state_epoch=3))
    for shard in (driver, reload_last_record(driver)):
        assert (shard.summary().leader_epoch, shard.summary().state_epoch) == (5, 0)
        assert shard.read(make_read(leader_epoch=5)).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    "snapshot",
    [
        lambda driven: driven.write(make_write(state_epoch=1, leader_epoch=9, start_offset=50)),
        lambda driven: driven.append(
            driven.shard.snapshot_before(len(driven.log), now_ms=driven.now_ms, limits=make_limits(1))[0]
        ),
    ],
    ids=["by a write", "by a job"],
)
def test_snapshot_keeps_fenced_leader_epochs_after_a_reinitialize(
    driver: DrivenShard, snapshot: Callable[[DrivenShard], object]
) -> None:
    driver.read(make_read(leader_epoch=9))
    driver.initialize(make_initialize(state_epoch=1, start_offset=50))
    snapshot(driver)
    reloaded = reload_last_record(driver)
    assert (
        reloaded.write(make_write(state_epoch=1, leader_epoch=8)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    )
    assert reloaded.summary().leader_epoch == 0


def test_snapshots_of_a_job_end_at_its_limits(driver: DrivenShard) -> None:
    keys = [KEY._replace(partition=partition) for partition in range(1, 5)]
    for key in keys:
        driver.initialize(make_initialize(partition=key.partition), key=key)
    state = driver.shard.state(KEY)
    assert state is not None
    size_bytes = state.snapshot_bytes
    for limits in (SnapshotLimits(2, 5 * size_bytes), SnapshotLimits(5, 2 * size_bytes)):
        records = driver.shard.snapshot_before(len(driver.log), now_ms=driver.now_ms, limits=limits)
        assert [record.key for record in records] == [KEY, keys[0]]


def test_greater_complete_count_wins_at_equal_start_offsets(driver: DrivenShard) -> None:
    driver.write(make_write(start_offset=10, complete_count=5))
    driver.write(make_write(start_offset=10, complete_count=3))
    assert driver.summary().delivery_complete_count == 5
    driver.write(make_write(start_offset=11, complete_count=1))
    assert driver.summary().delivery_complete_count == 1


@pytest.mark.parametrize("start_offset", [0, -1])
def test_unreadable_state_is_replaced_by_an_initialize_with_equal_epoch(
    driver: DrivenShard, start_offset: int
) -> None:
    driver.append(StateRecord(KEY, UnreadableValue(b"\0\7", "value version 7")))
    assert driver.initialize(make_initialize(start_offset=start_offset)).error_code == ErrorCode.NONE
    answer = driver.read(make_read())
    assert (answer.error_code, unpack_batches(answer.state_batches)) == (ErrorCode.NONE, [])


def test_snapshot_is_due_at_the_limit_of_updates_and_above_that_of_bytes(driver: DrivenShard) -> None:
    state = driver.shard.state(KEY)
    assert state is not None
    size_bytes = state.snapshot_bytes
    for updates, update_bytes, bytes_min, is_due in (
        (9, size_bytes, 0, False),
        (10, 0, 0, True),
        (1, size_bytes + 1, 0, True),
        (1, size_bytes + 1, size_bytes + 1, False),
        (1, size_bytes + 2, size_bytes + 1, True),
    ):
        changed = replace(state, updates=updates, update_bytes=update_bytes)
        assert SnapshotPolicy(updates_max=10, update_bytes_min=bytes_min).is_due(changed) == is_due


def test_large_updates_cause_a_snapshot_before_updates_max() -> None:
    shard = DrivenShard(SnapshotPolicy(updates_max=500, update_bytes_min=1_000))
    shard.initialize(make_initialize())
    many = tuple((2 * n, 2 * n, AVAILABLE, 1) for n in range(20))
    while not isinstance(shard.log[-1][0].value, ShareSnapshotValue) or len(shard.log) == 1:
        shard.write(make_write(*many))
    assert len(shard.log) < 10
