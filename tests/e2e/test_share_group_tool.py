"""Kafka's `kafka-share-groups.sh` as it is, on state that is ours.

What it prints about a group comes from the group coordinator of the broker, which asks the share coordinator
for summaries and tells it to set and to delete state.
"""

import pytest

from tests.e2e.ledger import FOR_LONG, Ledger, accept_all, new_topic, produce
from tests.kafka import BuiltInRig, StandaloneRig
from tests.kafka.share_group_tool import DescribedOffset

pytestmark = pytest.mark.broker

# The tool of 4.1 answers that resetting offsets is not implemented, and knows no lag.
FIRST_RELEASE = "4.1.1"


def read_all(rig: BuiltInRig, group: str, topic: str, count: int) -> Ledger:
    """Let a new consumer of `group` accept `count` records, and leave."""
    ledger = Ledger()
    consumer = rig.client.share_consumer(group, topic)
    ledger.consume_until_settled(consumer, accept_all, count, seconds=120)
    consumer.close()
    return ledger


def all_for_the_first_time(count: int) -> dict[tuple[int, int], list[int]]:
    return {(0, offset): [1] for offset in range(count)}


def described(rig: BuiltInRig, group: str, topic: str, start_offset: int, lag: int) -> DescribedOffset:
    known_lag = None if rig.broker.jars.release == FIRST_RELEASE else lag
    return DescribedOffset(group, topic, 0, start_offset, known_lag)


def test_the_start_offset_and_the_lag_are_described(rig: BuiltInRig) -> None:
    topic, group, topic_id = new_topic(rig.client, "described", settings=FOR_LONG)
    produce(rig.client, topic, 1, first=0, count=10)
    read_all(rig, group, topic, 10)
    # A start offset that moved is stored with the write that comes next.
    produce(rig.client, topic, 1, first=10, count=1)
    read_all(rig, group, topic, 1)
    produce(rig.client, topic, 1, first=11, count=3)

    assert rig.share_groups.describe_offsets(group) == [described(rig, group, topic, 10, 3)]
    if isinstance(rig, StandaloneRig):
        state = rig.coordinator.share_partition(group, topic_id, 0)
        assert state is not None
        assert state["start_offset"] == 10


def test_offsets_are_reset_to_the_earliest(rig: BuiltInRig) -> None:
    if rig.broker.jars.release == FIRST_RELEASE:
        assert "not yet implemented" in rig.share_groups.run_failing(
            "--reset-offsets", "--to-earliest", "--execute", "--group", "none", "--topic", "none"
        )
        return
    topic, group, _ = new_topic(rig.client, "reset", settings=FOR_LONG)
    produce(rig.client, topic, 1, first=0, count=10)
    read_all(rig, group, topic, 10)

    rig.share_groups.reset_offsets_to_earliest(group, topic)
    assert rig.share_groups.describe_offsets(group) == [described(rig, group, topic, 0, 10)]
    assert read_all(rig, group, topic, 10).delivery_counts == all_for_the_first_time(10)


def test_offsets_of_a_topic_are_deleted(rig: BuiltInRig) -> None:
    topic, group, topic_id = new_topic(rig.client, "offsets-deleted", settings=FOR_LONG)
    produce(rig.client, topic, 1, first=0, count=10)
    read_all(rig, group, topic, 10)

    rig.share_groups.delete_offsets(group, topic)
    assert rig.share_groups.describe_offsets(group) == []
    if isinstance(rig, StandaloneRig):
        assert rig.coordinator.share_partition(group, topic_id, 0) is None
    assert read_all(rig, group, topic, 10).delivery_counts == all_for_the_first_time(10)


def test_a_group_is_deleted(rig: BuiltInRig) -> None:
    topic, group, topic_id = new_topic(rig.client, "group-deleted", settings=FOR_LONG)
    produce(rig.client, topic, 1, first=0, count=10)
    read_all(rig, group, topic, 10)

    rig.share_groups.delete(group)
    assert group not in rig.share_groups.list()
    if isinstance(rig, StandaloneRig):
        assert rig.coordinator.share_partition(group, topic_id, 0) is None
    # A group of the same name knows nothing of the old one.
    assert read_all(rig, group, topic, 10).delivery_counts == all_for_the_first_time(10)
