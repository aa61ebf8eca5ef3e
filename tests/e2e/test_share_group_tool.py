"""Test Kafka's unmodified `kafka-share-groups.sh` with state in this coordinator.

The tool uses the group coordinator of the broker. The group coordinator reads summaries from the share
coordinator, and initializes and deletes state there.
"""

import pytest

from tests.e2e.delivery_recorder import (
    LONG_RECORD_LOCK,
    DeliveryRecorder,
    accept_all,
    new_topic,
    produce_records,
)
from tests.kafka import BuiltInRig, StandaloneRig
from tests.kafka.share_group_tool import DescribedOffset

pytestmark = pytest.mark.broker

# In release 4.1, the tool cannot reset offsets and shows no lag.
FIRST_RELEASE = "4.1.1"


def accept_records_and_leave(rig: BuiltInRig, group: str, topic: str, count: int) -> DeliveryRecorder:
    """Accept `count` records with a new consumer of `group`, and leave."""
    recorder = DeliveryRecorder()
    consumer = rig.client.share_consumer(group, topic)
    recorder.consume_until_acknowledged(consumer, accept_all, count, seconds=120)
    consumer.close()
    return recorder


def first_delivery_counts(count: int) -> dict[tuple[int, int], list[int]]:
    """Return the delivery counts if each of `count` records of partition 0 was delivered once."""
    return {(0, offset): [1] for offset in range(count)}


def expected_offset(rig: BuiltInRig, group: str, topic: str, start_offset: int, lag: int) -> DescribedOffset:
    known_lag = None if rig.broker.jars.release == FIRST_RELEASE else lag
    return DescribedOffset(group, topic, 0, start_offset, known_lag)


def test_start_offset_and_lag_are_described(rig: BuiltInRig) -> None:
    topic, group, topic_id = new_topic(rig.client, "described", settings=LONG_RECORD_LOCK)
    produce_records(rig.client, topic, 1, first=0, count=10)
    accept_records_and_leave(rig, group, topic, 10)
    # The broker stores a new start offset with the next write.
    produce_records(rig.client, topic, 1, first=10, count=1)
    accept_records_and_leave(rig, group, topic, 1)
    produce_records(rig.client, topic, 1, first=11, count=3)

    assert rig.share_groups.describe_offsets(group) == [expected_offset(rig, group, topic, 10, 3)]
    if isinstance(rig, StandaloneRig):
        state = rig.coordinator.share_partition(group, topic_id, 0)
        assert state is not None
        assert state["start_offset"] == 10


def test_offsets_are_reset_to_earliest(rig: BuiltInRig) -> None:
    if rig.broker.jars.release == FIRST_RELEASE:
        assert "not yet implemented" in rig.share_groups.run_failing(
            "--reset-offsets", "--to-earliest", "--execute", "--group", "none", "--topic", "none"
        )
        return
    topic, group, _ = new_topic(rig.client, "reset", settings=LONG_RECORD_LOCK)
    produce_records(rig.client, topic, 1, first=0, count=10)
    accept_records_and_leave(rig, group, topic, 10)

    rig.share_groups.reset_offsets_to_earliest(group, topic)
    assert rig.share_groups.describe_offsets(group) == [expected_offset(rig, group, topic, 0, 10)]
    assert accept_records_and_leave(rig, group, topic, 10).delivery_counts == first_delivery_counts(10)


def test_offsets_of_topic_are_deleted(rig: BuiltInRig) -> None:
    topic, group, topic_id = new_topic(rig.client, "offsets-deleted", settings=LONG_RECORD_LOCK)
    produce_records(rig.client, topic, 1, first=0, count=10)
    accept_records_and_leave(rig, group, topic, 10)

    rig.share_groups.delete_offsets(group, topic)
    assert rig.share_groups.describe_offsets(group) == []
    if isinstance(rig, StandaloneRig):
        assert rig.coordinator.share_partition(group, topic_id, 0) is None
    assert accept_records_and_leave(rig, group, topic, 10).delivery_counts == first_delivery_counts(10)


def test_group_is_deleted(rig: BuiltInRig) -> None:
    topic, group, topic_id = new_topic(rig.client, "group-deleted", settings=LONG_RECORD_LOCK)
    produce_records(rig.client, topic, 1, first=0, count=10)
    accept_records_and_leave(rig, group, topic, 10)

    rig.share_groups.delete(group)
    assert group not in rig.share_groups.list()
    if isinstance(rig, StandaloneRig):
        assert rig.coordinator.share_partition(group, topic_id, 0) is None
    # A new group of the same name starts without the old state.
    assert accept_records_and_leave(rig, group, topic, 10).delivery_counts == first_delivery_counts(10)
