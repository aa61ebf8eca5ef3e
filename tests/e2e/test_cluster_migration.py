"""Migrate three brokers that have used share groups to three coordinators (mode B in docs/routing.md).

The topic `__share_group_state` still exists, so the brokers send requests to its partition leaders without
FindCoordinator. Most requests reach a coordinator that does not own the share-partition, which forwards them.
tests/e2e/test_expiry_replicas.py has a cluster that never had the topic (mode A).
"""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.delivery_recorder import (
    LONG_RECORD_LOCK,
    DeliveryRecorder,
    consume_in_thread,
    consume_rest,
    new_topic,
    produce_records,
)
from tests.e2e.test_migration import (
    KAFKAS_OWN,
    OURS,
    advertise_inter_broker_port,
    reject_or_accept_late,
    run_migrate,
)
from tests.kafka import (
    RELEASES,
    Broker,
    CoordinatorProcess,
    HAProxy,
    KafkaClient,
    KafkaJars,
    fetch_jars,
    free_ports,
    wait_until,
)
from tests.kafka.broker import new_cluster
from tests.kafka.rig import ReplicatedRig, end_of_logs

pytestmark = [pytest.mark.broker, pytest.mark.slow]

# The shards of these partitions are consecutive, so that several coordinators own them.
PARTITIONS = 24
RECORDS = 10
SMALL_COMMITS = {"max.poll.records": "20"}
# A long session timeout: no coordinator fails in this test, and a slow coordinator must stay a member.
SETTINGS = {"session.timeout.ms": "30000", "heartbeat.interval.ms": "500"}
# After this time without a response, Kafka's group coordinator repeats an InitializeShareGroupState. On the
# second request, Kafka's share coordinator deletes the progress since the first request
# (docs/differences.md). The interval of other tests is too short for a busy machine.
BROKER_SETTINGS = {"group.share.initialize.retry.interval.ms": "120000"}


def read_metric(coordinator: CoordinatorProcess, name: str, **labels: str) -> float:
    """Return the sum of the samples of a metric family that have these labels."""
    status, body = coordinator.get("/metrics")
    assert status == 200
    samples = (each for family in text_string_to_metric_families(body.decode()) for each in family.samples)
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


def metric_by_coordinator(rig: ReplicatedRig, name: str, **labels: str) -> list[float]:
    return [read_metric(coordinator, name, **labels) for coordinator in rig.coordinators]


def start_coordinators(rig: ReplicatedRig) -> None:
    """Start the coordinators, and wait until the shards are distributed."""
    for coordinator in rig.coordinators:
        coordinator.process.start()
    for coordinator in rig.coordinators:
        coordinator.process.wait_ready(lambda one=coordinator: one.get("/readyz")[0] == 200, seconds=120)
    wait_until(
        lambda: set(metric_by_coordinator(rig, "share_coordinator_shards", state="active")) <= {16.0, 17.0},
        seconds=120,
        what="every coordinator owns shards",
    )


@contextmanager
def migration_rig(jars: KafkaJars, directory: Path) -> Iterator[ReplicatedRig]:
    """Start three brokers with their own share coordinators, and HAProxies.

    The coordinators of this project are not started.
    """
    with ExitStack() as stack:
        cluster = new_cluster(brokers=3)
        brokers, haproxies, coordinators = [], [], []
        for member in cluster.members:
            own = directory / f"broker-{member.node_id}"
            own.mkdir()
            broker = Broker(jars, own, cluster=cluster, node_id=member.node_id, overrides=BROKER_SETTINGS)
            broker.process.command += ["--override", "share.coordinator.state.topic.replication.factor=3"]
            stack.callback(broker.kill)
            broker.process.start()
            port, coordinator_port, http_port = free_ports(3)
            # Coordinators reach each other at the same address as brokers: through HAProxy.
            coordinator = CoordinatorProcess(
                own,
                port=coordinator_port,
                http_port=http_port,
                advertised_port=port,
                log="kafka",
                settings={
                    "bootstrap.servers": cluster.bootstrap,
                    "ownership": "group",
                    "broker.id": str(member.node_id),
                    **SETTINGS,
                },
            )
            haproxy = HAProxy(
                own, port=port, broker_port=broker.internal_port, coordinator_port=coordinator_port
            )
            stack.callback(coordinator.kill)
            stack.callback(haproxy.kill)
            haproxy.start()
            brokers.append(broker)
            haproxies.append(haproxy)
            coordinators.append(coordinator)
        for broker in brokers:
            broker.wait_ready()
        client = KafkaClient(jars, brokers[0].bootstrap, directory)
        stack.callback(client.close)
        rig = ReplicatedRig(brokers, client, haproxies, coordinators)
        try:
            yield rig
        except AssertionError:
            sys.stderr.write(end_of_logs(rig))
            raise


def migrate_to_our_topic(rig: ReplicatedRig, recorder: DeliveryRecorder) -> None:
    """Migrate the state. Check that the source has state of each partition with acknowledged records."""
    done = run_migrate(rig.brokers[0], KAFKAS_OWN, OURS, "--execute")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["verified"], report["counts"]["copy"]) == (True, PARTITIONS)
    acknowledged = {partition for partition, _ in recorder.settled}
    states = [state for group in report["groups"] for state in group["partitions"]]
    initial = [state for state in states if state["start_offset"] == -1 and state["state_batches"] == 0]
    assert [state for state in initial if state["partition"] in acknowledged] == []


def route_to_our_coordinators(rig: ReplicatedRig) -> None:
    """Restart the brokers with the HAProxy ports as advertised inter-broker listeners."""
    for broker, haproxy in zip(rig.brokers, rig.haproxies, strict=True):
        broker.kill()
        advertise_inter_broker_port(broker, haproxy.port)
    for broker in rig.brokers:
        broker.process.start()
    for broker in rig.brokers:
        broker.wait_ready()


def delete_topic(rig: ReplicatedRig, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    # The tool needs a class that the newest release does not have.
    done = fetch_jars(RELEASES[-2]).run(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", rig.brokers[0].bootstrap, "--delete", "--topic", topic),
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    wait_until(lambda: topic not in rig.client.topics(), seconds=120, what="the topic is gone")


def check_state_without_topic_and_a_broker(rig: ReplicatedRig, group: str, topic: str) -> None:
    """Without the topic, brokers use FindCoordinator, and the state is unchanged.

    HAProxy still accepts connections for the killed broker, whose partitions have new leaders.
    """
    delete_topic(rig, "__share_group_state")
    rig.brokers[1].kill()
    assert consume_rest(rig.client, group, topic, PARTITIONS, end=RECORDS) == []
    # Brokers send FindCoordinator only to running brokers.
    found = metric_by_coordinator(rig, "share_coordinator_rpc_requests_total", api="FindCoordinator")
    assert min(found[0], found[2]) > 0
    assert "__share_group_state" not in rig.client.topics()


@pytest.mark.timeout(1200)
def test_share_group_continues_while_brokers_use_leaders_of_old_topic(
    newest_jars: KafkaJars, tmp_path: Path
) -> None:
    with migration_rig(newest_jars, tmp_path) as rig:
        client, recorder = rig.client, DeliveryRecorder()
        recorder.phase = "with Kafka's own coordinator"
        topic, group, _ = new_topic(client, "moved", partitions=PARTITIONS, settings=LONG_RECORD_LOCK)
        produce_records(client, topic, PARTITIONS, first=0, count=RECORDS)
        consumer = client.share_consumer(group, topic, SMALL_COMMITS)
        recorder.consume_until_acknowledged(
            consumer, reject_or_accept_late, PARTITIONS * RECORDS // 3, seconds=120
        )
        consumer.close()
        assert "__share_group_state" in client.topics()
        assert recorder.violations == []

        migrate_to_our_topic(rig, recorder)
        route_to_our_coordinators(rig)
        start_coordinators(rig)
        recorder.phase = "after the migration"
        consumer = client.share_consumer(group, topic, SMALL_COMMITS)
        recorder.consume_until_acknowledged(
            consumer, reject_or_accept_late, PARTITIONS * RECORDS * 2 // 3, seconds=120
        )
        assert recorder.violations == []
        assert metric_by_coordinator(rig, "share_coordinator_forwarding") == [1.0] * 3
        forwarded = metric_by_coordinator(
            rig, "share_coordinator_forwarded_total", api="WriteShareGroupState", code="NONE"
        )
        assert sum(forwarded) > 0
        # No request was answered with NOT_COORDINATOR, and no broker sent FindCoordinator.
        assert (
            metric_by_coordinator(rig, "share_coordinator_rpc_requests_total", code="NOT_COORDINATOR")
            == [0.0] * 3
        )
        assert (
            metric_by_coordinator(rig, "share_coordinator_rpc_requests_total", api="FindCoordinator")
            == [0.0] * 3
        )
        assert recorder.failed_commits == 0

        # Replace the coordinator with the fewest forwarded requests; other coordinators own its shards
        # meanwhile.
        recorder.phase = "while a coordinator is replaced"
        replaced = rig.coordinators[forwarded.index(min(forwarded))]
        with consume_in_thread(recorder, consumer, reject_or_accept_late):
            replaced.stop()
            replaced.start()
            recorder.wait_until_acknowledged(PARTITIONS * RECORDS, seconds=120)
        consumer.close()
        assert recorder.violations == []

        check_state_without_topic_and_a_broker(rig, group, topic)
        assert all(counts == sorted(set(counts)) for counts in recorder.delivery_counts.values())
