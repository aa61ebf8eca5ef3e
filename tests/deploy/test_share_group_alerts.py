"""Test that each share-group alert fires in a real Prometheus when real consumers cause its problem.

Two systems have the same problems at the same time: an observer of Kafka's own share coordinator, and this
coordinator.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import yaml

from tests.deploy.prometheus import PrometheusServer
from tests.kafka.client import ShareConsumer
from tests.kafka.jars import KafkaJars
from tests.kafka.log_start import delete_records
from tests.kafka.observer import ObserverProcess
from tests.kafka.processes import wait_until
from tests.kafka.rig import BuiltInRig, built_in_rig, standalone_rig

pytestmark = [pytest.mark.broker, pytest.mark.needs("prometheus")]

RECORDS = 150
DELIVERIES = 5
# The maximum number of seconds until an alert fires. On an idle machine, "stuck" fires after about 65 s: the
# monitor checks every 5 s, and the problem must last 60 s.
FIRES_S = 400


class MonitoredSystem:
    """A broker, and the process that Prometheus scrapes as `job` about its share groups."""

    def __init__(self, kafka: BuiltInRig, prometheus: PrometheusServer, job: str) -> None:
        self.kafka = kafka
        self._prometheus = prometheus
        self._job = job

    def is_alert_firing(self, alert: str, group: str) -> bool:
        labels = f'alertname="{alert}", group="{group}", job="{self._job}", alertstate="firing"'
        return bool(self._prometheus.query(f"ALERTS{{{labels}}}"))

    def has_lag(self, group: str) -> bool:
        """Return whether the group has a lag."""
        labels = f'group="{group}", job="{self._job}"'
        return bool(self._prometheus.query(f"share_coordinator_share_group_lag_records{{{labels}}} > 0"))

    def create_group(self, name: str, records: int) -> None:
        """Create a topic with records and a group of the same name that reads it from the start."""
        self.kafka.client.create_topic(name)
        self.kafka.client.set_group_config(name, {"share.auto.offset.reset": "earliest"})
        self.kafka.client.produce(name, records)

    def share_consumer(self, group: str) -> ShareConsumer:
        return self.kafka.client.share_consumer(group, group)

    def accept_first_records(self, group: str) -> None:
        """Accept the records of one poll."""
        with closing(self.share_consumer(group)) as consumer:
            records = wait_until(consumer.poll, seconds=120, what="records are delivered")
            consumer.acknowledge(["ACCEPT"] * len(records))


def wait_for_alert(
    systems: list[MonitoredSystem],
    alert: str,
    group: str,
    meanwhile: Callable[[MonitoredSystem], object] = lambda system: None,
) -> None:
    """Wait until Prometheus reports the alert as firing for the group of each system."""
    waiting = list(systems)

    def is_firing() -> bool:
        for system in list(waiting):
            meanwhile(system)
            if system.is_alert_firing(alert, group):
                waiting.remove(system)
        return not waiting

    wait_until(is_firing, seconds=FIRES_S, what=f"{alert} fires for {group}")


@pytest.fixture(scope="module")
def systems(
    newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[MonitoredSystem]]:
    directory = tmp_path_factory.mktemp("share-group-alerts")
    folders = directory / "observed", directory / "served"
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack:
        observed = stack.enter_context(built_in_rig(newest_jars, folders[0]))
        served = stack.enter_context(standalone_rig(newest_jars, folders[1], with_cluster=True))
        observer = ObserverProcess(directory, observed.broker.bootstrap)
        stack.callback(observer.kill)
        observer.process.start()
        prometheus = PrometheusServer(
            directory,
            [f"127.0.0.1:{served.coordinator.http_port}"],
            observers=[f"127.0.0.1:{observer.http_port}"],
        )
        _remove_alert_delays(directory / "alerts.yml")
        stack.callback(prometheus.kill)
        prometheus.start()
        yield [
            MonitoredSystem(observed, prometheus, "share-coordinator-observer"),
            MonitoredSystem(served, prometheus, "share-coordinator"),
        ]


def _remove_alert_delays(alerts: Path) -> None:
    """Remove the `for` durations, which the unit tests of the rules cover."""
    rules = yaml.safe_load(alerts.read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    alerts.write_text(yaml.safe_dump(rules))


@pytest.fixture(scope="module", autouse=True)
def unacknowledged_record(systems: list[MonitoredSystem]) -> Iterator[None]:
    """A consumer that never accepts the first record of its group while the other tests run."""
    with ExitStack() as stack:
        for system in systems:
            system.create_group("hanging", 20)
            consumer = stack.enter_context(closing(system.share_consumer("hanging")))
            records = wait_until(consumer.poll, seconds=120, what="records are delivered")
            consumer.acknowledge(["RELEASE", *["ACCEPT"] * (len(records) - 1)])
        yield


def test_releasing_all_records_raises_outage_then_poison_records(systems: list[MonitoredSystem]) -> None:
    with ExitStack() as stack:
        consumers, deliveries = {}, {}
        for system in systems:
            system.create_group("failing", RECORDS)
            consumers[system] = stack.enter_context(closing(system.share_consumer("failing")))
            deliveries[system] = dict.fromkeys(range(RECORDS), 0)

        def release_all(system: MonitoredSystem) -> None:
            if min(deliveries[system].values()) == DELIVERIES - 1:
                return
            records = consumers[system].poll()
            for record in records:
                deliveries[system][record.offset] += 1
            consumers[system].acknowledge(["RELEASE"] * len(records))

        wait_for_alert(systems, "ShareGroupOutage", "failing", release_all)
        # The consumers stop polling, so the outage ends, and each record has one delivery left.
        wait_for_alert(systems, "ShareGroupPoisonRecords", "failing", release_all)


def test_group_without_members_raises_without_consumers(systems: list[MonitoredSystem]) -> None:
    for system in systems:
        system.create_group("abandoned", 10)
        system.accept_first_records("abandoned")
        system.kafka.client.produce("abandoned", 10, first=10)
    wait_for_alert(systems, "ShareGroupWithoutConsumers", "abandoned")


def test_deletion_of_undelivered_records_raises_records_lost(systems: list[MonitoredSystem]) -> None:
    with ExitStack() as stack:
        consumers = {}
        for system in systems:
            system.create_group("slow", 10)
            system.accept_first_records("slow")
            system.kafka.client.produce("slow", 20, first=10)
        # A coordinator compares states 5 s apart, so it must have seen the group before it can lose records.
        wait_until(
            lambda: all(system.has_lag("slow") for system in systems),
            seconds=FIRES_S,
            what="the group has a lag",
        )
        for system in systems:
            # Delete records, which advances the log start offset, as retention does.
            delete_records(system.kafka.broker.bootstrap, "slow", before_offset=25)
            consumers[system] = stack.enter_context(closing(system.share_consumer("slow")))

        def accept_records(system: MonitoredSystem) -> None:
            consumers[system].acknowledge(["ACCEPT"] * len(consumers[system].poll()))

        wait_for_alert(systems, "ShareGroupRecordsLost", "slow", accept_records)


def test_member_that_keeps_its_records_raises_stuck(systems: list[MonitoredSystem]) -> None:
    wait_for_alert(systems, "ShareGroupStuck", "hanging")
