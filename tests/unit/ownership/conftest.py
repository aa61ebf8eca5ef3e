"""Fixtures for tests of ownership."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from coordinator.cluster.ownership.limits import GroupLimits
from tests.kafka_in_memory.group import GroupInMemory
from tests.simulation.loop import SimLoop
from tests.unit.ownership.replicas import ReplicaGroup, RunInGroup

LIMITS = GroupLimits()


@pytest.fixture
def run_in_group() -> Iterator[RunInGroup]:
    """Return a function that runs a scenario with a group in memory, and then stops all replicas in time."""
    loop = SimLoop()

    def run(scene: Callable[[GroupInMemory, ReplicaGroup], Awaitable[object]]) -> None:
        async def main() -> None:
            group = GroupInMemory(session_s=LIMITS.session_timeout_s, rebalance_s=LIMITS.rebalance_timeout_s)
            fleet = ReplicaGroup(group.new_client, limits=LIMITS)
            await scene(group, fleet)
            async with asyncio.timeout(2.5 * LIMITS.leave_timeout_s):
                await fleet.stop()

        loop.run_until_complete(main())
        assert loop.failures == []

    yield run
    loop.close()
