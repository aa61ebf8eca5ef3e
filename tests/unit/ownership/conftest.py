"""Fixtures for tests of ownership."""

import asyncio
from collections.abc import Coroutine, Iterator

import pytest

from coordinator.cluster.ownership.limits import GroupLimits
from tests.kafka_in_memory.group import GroupInMemory
from tests.simulation.loop import SimLoop
from tests.unit.ownership.replicas import ReplicaGroup

LIMITS = GroupLimits()


class SimulatedReplicaGroup(ReplicaGroup):
    """Replicas on an event loop with virtual time, which the mark `run_with` uses to run a test."""

    def __init__(self, group: GroupInMemory) -> None:
        self.loop = SimLoop()
        super().__init__(group.new_client, limits=LIMITS, monotonic=self.loop.time)

    def run(self, test: Coroutine[object, object, None]) -> None:
        """Run a test, then stop all replicas within a time limit."""
        self.loop.run_until_complete(self._run_and_stop(test))
        assert self.loop.failures == []

    async def _run_and_stop(self, test: Coroutine[object, object, None]) -> None:
        await test
        async with asyncio.timeout(2.5 * LIMITS.leave_timeout_s):
            await self.stop()


@pytest.fixture
def group() -> GroupInMemory:
    """A group without members."""
    return GroupInMemory(session_s=LIMITS.session_timeout_s, rebalance_s=LIMITS.rebalance_timeout_s)


@pytest.fixture
def fleet(group: GroupInMemory) -> Iterator[ReplicaGroup]:
    """The replicas in the group; none is started yet."""
    replicas = SimulatedReplicaGroup(group)
    yield replicas
    replicas.loop.close()
