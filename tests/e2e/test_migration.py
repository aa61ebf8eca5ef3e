"""Migrate the state of an idle share group to this coordinator, and back to Kafka's own coordinator.

The broker begins with its built-in share coordinator. Then the state is migrated, and the broker restarts
with its inter-broker listener advertised at HAProxy. Later the test migrates back. After each migration,
accepted and rejected records must not be delivered again, and released records have the next delivery count.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.delivery_recorder import (
    LONG_RECORD_LOCK,
    DeliveryRecorder,
    consume_rest,
    new_topic,
    produce_records,
)
from tests.kafka import (
    RELEASES,
    Broker,
    BuiltInRig,
    CoordinatorProcess,
    Delivery,
    HAProxy,
    fetch_jars,
    free_ports,
)
from tests.kafka.processes import PROGRAM
from tests.kafka.rig import built_in_rig, end_of_logs

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KAFKAS_OWN = "kafka:__share_group_state"
OURS = "kafka:_share-coordinator-state"
ONE_COPY = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
RECORDS = 60


def advertise_inter_broker_port(broker: Broker, port: int) -> None:
    """Change the advertised inter-broker address of a broker, which is not running."""
    command = broker.process.command
    (at,) = (at for at, argument in enumerate(command) if argument.startswith("advertised.listeners="))
    command[at] = re.sub(r"INTERNAL://[^,]*", f"INTERNAL://127.0.0.1:{port}", command[at])


def run_migrate(
    broker: Broker, source: str, target: str, *options: str
) -> "subprocess.CompletedProcess[str]":
    """Run `share-coordinator migrate` with topics of the broker's cluster."""
    places = ("--from", source, "--to", target, "--bootstrap-servers", broker.bootstrap)
    return subprocess.run(
        [PROGRAM, "migrate", *places, "-o", "json", *options], capture_output=True, text=True, timeout=120
    )


class MigrationRig:
    """A broker that uses either its own share coordinator or this coordinator."""

    def __init__(self, stack: ExitStack, rig: BuiltInRig, directory: Path, place: str) -> None:
        self.rig = rig
        self.place = place
        port, coordinator_port, http_port = free_ports(3)
        self.coordinator = CoordinatorProcess(
            directory,
            port=coordinator_port,
            http_port=http_port,
            log="kafka" if place == OURS else "journal",
            settings={"bootstrap.servers": rig.broker.bootstrap, **ONE_COPY} if place == OURS else {},
        )
        self.haproxy = HAProxy(
            directory, port=port, broker_port=rig.broker.internal_port, coordinator_port=coordinator_port
        )
        stack.callback(self.coordinator.kill)
        stack.callback(self.haproxy.kill)

    def route_to_our_coordinator(self) -> None:
        self.haproxy.start()
        self._restart_broker(self.haproxy.port)
        self.coordinator.start()

    def route_to_kafkas_coordinator(self) -> None:
        self.coordinator.stop()
        self._restart_broker(self.rig.broker.internal_port)

    def _restart_broker(self, interbroker_port: int) -> None:
        """Restart the broker with another advertised inter-broker address."""
        self.rig.broker.stop()
        advertise_inter_broker_port(self.rig.broker, interbroker_port)
        self.rig.broker.start()

    def migrate(self, source: str, target: str, *options: str) -> "subprocess.CompletedProcess[str]":
        """Run `share-coordinator migrate`; a topic of this project has only one replica."""
        settings = [f"--set={name}={value}" for name, value in ONE_COPY.items()]
        return run_migrate(
            self.rig.broker, source, target, *(settings if OURS in (source, target) else ()), *options
        )

    def migrate_successfully(self, source: str, target: str, *options: str) -> dict[str, Any]:
        """Migrate, which must succeed, and return the report."""
        done = self.migrate(source, target, *options)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        report: dict[str, Any] = json.loads(done.stdout)
        return report


@contextmanager
def migration_rig(release: str, place: str, directory: Path) -> Iterator[MigrationRig]:
    with ExitStack() as stack:
        rig = stack.enter_context(built_in_rig(fetch_jars(release), directory))
        try:
            yield MigrationRig(stack, rig, directory, place)
        except AssertionError:
            sys.stderr.write(end_of_logs(rig))
            raise


def reject_or_accept_late(delivery: Delivery) -> str:
    """Reject one record in ten; accept one third of the others at each of three deliveries."""
    if delivery.offset % 10 == 7:
        return "REJECT"
    return "ACCEPT" if delivery.delivery_count > delivery.offset % 3 else "RELEASE"


def consume_some(rig: MigrationRig, recorder: DeliveryRecorder, group: str, topic: str, settled: int) -> None:
    """Consume until `settled` records are acknowledged, and leave the group."""
    consumer = rig.rig.client.share_consumer(group, topic, {"max.poll.records": "5"})
    recorder.consume_until_acknowledged(consumer, reject_or_accept_late, settled, seconds=120)
    consumer.close()


# Test the oldest and the newest release, and both kinds of log (journal and topic). The release and the log
# are independent, so two combinations suffice. tests/topic tests migration without consumers for every
# release.
@pytest.mark.parametrize(("release", "place"), [(RELEASES[0], "journal"), (RELEASES[-1], OURS)])
def test_share_group_continues_after_migration_and_migration_back(
    release: str, place: str, tmp_path: Path
) -> None:
    with migration_rig(release, place, tmp_path) as moving:
        ours = f"journal:{moving.coordinator.data}" if place == "journal" else place
        client = moving.rig.client
        topic, group, topic_id = new_topic(client, "moved", partitions=2, settings=LONG_RECORD_LOCK)
        produce_records(client, topic, 2, first=0, count=RECORDS // 2)
        recorder = DeliveryRecorder()
        consume_some(moving, recorder, group, topic, RECORDS // 3)

        report = moving.migrate_successfully(KAFKAS_OWN, ours)
        assert (report["executed"], report["counts"]["copy"]) == (False, 2)
        report = moving.migrate_successfully(KAFKAS_OWN, ours, "--execute")
        assert (report["verified"], report["counts"]["copy"]) == (True, 2)
        moving.route_to_our_coordinator()
        consume_some(moving, recorder, group, topic, 2 * RECORDS // 3)
        shown = [moving.coordinator.share_partition(group, topic_id, partition) for partition in range(2)]
        assert all(shown), "the broker did not use this coordinator"

        moving.route_to_kafkas_coordinator()
        refused = moving.migrate(ours, KAFKAS_OWN, "--execute")
        assert refused.returncode == 1
        assert "the target has state that differs from the source: 2 share-partitions" in refused.stderr
        report = moving.migrate_successfully(ours, KAFKAS_OWN, "--execute", "--replace")
        assert (report["verified"], report["counts"]["replace"]) == (True, 2)
        assert moving.migrate_successfully(ours, KAFKAS_OWN)["counts"]["already there"] == 2
        consume_some(moving, recorder, group, topic, RECORDS)

        assert consume_rest(client, group, topic, 2, end=RECORDS // 2) == []
        assert recorder.violations == []
        for (_, offset), counts in recorder.delivery_counts.items():
            expected = 1 if offset % 10 == 7 else 1 + offset % 3
            assert counts == list(range(1, expected + 1)), f"offset {offset}"
