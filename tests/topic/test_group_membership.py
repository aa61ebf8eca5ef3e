"""Test coordinators in a group of a real Kafka with the scenarios of the in-memory group."""

import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kafka.broker import Broker, new_cluster
from tests.kafka.jars import KafkaJars
from tests.kafka.rig import BuiltInRig, start_brokers
from tests.topic.groups import LIMITS, PATIENT, run_replica_group
from tests.unit.ownership.replicas import ReplicaGroup, listener_generation
from tests.unit.ownership.scenarios import (
    SCENARIOS,
    Scenario,
    killed_replica_is_replaced,
)

pytestmark = [pytest.mark.broker, pytest.mark.slow]

# Only this scenario waits until a session expires.
SESSION_SCENARIO = killed_replica_is_replaced
SESSION_SCENARIO_MAX_S = 2 * LIMITS.session_timeout_s


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_scenario_ends_within_its_time_limit(built_in: BuiltInRig, scenario: Scenario) -> None:
    limits, bound_s = (
        (LIMITS, SESSION_SCENARIO_MAX_S)
        if scenario is SESSION_SCENARIO
        else (PATIENT, PATIENT.session_timeout_s)
    )
    async with run_replica_group(built_in.broker.bootstrap, limits=limits) as fleet:
        took_s = await scenario(fleet)
        print(f"{scenario.__name__}: {took_s:.2f} s")
        assert took_s < bound_s


async def test_busy_main_loop_does_not_end_the_membership(built_in: BuiltInRig) -> None:
    async with run_replica_group(built_in.broker.bootstrap, limits=LIMITS) as fleet:
        replicas = await fleet.add_all(2)
        generation = listener_generation(replicas[0])
        # Block longer than a session, but less than the time after which a coordinator is not ready.
        threading.Event().wait(LIMITS.session_timeout_s + 1.0)
        assert all(replica.ownership.lease_is_fresh() for replica in replicas)
        assert [replica.ownership.generation for replica in replicas] == [generation] * 2


async def find_group_coordinator(fleet: ReplicaGroup) -> int:
    """Return the node id of the broker that is the group coordinator."""
    client = fleet._link()
    try:
        node = -1
        while node < 0:
            await asyncio.sleep(0.2)
            node = (await client.find_coordinator()).node
        return node
    finally:
        await client.close()


async def check_no_resignation_during(fleet: ReplicaGroup, task: "asyncio.Task[None]") -> None:
    """Wait until a task has ended, and check that no replica loses a shard meanwhile."""
    resigned = [list(replica.listener.resignations) for replica in fleet.replicas]
    await task
    await fleet.wait_until(
        lambda: all((replica.ownership.heartbeat_age_s or 99) < 1.0 for replica in fleet.replicas)
    )
    await fleet.wait_until(lambda: fleet.is_shared_by(*fleet.replicas))
    assert [replica.listener.resignations for replica in fleet.replicas] == resigned


@pytest.mark.timeout(600)
async def test_rolling_broker_restarts_cost_no_shard(newest_jars: KafkaJars, tmp_path: Path) -> None:
    async def restart_broker(broker: Broker, *, killed: bool) -> None:
        await asyncio.to_thread(broker.kill if killed else broker.stop)
        await asyncio.to_thread(broker.start)

    with ExitStack() as stack:
        brokers = start_brokers(stack, newest_jars, tmp_path, new_cluster(brokers=3))
        async with run_replica_group(brokers[0].bootstrap) as fleet:
            for _ in range(3):
                await fleet.add()
            await fleet.wait_until(lambda: fleet.is_shared_by(*fleet.replicas))
            # The group coordinator is stopped, and its successor is killed.
            restarted: list[Broker] = []
            for killed in (False, True):
                broker = brokers[await find_group_coordinator(fleet) - 1]
                assert broker not in restarted
                restarted.append(broker)
                restarting = asyncio.create_task(restart_broker(broker, killed=killed))
                await check_no_resignation_during(fleet, restarting)
            await fleet.wait_until(
                lambda: all(replica.ownership.health() == [] for replica in fleet.replicas)
            )
