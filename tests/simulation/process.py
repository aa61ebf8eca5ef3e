"""Run the real components of a coordinator with a simulated network, storage and clock.

When a process ends, its memory is lost and its log remains. A process may crash between any two callbacks.
Subclasses add the log and the ownership of shards.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from coordinator.config import HostPort
from coordinator.log.base import StateLog
from coordinator.metrics import Metrics
from coordinator.serve.runtime import Runtime
from coordinator.serve.server import CoordinatorDirectory, Listener
from tests.simulation.loop import PROCESS, Process, SimLoop
from tests.simulation.plan import SimulationPlan

if TYPE_CHECKING:
    from tests.simulation.world import World

_Result = TypeVar("_Result")

NODE_ID_FIRST = 1_000_000


class StartStopTimeout(Exception):
    """Raised if a start or stop exceeds its time limit; the caller then kills the process."""


class SimClock:
    """A wall clock that follows virtual time; faults change `ahead_ms`."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.ahead_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        """Return milliseconds since 1970, including the shift."""
        return self.ahead_ms + round(self._loop.time() * 1_000)


def coordinator_address(place: int) -> HostPort:
    return HostPort(f"coordinator-{place}", 9095)


class CoordinatorProcess:
    """A coordinator from its start to its crash or stop.

    `place` is the index of its listener address. Processes that run at the same address, one after the other,
    have different names.
    """

    log: StateLog
    runtime: Runtime
    listener: Listener

    def __init__(self, world: "World", place: int, number: int, plan: SimulationPlan) -> None:
        self.place = place
        self.name = f"{place}.{number}"
        self.address = coordinator_address(place)
        self._world = world
        self._loop = world.loop
        self._clock = world.clocks[place]
        self._process = Process(self.name)
        self._common_plan = plan

    async def start(self, limit_s: float | None = None) -> None:
        """Start all components, in the order of `coordinator.app`.

        Raises StartStopTimeout after `limit_s`, and LogError if the log cannot be opened.
        """
        await self.run_in_process(self._start, limit_s)

    async def _start(self) -> None:
        raise NotImplementedError

    def _make_runtime(self, metrics: Metrics, **ownership: Any) -> Runtime:
        plan = self._common_plan
        return Runtime(
            log=self.log,
            clock=self._clock,
            topics=self._world.topics,
            metrics=metrics,
            policy=plan.policy,
            limits=plan.runtime_limits,
            state_partitions=plan.state_partitions,
            cold_interval_ms=plan.cold_interval_ms,
            prune_interval_ms=plan.prune_interval_ms,
            **ownership,
        )

    def _make_directory(self) -> CoordinatorDirectory:
        return CoordinatorDirectory(
            self.address,
            node_id_first=NODE_ID_FIRST,
            node_ids=self._common_plan.node_ids,
            state_partitions=self._common_plan.state_partitions,
        )

    async def stop(self, limit_s: float | None = None) -> None:
        """Stop as on SIGTERM. Raises StartStopTimeout after `limit_s`."""
        await self.run_in_process(self._stop, limit_s)
        await self._end()

    async def _stop(self) -> None:
        raise NotImplementedError

    async def crash(self) -> None:
        """Kill the process. Kill the process. Requests that it has sent may still arrive."""
        self._loop.network.drop_connections(self.address)
        await self._end()

    async def _end(self) -> None:
        await self._loop.kill(self._process)

    async def release(self) -> None:
        """Close the objects of the process that are still open; called at the end of the simulation."""

    def pause(self) -> None:
        """Run no callback of this process, as after SIGSTOP."""
        self._process.paused = True

    def resume(self) -> None:
        """Run the callbacks that became due during the pause, and continue."""
        self._loop.resume(self._process)

    @property
    def paused(self) -> bool:
        return self._process.paused

    def create_task(self, coro: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        token = PROCESS.set(self._process)
        try:
            return asyncio.create_task(coro)
        finally:
            PROCESS.reset(token)

    async def run_in_process(
        self, run: Callable[[], Coroutine[Any, Any, _Result]], limit_s: float | None = None
    ) -> _Result:
        """Run a coroutine as part of the process, so that its tasks end with the process.

        Raises StartStopTimeout after `limit_s`; the coroutine then continues until the process is killed.
        """
        task = self.create_task(run())
        await asyncio.wait({task}, timeout=limit_s)
        if not task.done():
            raise StartStopTimeout
        return task.result()
