"""Test Kafka's share consumer and tools with a broker that stores share-group state in this coordinator.

Each test runs with every supported release. Tests that do not kill the coordinator also run with a broker's
built-in coordinator, which shows that Kafka has the expected behaviour.
"""

import random
from contextlib import suppress
from time import monotonic

import pytest

from tests.e2e.delivery_recorder import (
    LONG_RECORD_LOCK,
    SMALL_COMMITS,
    DeliveryRecorder,
    Record,
    accept_after_up_to_3_deliveries,
    accept_all,
    consume_in_thread,
    consume_rest,
    mixed_acknowledgements,
    new_topic,
    produce_records,
)
from tests.kafka import BuiltInRig, StandaloneRig, wait_until
from tests.kafka.fixtures import STANDALONE, only_ours
from tests.kafka.processes import ConditionTimeout
from tests.kafka.share_group_tool import DescribedOffset

pytestmark = pytest.mark.broker

STATE_TOPIC = "__share_group_state"
FINAL_STATES = ("ACKNOWLEDGED", "ARCHIVED")
# In release 4.1, `kafka-share-groups.sh` cannot reset offsets and shows no lag.
FIRST_RELEASE = "4.1.1"


def test_released_records_are_redelivered_and_others_are_not(rig: BuiltInRig) -> None:
    topic, group, _ = new_topic(rig.client, "kinds", settings=LONG_RECORD_LOCK)
    produce_records(rig.client, topic, 1, first=0, count=100)
    recorder = DeliveryRecorder()
    consumer = rig.client.share_consumer(group, topic)
    recorder.consume_until_acknowledged(consumer, mixed_acknowledgements, 100, seconds=120)
    consumer.close()

    assert consume_rest(rig.client, group, topic, 1, end=100) == []
    assert recorder.violations == []
    assert {record: counts for record, counts in recorder.delivery_counts.items() if counts != [1]} == {
        (0, offset): [1, 2] for offset in range(5, 100, 10)
    }
    # The state topic exists only if the broker uses its built-in coordinator.
    assert (STATE_TOPIC in rig.client.topics()) == (not isinstance(rig, StandaloneRig))


def is_in_final_state(rig: StandaloneRig, group: str, topic_id: str, record: Record) -> bool:
    """Return whether the coordinator has stored `record` in a final delivery state."""
    partition, offset = record
    state = rig.coordinator.share_partition(group, topic_id, partition)
    assert state is not None
    return offset < state["start_offset"] or any(
        batch["first_offset"] <= offset <= batch["last_offset"] and batch["delivery_state"] in FINAL_STATES
        for batch in state["in_flight"]["items"]
    )


@only_ours
def test_kills_of_coordinator_lose_no_acknowledgement(standalone: StandaloneRig) -> None:
    partitions, kills, per_round = 3, 3, 100
    client = standalone.client
    topic, group, topic_id = new_topic(client, "kills", partitions=partitions)
    chance = random.Random(standalone.broker.jars.release)
    recorder = DeliveryRecorder()
    for kill in range(kills):
        produce_records(client, topic, partitions, first=kill * per_round, count=per_round)
        goal = len(recorder.settled) + chance.randrange(partitions * per_round // 2)
        consumer = client.share_consumer(group, topic, SMALL_COMMITS)
        with consume_in_thread(recorder, consumer, mixed_acknowledgements):
            recorder.wait_until_acknowledged(goal + 1, seconds=120)
            standalone.coordinator.kill()
            standalone.coordinator.start()
        # The group is empty for a moment, so that the broker reads the state again.
        consumer.close()
    consumer = client.share_consumer(group, topic, SMALL_COMMITS)

    def are_all_records_final() -> bool:
        recorder.consume(consumer, mixed_acknowledgements)
        known = len(recorder.settled) + len(recorder.in_doubt) == partitions * kills * per_round
        return known and all(
            is_in_final_state(standalone, group, topic_id, record) for record in recorder.in_doubt
        )

    wait_until(
        are_all_records_final, seconds=120, what="every record is acknowledged, or stored in a final state"
    )
    consumer.close()

    assert consume_rest(client, group, topic, partitions, end=kills * per_round) == []
    assert recorder.violations == []


def restart_broker(rig: BuiltInRig, *, restart_coordinator: bool = False) -> None:
    """Kill the broker, and this coordinator if there is one, and start them again.

    Share consumers before 4.4.0 use a whole processor while the broker is down, so they are suspended.
    """
    with rig.client.process.suspended():
        rig.broker.kill()
        if restart_coordinator and isinstance(rig, StandaloneRig):
            rig.coordinator.kill()
            rig.coordinator.start()
        rig.broker.start()


def test_delivery_counts_continue_after_kills_of_broker_and_coordinator(rig: BuiltInRig) -> None:
    """Deliver records once, twice or three times, with a failure after the first and the second delivery.

    Records are released one commit before the failure. The next delivery must have the stored count plus one.
    In the second failure, both processes lose their memory, so the broker must get all state from the
    journal.
    """
    topic, group, _ = new_topic(rig.client, "counts", settings=LONG_RECORD_LOCK)
    produce_records(rig.client, topic, 1, first=0, count=30)
    consumer = rig.client.share_consumer(group, topic)
    recorder = DeliveryRecorder()
    recorder.consume_until_acknowledged(consumer, accept_after_up_to_3_deliveries, 10, seconds=120)
    restart_broker(rig)
    recorder.consume_until_acknowledged(consumer, accept_after_up_to_3_deliveries, 20, seconds=120)
    restart_broker(rig, restart_coordinator=True)
    recorder.consume_until_acknowledged(consumer, accept_after_up_to_3_deliveries, 30, seconds=120)
    consumer.close()

    assert consume_rest(rig.client, group, topic, 1, end=30) == []
    assert recorder.violations == []
    seen = {offset: sorted(set(counts)) for (_, offset), counts in recorder.delivery_counts.items()}
    assert seen == {offset: [1, 2, 3][: 1 + offset % 3] for offset in range(30)}


@pytest.mark.parametrize("rig", STANDALONE[-1:], indirect=True)
def test_broker_repeats_a_slow_initialization_with_start_offset_0(standalone: StandaloneRig) -> None:
    """The group coordinator of 4.4.0 replaces start offset -1 by 0 when it repeats a request.

    The second request has the same state epoch. The second request resets the state, with Kafka's own
    coordinator too (tests/conformance/test_broker.py).
    """
    client, coordinator = standalone.client, standalone.coordinator

    def starts_at_0(stopped_s: float) -> bool:
        """Stop the coordinator during an initialization; return whether the final start offset is 0."""
        settings = {**LONG_RECORD_LOCK, "share.auto.offset.reset": "latest"}
        topic, group, topic_id = new_topic(client, f"repeated-{stopped_s:g}", settings=settings)
        with coordinator.process.suspended():
            consumer = client.share_consumer(group, topic)
            until_s = monotonic() + stopped_s
            while monotonic() < until_s:
                consumer.poll()

        def start_offset() -> object:
            return (coordinator.share_partition(group, topic_id, 0) or {}).get("start_offset")

        with suppress(ConditionTimeout):
            return wait_until(lambda: start_offset() == 0, seconds=10, what="start offset 0")
        return False

    # A slow broker may not have repeated the request after a short time.
    assert any(map(starts_at_0, (4.0, 16.0, 64.0)))


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
