"""Test that a coordinator process lists and deletes abandoned state."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.expiry_rig import delete_topic
from tests.e2e.test_cluster_migration import read_metric
from tests.kafka import Broker, CoordinatorProcess, HAProxy, KafkaClient, KafkaJars, free_ports, wait_until
from tests.kafka.broker import new_cluster
from tests.kafka.processes import PROGRAM

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SETTINGS = {
    "share.coordinator.group.state.retention.minutes": "10080",
    "share.coordinator.group.state.missing.grace.minutes": "0",
    # Three intervals are longer than a restart on a busy machine, so checks do not count as interrupted.
    "share.coordinator.group.state.retention.check.interval.ms": "30000",
}


class ExpiryProcessRig:
    """A broker that uses a coordinator process, which has the broker as its bootstrap server."""

    def __init__(self, broker: Broker, client: KafkaClient, coordinator: CoordinatorProcess) -> None:
        self.broker = broker
        self.client = client
        self.coordinator = coordinator

    def consume_and_leave(self, group: str, topic: str) -> None:
        """Join a group, consume a record, and leave."""
        self.client.set_group_config(group, {"share.auto.offset.reset": "earliest"})
        self.client.produce(topic, 1)
        consumer = self.client.share_consumer(group, topic)
        records = wait_until(lambda: consumer.poll(200), seconds=120, what="a record")
        consumer.acknowledge(["ACCEPT"] * len(records))
        consumer.close()

    def expiry(self, *options: str) -> "subprocess.CompletedProcess[str]":
        """Run `share-coordinator expiry`."""
        url = f"http://127.0.0.1:{self.coordinator.http_port}"
        command = [PROGRAM, "expiry", *options, "--url", url]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def rows(self, *options: str) -> list[list[str]]:
        done = self.expiry(*options)
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def rig(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpiryProcessRig]:
    directory = tmp_path_factory.mktemp("expiring-process")
    with ExitStack() as stack:
        port, http_port, haproxy_port = free_ports(3)
        broker = Broker(
            newest_jars, directory, interbroker_port=haproxy_port, cluster=new_cluster(), node_id=1
        )
        coordinator = CoordinatorProcess(
            directory,
            port=port,
            http_port=http_port,
            settings={"bootstrap.servers": broker.bootstrap, **SETTINGS},
        )
        haproxy = HAProxy(
            directory, port=haproxy_port, broker_port=broker.internal_port, coordinator_port=port
        )
        for each in (coordinator, haproxy, broker):
            stack.callback(each.kill)
            each.start()
        client = KafkaClient(newest_jars, broker.bootstrap, directory)
        stack.callback(client.close)
        yield ExpiryProcessRig(broker, client, coordinator)


def test_expiring_state_is_listed_before_and_counted_after(rig: ExpiryProcessRig) -> None:
    for topic in ("orders", "payments"):
        rig.client.create_topic(topic, partitions=3)
    rig.consume_and_leave("workers", "orders")
    rig.consume_and_leave("workers", "payments")
    rig.consume_and_leave("mailers", "orders")

    def list_rows() -> list[list[str]] | None:
        rows = rig.rows()
        return rows if len(rows) == 4 else None

    head, *rows = wait_until(list_rows, seconds=120, what="the coordinator reports both groups as empty")
    assert head == ["GROUP", "TOPIC", "PARTITIONS", "REASON", "EMPTY-SINCE", "EXPIRES-AT", "STATUS"]
    assert sorted(row[:4] for row in rows) == [
        ["mailers", "orders", "0-2", "group_empty"],
        ["workers", "orders", "0-2", "group_empty"],
        ["workers", "payments", "0-2", "group_empty"],
    ]
    assert {row[6] for row in rows} == {"later"}

    # A kill -9 between two checks does not change the time since which the groups are empty.
    rig.coordinator.kill()
    rig.coordinator.start()
    assert sorted(wait_until(list_rows, seconds=120, what="both groups are reported again")[1:]) == sorted(
        rows
    )

    delete_topic(rig.broker, rig.client, "payments")
    name = "share_coordinator_expired_share_partitions_total"
    wait_until(
        lambda: read_metric(rig.coordinator, name, reason="topic_deleted") == 3,
        seconds=120,
        what="the state of the topic is deleted",
    )
    assert sorted(rig.rows()[1:]) == sorted(row for row in rows if row[1] == "orders")
    assert read_metric(rig.coordinator, "share_coordinator_expiry_failures_total") == 0
    assert (
        read_metric(rig.coordinator, "share_coordinator_expiry_last_round_timestamp_seconds") > 1_700_000_000
    )
