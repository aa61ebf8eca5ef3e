"""Test that each share-group alert fires in a real Prometheus when real consumers cause its problem."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from tests.deploy.prometheus import PrometheusServer
from tests.kafka.jars import KafkaJars
from tests.kafka.observer import ObserverProcess
from tests.kafka.processes import wait_until
from tests.kafka.rig import BuiltInRig, built_in_rig

pytestmark = [pytest.mark.broker, pytest.mark.needs("prometheus")]

RECORDS = 150
DELIVERIES = 5
# The maximum number of seconds until an alert fires. On an idle machine, "stuck" fires after about 65 s: the
# monitor checks every 5 s, and the problem must last 60 s.
FIRES_S = 400


class Rig:
    """A broker with its own share coordinator, an observer, and a Prometheus that scrapes the observer."""

    def __init__(self, kafka: BuiltInRig, prometheus: PrometheusServer) -> None:
        self.kafka = kafka
        self._prometheus = prometheus

    def fires(self, alert: str, group: str) -> bool:
        expression = f'ALERTS{{alertname="{alert}", group="{group}", alertstate="firing"}}'
        return bool(self._prometheus.query(expression))

    def wait_fires(self, alert: str, group: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        def fired() -> bool:
            meanwhile()
            return self.fires(alert, group)

        wait_until(fired, seconds=FIRES_S, what=f"{alert} fires for {group}")

    def new_group(self, name: str, records: int) -> None:
        """Create a topic with records and a group of the same name that reads it from the start."""
        self.kafka.client.create_topic(name)
        self.kafka.client.set_group_config(name, {"share.auto.offset.reset": "earliest"})
        self.kafka.client.produce(name, records)


@pytest.fixture(scope="module")
def rig(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("share-group-alerts")
    with built_in_rig(newest_jars, directory) as kafka:
        observer = ObserverProcess(directory, kafka.broker.bootstrap)
        observer.process.start()
        prometheus = PrometheusServer(directory, [], observers=[f"127.0.0.1:{observer.http_port}"])
        _fire_at_once(directory / "alerts.yml")
        try:
            prometheus.start()
            yield Rig(kafka, prometheus)
        finally:
            prometheus.kill()
            observer.kill()


def _fire_at_once(alerts: Path) -> None:
    """Remove the `for` durations, which the unit tests of the rules cover."""
    rules = yaml.safe_load(alerts.read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    alerts.write_text(yaml.safe_dump(rules))


@pytest.fixture(scope="module", autouse=True)
def unacknowledged_record(rig: Rig) -> Iterator[None]:
    """A consumer that never accepts the first record of its group while the other tests run."""
    rig.new_group("hanging", 20)
    with closing(rig.kafka.client.share_consumer("hanging", "hanging")) as consumer:
        records = wait_until(consumer.poll, seconds=120, what="records are delivered")
        consumer.settle(["RELEASE", *["ACCEPT"] * (len(records) - 1)])
        yield


def test_releasing_all_records_raises_outage_then_poison_records(rig: Rig) -> None:
    rig.new_group("failing", RECORDS)
    with closing(rig.kafka.client.share_consumer("failing", "failing")) as consumer:
        deliveries = dict.fromkeys(range(RECORDS), 0)

        def release_all() -> None:
            if min(deliveries.values()) == DELIVERIES - 1:
                return
            records = consumer.poll()
            for record in records:
                deliveries[record.offset] += 1
            consumer.settle(["RELEASE"] * len(records))

        rig.wait_fires("ShareGroupOutage", "failing", release_all)
        # The consumer stops polling, so the outage ends, and each record has one delivery left.
        rig.wait_fires("ShareGroupPoisonRecords", "failing", release_all)


def test_group_without_members_raises_without_consumers(rig: Rig) -> None:
    rig.new_group("abandoned", 10)
    consumer = rig.kafka.client.share_consumer("abandoned", "abandoned")
    records = wait_until(consumer.poll, seconds=120, what="records are delivered")
    consumer.settle(["ACCEPT"] * len(records))
    consumer.close()
    rig.kafka.client.produce("abandoned", 10, first=10)
    rig.wait_fires("ShareGroupWithoutConsumers", "abandoned")


def test_deletion_of_undelivered_records_raises_records_lost(rig: Rig) -> None:
    rig.new_group("slow", 10)
    consumer = rig.kafka.client.share_consumer("slow", "slow")
    records = wait_until(consumer.poll, seconds=120, what="records are delivered")
    consumer.settle(["ACCEPT"] * len(records))
    consumer.close()
    rig.kafka.client.produce("slow", 20, first=10)
    # Delete records, which advances the log start offset, as retention does.
    asyncio.run(_delete_records(rig.kafka.broker.bootstrap, "slow", before_offset=25))
    with closing(rig.kafka.client.share_consumer("slow", "slow")) as consumer:

        def accept_all() -> None:
            consumer.settle(["ACCEPT"] * len(consumer.poll()))

        rig.wait_fires("ShareGroupRecordsLost", "slow", accept_all)


def test_member_that_keeps_its_records_raises_stuck(rig: Rig) -> None:
    rig.wait_fires("ShareGroupStuck", "hanging")


async def _delete_records(bootstrap: str, topic: str, before_offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset)})
    finally:
        await admin.close()
