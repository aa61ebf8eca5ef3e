"""Test three coordinators of a cluster that never had Kafka's state topic (mode A in docs/routing.md).

They delete each abandoned state exactly once, and forward nothing.
"""

from collections.abc import Iterator

import pytest

from protocol.messages import find_coordinator
from protocol.state_records import SharePartitionKey, parse_topic_id
from tests.e2e.delivery_recorder import DeliveryRecorder, new_topic, produce_records
from tests.e2e.expiry_rig import delete_topic
from tests.e2e.test_cluster_migration import RECORDS, SMALL_COMMITS, metric_by_coordinator, read_metric
from tests.e2e.test_migration import reject_or_accept_late
from tests.kafka import CoordinatorProcess, KafkaJars, ShareConsumer, ShareGroupTool, wait_until
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


@pytest.fixture(scope="module")
def rig(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedRig]:
    with replicated_rig(newest_jars, tmp_path_factory.mktemp("replicated"), SETTINGS) as rig:
        start_coordinators(*rig.coordinators)
        yield rig


def start_coordinators(*coordinators: CoordinatorProcess) -> None:
    for coordinator in coordinators:
        coordinator.process.start()
    for coordinator in coordinators:
        coordinator.process.wait_ready(lambda each=coordinator: each.get("/readyz")[0] == 200, seconds=120)


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
    # The brokers may have been loading their groups at the first requests of the coordinators.
    failures = [read_metric(each, "share_coordinator_expiry_failures_total") for each in coordinators]

    delete_topic(rig.brokers[0], rig.client, "deleted")
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
    start_coordinators(coordinators[-1])
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


@pytest.mark.timeout(1200)
def test_coordinators_forward_nothing_if_brokers_use_find_coordinator(rig: ReplicatedRig) -> None:
    client, recorder = rig.client, DeliveryRecorder()
    topic, group, topic_id = new_topic(client, "asked-for", partitions=PARTITIONS)
    produce_records(client, topic, PARTITIONS, first=0, count=RECORDS)
    consumer = client.share_consumer(group, topic, SMALL_COMMITS)
    recorder.consume_until_acknowledged(consumer, reject_or_accept_late, PARTITIONS * RECORDS, seconds=120)
    consumer.close()

    assert recorder.violations == []
    assert metric_by_coordinator(rig, "share_coordinator_forwarding") == [0.0] * 3
    assert metric_by_coordinator(rig, "share_coordinator_forwarded_total") == [0.0] * 3
    assert min(metric_by_coordinator(rig, "share_coordinator_rpc_requests_total", api="FindCoordinator")) > 0
    keys = [str(SharePartitionKey(group, parse_topic_id(topic_id), p)) for p in range(50)]
    request = find_coordinator.FindCoordinatorRequest(key_type=2, coordinator_keys=keys)
    answers = [send_request(one.port, find_coordinator, 6, request) for one in rig.coordinators]
    assert answers[0] == answers[1] == answers[2]
    ports = {found.port for found in answers[0].coordinators}
    assert ports == {coordinator.port for coordinator in rig.coordinators}
    assert "__share_group_state" not in client.topics()
