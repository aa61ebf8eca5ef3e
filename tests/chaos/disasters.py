"""Cause failures of coordinators, brokers and HAProxies. After each failure, all processes run again."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial

from tests.chaos.cluster import GROUP, ChaosCluster
from tests.chaos.consistency import find_coordinators, find_group_coordinator
from tests.kafka import CoordinatorProcess

# A function that causes a failure. The function may return a text, which is appended to the name of the
# failure.
Disaster = Callable[[ChaosCluster], Awaitable[str | None]]


async def _run_in_thread(action: Callable[[], object]) -> None:
    await asyncio.to_thread(action)


async def _wait_until_replaced(cluster: ChaosCluster, gone: CoordinatorProcess) -> None:
    """Wait until the other coordinators own all shards of a coordinator."""
    others = [one for one in cluster.coordinators if one is not gone]
    keys = [book.key for book in cluster.books]

    def no_key_is_routed_to_it() -> bool:
        answers = [find_coordinators(one.port, keys) for one in others]
        return all(
            answer is not None and all(error == 0 and port != gone.port for error, _, _, port in answer)
            for answer in answers
        )

    await cluster.wait_for_condition(no_key_is_routed_to_it, "other coordinators own all shards")
    await cluster.wait_until_all_shards_are_written()


async def cause_no_failure(cluster: ChaosCluster) -> None:
    """Cause no failure for a while, as the baseline of the measurement."""
    for _ in range(5):
        await cluster.wait_until_all_shards_are_written()


async def stop_coordinator(number: int, cluster: ChaosCluster) -> None:
    """Stop a coordinator with SIGTERM: it hands over its shards and ends."""
    await _run_in_thread(cluster.coordinators[number].stop)
    await _wait_until_replaced(cluster, cluster.coordinators[number])


async def start_coordinator(number: int, cluster: ChaosCluster) -> None:
    """Start a coordinator: the others hand over some of their shards."""
    await _run_in_thread(cluster.coordinators[number].start)


async def kill_coordinator(number: int, cluster: ChaosCluster) -> None:
    """Kill a coordinator without a restart. Other coordinators own its shards after its session timeout."""
    await _run_in_thread(cluster.coordinators[number].kill)
    await _wait_until_replaced(cluster, cluster.coordinators[number])


async def kill_and_start_coordinator(number: int, cluster: ChaosCluster) -> None:
    """Kill a coordinator and restart it at once, as Kubernetes does."""
    one = cluster.coordinators[number]
    await _run_in_thread(one.kill)
    await _run_in_thread(one.process.start)


async def suspend_coordinator(number: int, cluster: ChaosCluster) -> None:
    """Suspend a coordinator for longer than its session timeout.

    When it continues, it reads buffered requests, but no longer owns the shards.
    """
    one = cluster.coordinators[number]
    os.kill(one.process.pid, signal.SIGSTOP)
    try:
        await _wait_until_replaced(cluster, one)
        # Write to the new owners, so that the state in the memory of the suspended process is stale.
        for _ in range(5):
            await cluster.wait_until_all_shards_are_written()
    finally:
        os.kill(one.process.pid, signal.SIGCONT)


async def start_coordinator_with_the_same_address(number: int, cluster: ChaosCluster) -> None:
    """Start a second coordinator that advertises the same address, where only the first is reachable.

    The second coordinator gets the shards, so these are not available until one of the two is stopped. No
    shard may be served by both.
    """
    one = cluster.coordinators[number]
    twin = cluster.make_twin(one)
    try:
        await _run_in_thread(twin.start)
        stubborn = [cluster.send_to_fixed_coordinator(twin.port) for _ in range(4)]
        await cluster.wait_for_condition(
            lambda: b"has the same address" in one.get("/readyz")[1],
            "the older coordinator reports the address conflict",
        )
        await cluster.wait_for_condition(
            lambda: not cluster.active_shards(one), "the older coordinator has no shards"
        )
        await cluster.wait_for_condition(
            lambda: cluster.active_shards(twin), "the newer coordinator has shards"
        )
        assert not cluster.active_shards(one)
        await cluster.wait_until_written_at(twin)
        for task in stubborn:
            task.cancel()
    finally:
        await _run_in_thread(twin.kill)


async def restart_broker(number: int, how: str, cluster: ChaosCluster) -> str:
    """Stop or kill a broker, and restart it.

    Each broker is restarted once. One of them is the group coordinator of the share coordinators, so the
    group moves to another broker.
    """
    broker, other = cluster.rig.brokers[number], cluster.rig.brokers[number - 1]
    coordinates = find_group_coordinator(other.client_port, GROUP) == number + 1
    await _run_in_thread(getattr(broker, how))
    await _run_in_thread(broker.start)
    return " (had the group)" if coordinates else ""


async def restart_haproxies(cluster: ChaosCluster) -> None:
    """Kill and start all three HAProxies: replication and the connections to coordinators are interrupted."""
    for haproxy in cluster.rig.haproxies:
        await _run_in_thread(haproxy.kill)
        await _run_in_thread(haproxy.start)


async def restart_coordinators_one_by_one(cluster: ChaosCluster) -> None:
    """Restart the coordinators one by one, as in an upgrade."""
    for one in cluster.coordinators:
        await _run_in_thread(one.stop)
        await _run_in_thread(one.start)
        await cluster.wait_until_settled()


DISASTERS: dict[str, Disaster] = {
    "nothing": cause_no_failure,
    "coordinator 1: SIGTERM": partial(stop_coordinator, 0),
    "coordinator 1: started": partial(start_coordinator, 0),
    "coordinator 2: kill -9, started at once": partial(kill_and_start_coordinator, 1),
    "coordinator 3: kill -9": partial(kill_coordinator, 2),
    "coordinator 3: started": partial(start_coordinator, 2),
    "coordinator 2: SIGSTOP, SIGCONT": partial(suspend_coordinator, 1),
    "coordinator 1: a twin for a moment": partial(start_coordinator_with_the_same_address, 0),
    **{f"broker {n + 1}: restarted": partial(restart_broker, n, "stop") for n in range(3)},
    **{f"broker {n + 1}: kill -9, started": partial(restart_broker, n, "kill") for n in range(3)},
    "HAProxy: all three restarted": restart_haproxies,
    "coordinators: restarted one by one": restart_coordinators_one_by_one,
}
