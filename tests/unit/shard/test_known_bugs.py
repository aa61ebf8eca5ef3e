"""Regression tests for defects of Kafka's share coordinator.

Test names contain the number of Kafka's ticket or pull request. A hazard is a defect that has neither.
`ELSEWHERE` lists the tests of defects in the runtime, the log and the client.
"""

import re
import sys
from pathlib import Path

import pytest

from coordinator.shard import SnapshotPolicy, combine
from coordinator.shard.machine import Shard
from protocol.errors import ErrorCode
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_records import (
    SharePartitionKey,
    StateRecord,
    UnreadableValue,
    decode_record,
    encode_record,
)
from tests.builders import (
    ACKNOWLEDGED,
    AVAILABLE,
    KEY,
    OTHER_TOPIC_ID,
    TOPIC_ID,
    DrivenShard,
    make_initialize,
    make_limits,
    make_read,
    make_write,
    pack_batches,
    unpack_batches,
)

# The defect in Kafka, and the file and name of the test for it.
ELSEWHERE = {
    "KAFKA-17463: clients did not retry after NOT_COORDINATOR": (
        "client/test_retries.py",
        "test_retriable_code_is_retried_after_a_new_lookup",
    ),
    "KAFKA-18745: clients did not retry after a disconnection": (
        "client/test_retries.py",
        "test_broken_connection_is_replaced_and_the_request_is_resent",
    ),
    "KAFKA-18809, #20013: the topic lacked min.insync.replicas and retention.ms": (
        "log/test_topic.py",
        "test_topic_is_created_with_at_most_one_replica_per_broker",
    ),
    "KAFKA-19281, KAFKA-20710: jobs continued for shards that the broker no longer owned": (
        "runtime/test_maintenance.py",
        "test_shard_that_is_not_owned_is_not_pruned",
    ),
    "KAFKA-19455: clients did not retry after UNKNOWN_TOPIC_OR_PARTITION": (
        "client/test_retries.py",
        "test_retriable_code_is_retried_after_a_new_lookup",
    ),
    "KAFKA-19716: loading read the whole log into memory": (
        "log/test_contract.py",
        "test_large_log_is_read_in_ordered_chunks",
    ),
    "KAFKA-19760: a batch exceeded max.message.bytes of the topic": (
        "log/test_kafka_batches.py",
        "test_append_larger_than_a_batch_is_split_into_several",
    ),
    "KAFKA-19927: clients did not retry after a timeout": (
        "client/test_connection.py",
        "test_timed_out_request_is_retried",
    ),
    "KAFKA-20347: the previous owner of a shard kept its metrics": (
        "runtime/test_handover.py",
        "test_kafka_20347_metrics_of_a_resigned_shard_are_removed",
    ),
    "KAFKA-20634: a write was acknowledged after its shard was closed": (
        "runtime/test_runtime.py",
        "test_kafka_20634_an_append_that_ends_after_the_shard_was_closed_is_not_success",
    ),
    "KAFKA-20845: an append without records rolled the state back": (
        "log/test_contract.py",
        "test_append_without_records_changes_no_records",
    ),
    "hazard a: topics that are deleted while a shard loads": (
        "expiry/test_rounds.py",
        "test_hazard_a_state_of_deleted_topic_expires_after_its_shard_was_loading",
    ),
    "hazard f: results are not in request order": (
        "client/test_contract.py",
        "test_response_has_one_result_per_share_partition_in_request_order",
    ),
    "hazard i: reads wait for writes of other share-partitions": (
        "runtime/test_runtime.py",
        "test_hazard_i_a_read_does_not_wait_for_writes_of_other_share_partitions",
    ),
}


@pytest.mark.parametrize("defect", ELSEWHERE)
def test_defect_outside_the_shard_has_a_test(defect: str) -> None:
    file, test = ELSEWHERE[defect]
    text = (Path(__file__).parents[1] / file).read_text()
    assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE)


@pytest.fixture
def driver() -> DrivenShard:
    shard = DrivenShard()
    assert shard.initialize(make_initialize()).error_code == ErrorCode.NONE
    return shard


def test_kafka_17796_read_with_newer_leader_epoch_is_persisted(driver: DrivenShard) -> None:
    driver.read(make_read(leader_epoch=5))
    assert driver.reload().write(make_write(leader_epoch=4)).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_kafka_18437_update_has_value_version_0(driver: DrivenShard) -> None:
    driver.write(make_write((0, 4, ACKNOWLEDGED, 1)))
    record, _ = driver.log[-1]
    key, value = encode_record(record)
    assert isinstance(record.value, ShareUpdateValue)
    assert (key[:2], value and value[:2]) == (b"\0\1", b"\0\0")


def test_kafka_18672_unknown_value_version_is_unreadable(driver: DrivenShard) -> None:
    key, value = encode_record(driver.log[-1][0])
    assert value is not None
    record = decode_record(key, b"\0\1" + value[2:])
    assert record is not None
    assert isinstance(record.value, UnreadableValue)
    assert "version 1" in record.value.reason


def test_kafka_19218_summary_has_the_leader_epoch(driver: DrivenShard) -> None:
    driver.read(make_read(leader_epoch=7))
    assert driver.summary().leader_epoch == 7


def test_kafka_19695_deleted_share_partition_does_not_block_pruning(driver: DrivenShard) -> None:
    other = KEY._replace(partition=1)
    driver.initialize(make_initialize(partition=1), key=other)
    driver.delete()
    assert driver.shard.redundant_offset == 1
    driver.delete(key=other)
    assert driver.shard.redundant_offset == len(driver.log)


def test_kafka_19201_deletion_writes_a_tombstone(driver: DrivenShard) -> None:
    other = SharePartitionKey("group", OTHER_TOPIC_ID, 0)
    driver.initialize(make_initialize(), key=other)
    driver.delete()
    assert driver.log[-1][0] == StateRecord(KEY, None)
    assert driver.reload(0).shard.share_partitions() == [other]


def test_kafka_19456_write_changes_no_epoch(driver: DrivenShard) -> None:
    assert driver.write(make_write(state_epoch=9, leader_epoch=9)).error_code == ErrorCode.NONE
    summary = driver.summary()
    assert (summary.state_epoch, summary.leader_epoch) == (0, 0)


def test_kafka_19338_read_and_write_without_state_are_refused() -> None:
    shard = DrivenShard()
    assert shard.read(make_read()).error_code == ErrorCode.INVALID_REQUEST
    assert shard.write(make_write()).error_code == ErrorCode.INVALID_REQUEST
    assert shard.log == []


def test_kafka_20016_snapshot_epoch_may_exceed_16_bits() -> None:
    value = ShareSnapshotValue(70_000, 0, 0, 0, 0, 0, b"")
    key_bytes, value_bytes = encode_record(StateRecord(KEY, value))
    assert decode_record(key_bytes, value_bytes) == StateRecord(KEY, value)


def test_kafka_19888_clock_set_back_does_no_harm(driver: DrivenShard) -> None:
    driver.now_ms -= 3_600_000
    driver.write(make_write((0, 4, ACKNOWLEDGED, 1)))
    assert driver.shard.snapshot_cold(now_ms=driver.now_ms, interval_ms=1, limits=make_limits(10)) == []
    assert driver.reload().shard.state(KEY) == driver.shard.state(KEY)


def test_kafka_20034_offset_reset_sets_delivery_complete_count_to_0(driver: DrivenShard) -> None:
    driver.write(make_write((5, 9, ACKNOWLEDGED, 1), complete_count=5))
    driver.initialize(make_initialize(start_offset=3))
    assert driver.summary().delivery_complete_count == 0


def test_kafka_pull_request_21426_number_of_updates_between_snapshots_is_exact() -> None:
    shard = DrivenShard(SnapshotPolicy(updates_max=3))
    shard.initialize(make_initialize())
    for offset in range(8):
        shard.write(make_write((offset, offset, AVAILABLE, 1)))
    kinds = [isinstance(record.value, ShareSnapshotValue) for record, _ in shard.log]
    assert kinds == [True, False, False, False, True, False, False, False, True]


def test_kafka_20183_group_id_may_contain_colons() -> None:
    key = SharePartitionKey("a:b:c", TOPIC_ID, 3)
    assert SharePartitionKey.parse(str(key)) == key


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


@pytest.mark.parametrize("epochs", [{"state_epoch": -1}, {"leader_epoch": -1}])
def test_kafka_20694_negative_epoch_is_refused(driver: DrivenShard, epochs: dict[str, int]) -> None:
    assert driver.write(make_write(**epochs)).error_code == ErrorCode.INVALID_REQUEST


def test_kafka_20743_read_with_leader_epoch_minus_1_is_refused(driver: DrivenShard) -> None:
    assert driver.read(make_read(leader_epoch=-1)).error_code == ErrorCode.INVALID_REQUEST


def test_kafka_pull_request_23074_late_write_does_not_move_the_start_offset_back(driver: DrivenShard) -> None:
    driver.write(make_write(start_offset=10, complete_count=3))
    driver.write(make_write((0, 12, ACKNOWLEDGED, 2), start_offset=5, complete_count=8))
    summary = driver.summary()
    assert (summary.start_offset, summary.delivery_complete_count) == (10, 3)
    assert unpack_batches(driver.read(make_read()).state_batches) == [(10, 12, ACKNOWLEDGED, 2)]


@pytest.mark.parametrize("start_offset", [-1, 0])
def test_kafka_pull_request_23190_repeated_initialize_changes_nothing(start_offset: int) -> None:
    shard = DrivenShard()
    shard.initialize(make_initialize(start_offset=start_offset))
    length = len(shard.log)
    assert shard.initialize(make_initialize(start_offset=start_offset)).error_code == ErrorCode.NONE
    assert len(shard.log) == length


def test_kafka_pull_request_23190_late_repeated_initialize_keeps_acknowledgements() -> None:
    shard = DrivenShard()
    shard.initialize(make_initialize(start_offset=-1))
    shard.write(make_write((5, 9, ACKNOWLEDGED, 1), start_offset=5))
    assert shard.initialize(make_initialize(start_offset=-1)).error_code == ErrorCode.NONE
    assert unpack_batches(shard.read(make_read()).state_batches) == [(5, 9, ACKNOWLEDGED, 1)]


def test_offset_reset_at_the_same_state_epoch_takes_effect(driver: DrivenShard) -> None:
    """Brokers 4.1 to 4.4 send AlterShareGroupOffsets as an Initialize with an unchanged state epoch."""
    driver.write(make_write((0, 9, ACKNOWLEDGED, 1), start_offset=0))
    driver.initialize(make_initialize(start_offset=0))
    answer = driver.read(make_read())
    assert (answer.start_offset, answer.state_batches) == (0, b"")


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


def test_hazard_d_fencing_survives_reinitialize_prune_and_reload(driver: DrivenShard) -> None:
    driver.read(make_read(leader_epoch=9))
    driver.initialize(make_initialize(state_epoch=1, start_offset=50))
    assert driver.summary().leader_epoch == 0, "Kafka returns 0 after a second Initialize"
    reloaded = driver.reload()
    assert reloaded.shard.redundant_offset == len(driver.log) - 1, (
        "all records before the last snapshot are redundant"
    )
    assert (
        reloaded.write(make_write(state_epoch=1, leader_epoch=8)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    )
    assert reloaded.summary().leader_epoch == 0


def test_hazard_e_update_count_is_equal_after_a_reload() -> None:
    policy = SnapshotPolicy(updates_max=4)
    shard = DrivenShard(policy)
    shard.initialize(make_initialize())
    for offset in range(7):
        shard.write(make_write((offset, offset, AVAILABLE, 1)))
    before, after = shard.shard.state(KEY), shard.reload().shard.state(KEY)
    assert before is not None
    assert before.updates == 2
    assert before == after


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
