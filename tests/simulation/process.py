"""Run the real components of the coordinator with a simulated network, storage and clock.

The memory of a process is lost when the process ends; its log remains in a `Storage`.  A crash may happen
between any two callbacks.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from coordinator.cluster.topics import TopicDirectory
from coordinator.config import HostPort
from coordinator.log.base import StateLog
from coordinator.metrics import Metrics
from coordinator.serve.runtime import Runtime
from coordinator.serve.server import Api, CoordinatorDirectory, Listener
from coordinator.serve.service import Service
from tests.simulation.loop import PROCESS, Process, SimLoop
from tests.simulation.plan import Plan
from tests.simulation.storage import JournalStorage

_Result = TypeVar("_Result")

ADDRESS = HostPort("coordinator", 9095)
NODE_ID_FIRST = 1_000_000


class StartStopTimeout(Exception):
    """A start or stop exceeded its limit, so the process is killed during it."""


class SimClock:
    """The wall clock, which follows virtual time. Faults can shift it."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.ahead_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        """Return milliseconds since 1970, including the shift."""
        return self.ahead_ms + round(self._loop.time() * 1_000)


class CoordinatorProcess:
    """A coordinator from its start to its crash or stop."""

    def __init__(
        self,
        number: int,
        *,
        loop: SimLoop,
        plan: Plan,
        storage: JournalStorage,
        clock: SimClock,
        topics: TopicDirectory,
    ) -> None:
        self.number = number
        self.log: StateLog
        self.runtime: Runtime
        self.listener: Listener
        self._loop = loop
        self._plan = plan
        self._storage = storage
        self._clock = clock
        self._topics = topics
        self._process = Process(f"coordinator {number}")

    async def start(self, limit_s: float | None = None) -> None:
        """Start all components in the coordinator's order. Raise StartStopTimeout after `limit_s`.

        Raises LogError if the log cannot be opened.
        """
        await self.run_in_process(self._start, limit_s)

    async def _start(self) -> None:
        plan = self._plan
        metrics = Metrics()
        self.log = self._storage.create_log(plan)
        self.runtime = Runtime(
            log=self.log,
            clock=self._clock,
            topics=self._topics,
            metrics=metrics,
            policy=plan.policy,
            limits=plan.runtime_limits,
            state_partitions=plan.state_partitions,
            cold_interval_ms=plan.cold_interval_ms,
            prune_interval_ms=plan.prune_interval_ms,
        )
        directory = CoordinatorDirectory(
            ADDRESS,
            node_id_first=NODE_ID_FIRST,
            node_ids=plan.node_ids,
            state_partitions=plan.state_partitions,
        )
        api = Api(Service(self.runtime), directory, metrics)
        self.listener = Listener(api, metrics, plan.server_limits)
        await self.runtime.start()
        await self.listener.start(ADDRESS)

    async def stop(self, limit_s: float | None = None) -> None:
        """Stop as on SIGTERM. Raise StartStopTimeout after `limit_s`."""
        await self.run_in_process(self._stop, limit_s)
        await self._loop.kill(self._process)

    async def _stop(self) -> None:
        self.runtime.mark_not_ready()
        await self.listener.drain(25.0)
        await self.listener.stop()
        await self.runtime.stop()

    async def crash(self) -> None:
        """Kill the process."""
        self._storage.crash()
        self._loop.network.drop_connections(ADDRESS)
        await self._loop.kill(self._process)

    async def run_in_process(
        self, run: Callable[[], Coroutine[Any, Any, _Result]], limit_s: float | None = None
    ) -> _Result:
        """Run a coroutine as part of the process: its tasks end with the process.

        Raises StartStopTimeout after `limit_s`; the coroutine then continues until the process is killed.
        """
        token = PROCESS.set(self._process)
        try:
            task = asyncio.create_task(run())
        finally:
            PROCESS.reset(token)
        await asyncio.wait({task}, timeout=limit_s)
        if not task.done():
            raise StartStopTimeout
        return task.result()
