"""Each snapshot has the complete state with fencing, whether it replaces an update or a job writes it.

With updates_max=0, each record is a snapshot, so a reload depends on the last record alone.
"""

import pytest
from msgspec.structs import replace

from coordinator.shard import SnapshotLimits, SnapshotPolicy
from protocol.errors import ErrorCode
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.state_records import StateRecord, UnreadableValue
from tests.builders import (
    AVAILABLE,
    KEY,
    DrivenShard,
    make_initialize,
    make_read,
    make_write,
    unpack_batches,
)


@pytest.fixture
def driver() -> DrivenShard:
    shard = DrivenShard(SnapshotPolicy(updates_max=0))
    shard.initialize(make_initialize())
    return shard


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
