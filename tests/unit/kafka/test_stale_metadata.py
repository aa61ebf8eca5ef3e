"""Metadata when brokers disagree: a broker without a connection to the controller reports old leaders."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest

from coordinator.cluster.kafka.brokers import Brokers
from coordinator.cluster.kafka.metadata import ClusterMetadata, PartitionMetadata
from coordinator.errors import LogUnavailable
from protocol.messages import metadata
from tests.kafka_in_memory.broker import Broker
from tests.simulation.kafka.brokers import BrokerFaults, SimBrokers
from tests.simulation.kafka.connections import BrokerNetwork, connect_to_brokers
from tests.simulation.loop import SimLoop, run
from tests.unit.coroutine_tests import wait_until

OLD, NEW, RECREATED = (PartitionMetadata(0, *leader) for leader in ((1, 4), (2, 5), (3, 0)))
NEW_TOPIC_ID = b"\2" * 16
DEADLINE_S = 30.0

Scenario = Callable[[Brokers, SimBrokers, BrokerNetwork], Awaitable[None]]


def run_with_reported_leaders(
    scenario: Scenario,
    *reported: PartitionMetadata,
    newest_version: int = metadata.MAX_VERSION,
    silent: Sequence[int] = (),
    timeout_s: float = 5.0,
) -> None:
    """Run a scenario with brokers that each report the given leader of partition 0, and with a client."""

    async def connect_and_run_scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        fleet = SimBrokers(loop, Random(3), BrokerFaults(), nodes=len(reported), partitions=1)
        for node, leader in enumerate(reported, 1):
            fleet.set_reported_leader(node, leader)
        network = connect_to_brokers(fleet, timeout_s)
        network.served_by = {
            node: Broker(node, fleet, newest={metadata.API_KEY: newest_version}) for node in fleet.nodes
        }
        # Silent brokers are the last bootstrap servers, because the first one must answer.
        order = sorted(fleet.nodes, key=lambda node: node in silent)
        servers = ",".join(f"broker-{node}:9092" for node in order)
        fleet.silent = set(silent)
        brokers = Brokers(servers, fleet.topic, request_timeout_s=timeout_s)
        try:
            await brokers.connect()
            await scenario(brokers, fleet, network)
        finally:
            await brokers.close()

    run(connect_and_run_scenario())


async def refresh_from(node: int, brokers: Brokers, network: BrokerNetwork) -> None:
    """Refresh the metadata, and wait until this broker has received the request."""
    requests = network.served_by[node].requests
    asked = requests[metadata.API_KEY]
    brokers.refresh_soon()
    await wait_until(lambda: requests[metadata.API_KEY] > asked)


def test_stale_broker_does_not_hide_the_newest_leader() -> None:
    async def run_test(brokers: Brokers, fleet: SimBrokers, network: BrokerNetwork) -> None:
        for _ in range(20):
            await refresh_from(1, brokers, network)
            await wait_until(lambda: brokers.leader(0) == 2)
        # Requests that any broker may answer are not sent to the stale broker first.
        assert brokers._connections.metadata.nodes_best_first()[0] != 1

    run_with_reported_leaders(run_test, OLD, NEW, NEW)


def test_new_leader_is_found_although_a_stale_broker_answered_last() -> None:
    async def run_test(brokers: Brokers, fleet: SimBrokers, network: BrokerNetwork) -> None:
        assert brokers.leader(0) == 1
        for node in (2, 3):
            fleet.set_reported_leader(node, NEW)
        brokers.refresh_soon()
        await wait_until(lambda: brokers.leader(0) == 2)

    run_with_reported_leaders(run_test, OLD, OLD, OLD)


def test_newest_leader_is_found_although_most_brokers_are_stale() -> None:
    async def run_test(brokers: Brokers, fleet: SimBrokers, network: BrokerNetwork) -> None:
        def refresh_and_check_leader() -> bool:
            brokers.refresh_soon()
            return brokers.leader(0) == 2

        await wait_until(refresh_and_check_leader)

    run_with_reported_leaders(run_test, OLD, OLD, OLD, OLD, OLD, NEW, OLD)


def test_silent_broker_does_not_delay_a_refresh() -> None:
    async def run_test(brokers: Brokers, fleet: SimBrokers, network: BrokerNetwork) -> None:
        async with asyncio.timeout(DEADLINE_S / 2):
            for _ in range(5):
                await brokers._connections.refresh()
        assert brokers.leader(0) == 2

    run_with_reported_leaders(run_test, OLD, NEW, NEW, silent=[1], timeout_s=DEADLINE_S)


@pytest.mark.parametrize("stale_node", [1, 2, 3])
def test_topic_is_not_used_if_most_brokers_report_another_topic_id(stale_node: int) -> None:
    async def run_test(brokers: Brokers, fleet: SimBrokers, network: BrokerNetwork) -> None:
        brokers.pin_topic_id()
        assert brokers.recreated_reason() is None
        for node in {1, 2, 3} - {stale_node}:
            fleet.set_reported_leader(node, RECREATED, NEW_TOPIC_ID)
        brokers.refresh_soon()
        await wait_until(lambda: brokers.recreated_reason() is not None)
        reason = brokers.recreated_reason() or ""
        assert reason.startswith(f"Topic {fleet.topic} was deleted and created again: its topic id was ")
        assert "Restart this process" in reason
        assert "\n" not in reason
        assert brokers.leader(0) == 1, "the leaders of the new topic are not those of the old one"

    run_with_reported_leaders(run_test, OLD, OLD, OLD)


@pytest.mark.parametrize("stale_node", [1, 2, 3])
def test_stale_broker_does_not_make_a_topic_look_recreated(stale_node: int) -> None:
    """A coordinator that starts after the topic was created again also receives the old topic id."""

    async def run_test(brokers: Brokers, fleet: SimBrokers, network: BrokerNetwork) -> None:
        fleet.set_reported_leader(stale_node, OLD, NEW_TOPIC_ID)
        restarted = Brokers("broker-1:9092,broker-2:9092,broker-3:9092", fleet.topic, request_timeout_s=5.0)
        await restarted.connect()
        assert restarted.pin_topic_id() == fleet.topic_id
        await refresh_from(stale_node, restarted, network)
        assert restarted.recreated_reason() is None
        assert restarted.leader(0) == 3
        await restarted.close()

    run_with_reported_leaders(run_test, RECREATED, RECREATED, RECREATED)


def test_broker_below_kafka_4_1_is_refused_with_the_reason() -> None:
    async def run_test(brokers: Brokers, fleet: SimBrokers, network: BrokerNetwork) -> None:
        pytest.fail("the broker is used")

    with pytest.raises(LogUnavailable, match=r"MetadataRequest. is not among versions"):
        run_with_reported_leaders(run_test, NEW, newest_version=11)


def test_refreshes_continue_after_an_unexpected_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run_test(brokers: Brokers, fleet: SimBrokers, network: BrokerNetwork) -> None:
        refresh = brokers._connections.metadata.refresh

        async def fail_once(**options: bool) -> list[ClusterMetadata]:
            monkeypatch.setattr(brokers._connections.metadata, "refresh", refresh)
            raise RuntimeError("a defect")

        monkeypatch.setattr(brokers._connections.metadata, "refresh", fail_once)
        fleet.set_reported_leader(1, NEW)
        brokers.refresh_soon()
        await asyncio.sleep(0.05)
        assert brokers.leader(0) == OLD.leader
        brokers.refresh_soon()
        await wait_until(lambda: brokers.leader(0) == NEW.leader)
        assert "a defect" in caplog.text

    run_with_reported_leaders(run_test, OLD)
