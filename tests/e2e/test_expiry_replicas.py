"""Test that three coordinators forward no request, and delete each abandoned state exactly once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.messages import find_coordinator
from protocol.state_records import SharePartitionKey
from tests.builders import TOPIC_ID
from tests.e2e.test_cluster_migration import (
    delete_topic,
    metric_by_coordinator,
    read_metric,
    start_coordinators,
)
from tests.kafka import CoordinatorProcess, KafkaJars, ShareConsumer, ShareGroupTool, wait_until
from tests.kafka.built_in import STATE_TOPIC
from tests.kafka.rig import ReplicatedRig, replicated_rig
from tests.kafka.wire import send_request

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PARTITIONS = 24
EXPIRED = "share_coordinator_expired_share_partitions_total"
SETTINGS = {
    # No coordinator fails in this test, and a slow coordinator must stay a member. The retention time is
    # longer than the restart of a coordinator, because its counters restart at 0.
    "session.timeout.ms": "30000",
    "heartbeat.interval.ms": "500",
    "share.coordinator.group.state.retention.minutes": "2",
    "share.coordinator.group.state.missing.grace.minutes": "0",
    "share.coordinator.group.state.retention.check.interval.ms": "3000",
}


@pytest.fixture
def rig(newest_jars: KafkaJars, tmp_path: Path) -> Iterator[ReplicatedRig]:
    with replicated_rig(newest_jars, tmp_path, SETTINGS) as rig:
        start_coordinators(rig)
        yield rig


def sum_expired(coordinators: list[CoordinatorProcess], reason: str) -> float:
    return sum(read_metric(coordinator, EXPIRED, reason=reason) for coordinator in coordinators)


def count_share_partitions(coordinators: list[CoordinatorProcess]) -> list[float]:
    return [
        read_metric(coordinator, "share_coordinator_shard_share_partitions") for coordinator in coordinators
    ]


def join_group(rig: ReplicatedRig, topic: str) -> ShareConsumer:
    """Join the group and accept the records of a topic; return the consumer."""
    rig.client.produce(topic, 1)
    consumer = rig.client.share_consumer("workers", topic)
    records = wait_until(lambda: consumer.poll(200), seconds=120, what=f"a record of {topic}")
    consumer.acknowledge(["ACCEPT"] * len(records))
    return consumer


def check_routing_by_find_coordinator(rig: ReplicatedRig) -> None:
    """Check that no request was forwarded, and that all coordinators name the same owners.

    The brokers use FindCoordinator, because the topic `__share_group_state` does not exist (mode A in
    docs/routing.md).
    """
    assert STATE_TOPIC not in rig.client.topics()
    for name in ("share_coordinator_forwarding", "share_coordinator_forwarded_total"):
        assert metric_by_coordinator(rig, name) == [0.0] * 3
    requests = "share_coordinator_rpc_requests_total"
    assert min(metric_by_coordinator(rig, requests, api="FindCoordinator")) > 0
    assert sum(metric_by_coordinator(rig, requests, api="WriteShareGroupState", code="NONE")) > 0
    keys = [str(SharePartitionKey("workers", TOPIC_ID, partition)) for partition in range(50)]
    request = find_coordinator.FindCoordinatorRequest(key_type=2, coordinator_keys=keys)
    answers = [send_request(each.port, find_coordinator, 6, request) for each in rig.coordinators]
    assert answers[0] == answers[1] == answers[2]
    ports = {found.port for found in answers[0].coordinators}
    assert ports == {coordinator.port for coordinator in rig.coordinators}


@pytest.mark.timeout(900)
def test_abandoned_state_is_removed_once_by_several_owners(rig: ReplicatedRig) -> None:
    coordinators = list(rig.coordinators)
    for topic in ("kept", "deleted"):
        rig.client.create_topic(topic, partitions=PARTITIONS)
    rig.client.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
    members = [join_group(rig, topic) for topic in ("kept", "deleted")]
    wait_until(
        lambda: sum(count_share_partitions(coordinators)) == 2 * PARTITIONS,
        seconds=120,
        what="all state is initialized",
    )
    assert min(count_share_partitions(coordinators)) > 0, "each coordinator owns state of the group"
    check_routing_by_find_coordinator(rig)
    # The brokers may have been loading their groups at the first requests of the coordinators.
    failures = [read_metric(each, "share_coordinator_expiry_failures_total") for each in coordinators]

    delete_topic(rig, "deleted")
    wait_until(
        lambda: sum(count_share_partitions(coordinators)) == PARTITIONS,
        seconds=120,
        what="the owners delete the topic's state",
    )
    wait_until(
        lambda: sum_expired(coordinators, "topic_deleted") == PARTITIONS,
        seconds=120,
        what="all deletions are counted",
    )

    # The group is empty from now on. Meanwhile shards move to other coordinators and back.
    for member in members:
        member.close()
    coordinators[-1].stop()
    coordinators[-1].start()
    wait_until(lambda: sum(count_share_partitions(coordinators)) == 0, seconds=400, what="the group expires")
    wait_until(
        lambda: sum_expired(coordinators, "group_empty") == PARTITIONS,
        seconds=120,
        what="all deletions are counted",
    )
    # No single coordinator owns all state of the group, so none of them deletes the empty group.
    tool = ShareGroupTool(rig.brokers[0].jars, rig.brokers[0].bootstrap)
    assert "workers" in tool.list()
    for coordinator, before in zip(coordinators, failures, strict=True):
        assert read_metric(coordinator, "share_coordinator_expiry_failures_total") <= before, (
            coordinator.process.log.read_text()
        )
