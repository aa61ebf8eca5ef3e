"""One life of the coordinator's process: made of the product's own parts, over simulated surroundings.

What a process keeps in memory dies with it; its log lives on in a `Storage`.  A crash may come between any
two callbacks.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from coordinator.config import HostPort
from coordinator.errors import LogDamaged
from coordinator.log.base import StateLog
from coordinator.metrics import Metrics
from coordinator.runtime import Runtime
from coordinator.server import Api, CoordinatorDirectory, Listener
from coordinator.service import Service
from coordinator.topics import TopicDirectory
from tests.simulation.loop import PROCESS, Process, SimLoop
from tests.simulation.plan import Plan

_Result = TypeVar("_Result")

ADDRESS = HostPort("coordinator", 9095)
NODE_ID_FIRST = 1_000_000


class Interrupted(Exception):
    """Something was not done in time, and the process is about to die in the midst of it."""


class SimClock:
    """The wall clock: it goes with virtual time, and jumps when told to."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.ahead_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        """Return milliseconds since 1970, or what this clock takes for it."""
        return self.ahead_ms + round(self._loop.time() * 1_000)


class Storage(Protocol):
    """What outlives the process: the disk, or what stands for it."""

    def attach(self, plan: Plan) -> StateLog:
        """Make the log for a new process."""
        ...

    def crash(self) -> None:
        """Lose what a death of the process (or machine) loses, and let go of the process that died."""
        ...

    def change(self, plan: Plan) -> None:
        """Have the faults of a plan from now on."""
        ...

    def fill(self, full: bool) -> None:
        """Have no room for more, or have room again."""
        ...

    def opened(self) -> None:
        """Go on: the log was opened and found nothing wrong."""
        ...

    def restore(self, error: LogDamaged) -> None:
        """Undo the damage that the log noticed; raise Violation if there was none."""
        ...


class CoordinatorProcess:
    """A coordinator from start to crash or stop."""

    def __init__(
        self,
        number: int,
        *,
        loop: SimLoop,
        plan: Plan,
        storage: Storage,
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
        """Start all parts as the composition root does, if that is done in time; else raise Interrupted.

        Raises LogError when the log cannot be opened.
        """
        await self.run_in_process(self._start, limit_s)

    async def _start(self) -> None:
        plan = self._plan
        metrics = Metrics()
        self.log = self._storage.attach(plan)
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
        """Stop in order, as on SIGTERM, if that is done in time; else raise Interrupted."""
        await self.run_in_process(self._stop, limit_s)
        await self._loop.kill(self._process)

    async def _stop(self) -> None:
        self.runtime.mark_not_ready()
        await self.listener.drain(25.0)
        await self.listener.stop()
        await self.runtime.stop()

    async def crash(self) -> None:
        """Die now."""
        self._storage.crash()
        self._loop.network.cut_all(ADDRESS)
        await self._loop.kill(self._process)

    async def run_in_process(
        self, run: Callable[[], Coroutine[Any, Any, _Result]], limit_s: float | None = None
    ) -> _Result:
        """Run a coroutine as part of the process: what it begins dies with the process.

        Raises Interrupted when it is not done in time; then it goes on until the process is killed.
        """
        token = PROCESS.set(self._process)
        try:
            task = asyncio.create_task(run())
        finally:
            PROCESS.reset(token)
        await asyncio.wait({task}, timeout=limit_s)
        if not task.done():
            raise Interrupted
        return task.result()
