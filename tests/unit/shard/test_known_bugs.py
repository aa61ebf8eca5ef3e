"""Regression tests for defects of Kafka's share coordinator.

Test names contain the number of Kafka's ticket or pull request. A hazard is a defect that has neither.
"""

import sys

import pytest

from coordinator.shard import SnapshotPolicy, combine
from coordinator.shard.machine import Shard
from protocol.errors import ErrorCode
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_records import (
    StateRecord,
    UnreadableValue,
    decode_record,
    encode_record,
)
from tests.builders import (
    ACKNOWLEDGED,
    AVAILABLE,
    KEY,
    DrivenShard,
    make_initialize,
    make_limits,
    make_read,
    make_write,
    pack_batches,
    unpack_batches,
)


@pytest.fixture
def driver() -> DrivenShard:
    shard = DrivenShard()
    assert shard.initialize(make_initialize()).error_code == ErrorCode.NONE
    return shard


def test_kafka_18672_unknown_value_version_is_unreadable(driver: DrivenShard) -> None:
    key, value = encode_record(driver.log[-1][0])
    assert value is not None
    record = decode_record(key, b"\0\1" + value[2:])
    assert record is not None
    assert isinstance(record.value, UnreadableValue)
    assert "version 1" in record.value.reason


def test_kafka_19695_deleted_share_partition_does_not_block_pruning(driver: DrivenShard) -> None:
    other = KEY._replace(partition=1)
    driver.initialize(make_initialize(partition=1), key=other)
    driver.delete()
    assert driver.shard.redundant_offset == 1
    driver.delete(key=other)
    assert driver.shard.redundant_offset == len(driver.log)


def test_kafka_19888_clock_set_back_does_no_harm(driver: DrivenShard) -> None:
    driver.now_ms -= 3_600_000
    driver.write(make_write((0, 4, ACKNOWLEDGED, 1)))
    assert driver.shard.snapshot_cold(now_ms=driver.now_ms, interval_ms=1, limits=make_limits(10)) == []
    assert driver.reload().shard.state(KEY) == driver.shard.state(KEY)


def test_kafka_20691_merge_takes_near_linear_time() -> None:
    def count_merge_calls(count: int) -> int:
        current = pack_batches(*((10 * n, 10 * n + 4, AVAILABLE, 1) for n in range(count)))
        written = pack_batches(*((10 * n + 2, 10 * n + 6, ACKNOWLEDGED, 2) for n in range(count)))
        calls = 0

        def count_call(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count_call)
        try:
            combine(current, written, 0)
        finally:
            sys.setprofile(None)
        return calls

    assert 0 < count_merge_calls(4_000) < 2.5 * count_merge_calls(2_000)


def test_hazard_b_cold_snapshots_are_written_in_slices() -> None:
    shard = DrivenShard()
    for key in (KEY._replace(partition=partition) for partition in range(25)):
        shard.initialize(make_initialize(), key=key)
        for offset in range(3):
            shard.write(make_write((offset, offset, ACKNOWLEDGED, 1)), key=key)
    sizes = []
    later_ms = shard.now_ms + 10
    while records := shard.shard.snapshot_cold(now_ms=later_ms, interval_ms=10, limits=make_limits(10)):
        sizes.append(len(records))
        for record in records:
            shard.append(record)
    assert sizes == [10, 10]


def test_hazard_c_error_of_a_duplicate_is_not_hidden_by_the_next_one(driver: DrivenShard) -> None:
    driver.read(make_read(leader_epoch=3))
    length = len(driver.log)
    answer = driver.write(
        make_write((0, 0, ACKNOWLEDGED, 1), leader_epoch=3),
        make_write((1, 1, ACKNOWLEDGED, 1), leader_epoch=2),
        make_write((2, 2, ACKNOWLEDGED, 1), leader_epoch=3),
    )
    assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert len(driver.log) == length, "if one entry is refused, no record of the unit is written"


def test_duplicates_of_a_share_partition_are_merged_in_request_order(driver: DrivenShard) -> None:
    answer = driver.write(
        make_write((0, 4, AVAILABLE, 1), complete_count=0),
        make_write((0, 1, ACKNOWLEDGED, 2), start_offset=1, complete_count=1),
    )
    assert answer.error_code == ErrorCode.NONE
    assert unpack_batches(driver.read(make_read()).state_batches) == [
        (1, 1, ACKNOWLEDGED, 2),
        (2, 4, AVAILABLE, 1),
    ]
    assert driver.summary().start_offset == 1


def test_hazard_g_unreadable_value_stops_one_share_partition_only(driver: DrivenShard) -> None:
    other = KEY._replace(partition=1)
    driver.initialize(make_initialize(partition=1), key=other)
    driver.append(StateRecord(KEY, UnreadableValue(b"\0\7", "value version 7")))
    assert driver.read(make_read()).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert driver.write(make_write()).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert driver.read(make_read(partition=1), key=other).error_code == ErrorCode.NONE
    assert driver.shard.redundant_offset == 0, "an unreadable record is kept for a newer release"
    driver.initialize(make_initialize(state_epoch=1))
    assert driver.read(make_read()).error_code == ErrorCode.NONE


def test_hazard_h_state_of_a_deleted_topic_can_be_deleted(driver: DrivenShard) -> None:
    driver.topic_known = False
    assert driver.delete().error_code == ErrorCode.NONE
    assert driver.delete().error_code == ErrorCode.NONE
    assert len(driver.shard) == 0


def test_batch_that_ends_before_it_begins_is_refused_with_a_message(driver: DrivenShard) -> None:
    answer = driver.write(make_write((0, 4, AVAILABLE, 1), (9, 5, AVAILABLE, 1)))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "ends at offset 5, before it begins at 9" in str(answer.error_message)


def test_cold_snapshots_are_written_only_if_more_records_become_redundant() -> None:
    shard = DrivenShard()
    cold = KEY._replace(partition=1)
    shard.initialize(make_initialize(partition=1), key=cold)
    shard.initialize(make_initialize())
    shard.now_ms += 400_000
    assert shard.shard.snapshot_cold(now_ms=shard.now_ms, interval_ms=300_000, limits=make_limits(10)) == []
    for offset in range(10):
        shard.write(make_write((offset, offset, AVAILABLE, 1)))
    records = shard.shard.snapshot_cold(now_ms=shard.now_ms, interval_ms=300_000, limits=make_limits(10))
    assert [record.key for record in records] == [cold, KEY]
    before = shard.shard.state(cold)
    for record in records:
        shard.append(record)
    assert shard.shard.redundant_offset == len(shard.log) - 2
    after = shard.shard.state(cold)
    assert before is not None
    assert after is not None
    assert (after.create_timestamp, after.write_timestamp) == (before.create_timestamp, shard.now_ms)


def test_update_without_a_snapshot_is_not_pruned() -> None:
    shard = Shard(0, SnapshotPolicy())
    update = ShareUpdateValue(0, 0, 0, pack_batches((0, 4, AVAILABLE, 1)))
    shard.replay(StateRecord(KEY, update), 7, 0)
    shard.replay(StateRecord(KEY, update), 8, 0)
    assert shard.redundant_offset == 7


@pytest.mark.parametrize("why", ["", "unreadable", "clock"])
def test_permanent_obstacle_to_pruning_does_not_repeat_cold_snapshots(why: str) -> None:
    shard = DrivenShard()
    keys = [KEY._replace(partition=number) for number in range(10)]
    for key in keys:
        shard.initialize(make_initialize(partition=key.partition), key=key)
    if why == "unreadable":
        shard.append(StateRecord(keys[0], UnreadableValue(b"\0\7", "value version 7")))
    for offset in range(30):
        shard.write(make_write((offset, offset, AVAILABLE, 1), partition=9), key=keys[9])
    # After the clock is set back, the snapshots have timestamps in the future.
    shard.now_ms += -10_000_000 if why == "clock" else 400_000
    records = shard.shard.snapshot_cold(now_ms=shard.now_ms, interval_ms=300_000, limits=make_limits(100))
    assert len(records) == (0 if why == "unreadable" else 10)
