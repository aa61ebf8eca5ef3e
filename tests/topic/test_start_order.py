"""Test coordinators that start before the brokers with their state, and errors that end the wait."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.kafka import wait_until
from tests.kafka.broker import Broker
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import KafkaJars
from tests.topic.groups import SINGLE_REPLICA

pytestmark = pytest.mark.broker

PARTITIONS = "share.coordinator.state.topic.num.partitions"


class WaitingCluster:
    """A broker that is not started yet, and coordinators that use it."""

    def __init__(self, broker: Broker, directory: Path, stack: ExitStack) -> None:
        self.broker = broker
        self._directory = directory
        self._stack = stack

    def coordinator(self, name: str, settings: Mapping[str, str] | None = None) -> CoordinatorProcess:
        """Start a coordinator, and return its process without waiting until the coordinator is ready."""
        common = {"bootstrap.servers": self.broker.bootstrap, "ownership": "group", **SINGLE_REPLICA}
        coordinator = CoordinatorProcess(
            self._directory / name, log="kafka", settings={**common, **(settings or {})}
        )
        self._stack.callback(coordinator.kill)
        coordinator.process.start()
        return coordinator


@pytest.fixture
def waiting_cluster(newest_jars: KafkaJars, tmp_path: Path) -> Iterator[WaitingCluster]:
    broker = Broker(newest_jars, tmp_path)
    with ExitStack() as stack:
        stack.callback(broker.kill)
        yield WaitingCluster(broker, tmp_path, stack)


def has_status(coordinator: CoordinatorProcess, probe: str, status: int) -> bool:
    return coordinator.get(probe)[0] == status


def wait_for_unready(coordinator: CoordinatorProcess) -> None:
    def is_waiting() -> bool:
        status, body = coordinator.get("/readyz")
        return status == 503 and b"since" in body

    wait_until(is_waiting, seconds=120, what="the coordinator reports that it waits")


@pytest.mark.timeout(600)
def test_coordinators_wait_for_brokers_and_one_creates_the_topic(waiting_cluster: WaitingCluster) -> None:
    coordinators = [waiting_cluster.coordinator(name) for name in ("first", "second")]
    for coordinator in coordinators:
        wait_for_unready(coordinator)
        for probe in ("/readyz", "/startupz"):
            status, body = coordinator.get(probe)
            assert status == 503
            reasons = " ".join(json.loads(body)["reasons"])
            assert f"No broker of {waiting_cluster.broker.bootstrap} can be reached" in reasons
            assert "The log cannot be opened since 20" in reasons
        assert coordinator.get("/livez")[0] == 200
    waiting_cluster.broker.start()
    for coordinator in coordinators:
        wait_until(
            partial(has_status, coordinator, "/readyz", 200), seconds=120, what="all shards are served"
        )
        assert coordinator.get("/startupz")[0] == 200
        # The message appears once, although the coordinator retried.
        assert coordinator.process.count_logged("Waiting for the log") == 1
    assert sum(coordinator.process.count_logged("created topic") for coordinator in coordinators) == 1

    wrong = waiting_cluster.coordinator("wrong", {PARTITIONS: "3"})
    wait_until(
        lambda: not wrong.process.running,
        seconds=120,
        what="the coordinator exits because of the partition count",
    )
    (error_line,) = [line for line in wrong.process.log.read_text().splitlines() if "ERROR" in line]
    assert f"{PARTITIONS}=3 cannot be used: it must be 50" in error_line


def test_coordinator_that_waits_for_brokers_stops_quickly(waiting_cluster: WaitingCluster) -> None:
    coordinator = waiting_cluster.coordinator("only")
    wait_for_unready(coordinator)
    coordinator.process.stop(seconds=15)
    assert coordinator.process.count_logged("ERROR") == 0
