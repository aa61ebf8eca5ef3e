"""The simulated environment: its clocks, its network and the processes of the coordinators."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Generic, TypeVar

from coordinator.cluster.topics import TopicDirectory
from coordinator.errors import LogDamaged, LogError
from coordinator.shard import ShareState
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.simulation.history import History, Violation
from tests.simulation.loop import SimLoop
from tests.simulation.net import Network
from tests.simulation.plan import SimulationPlan
from tests.simulation.process import CoordinatorProcess, SimClock, StartStopTimeout

# Without faults, every step of the simulation must end within this number of virtual seconds.
PATIENCE_S = 400.0
# The pause before another start if the log cannot be opened.
RESTART_PAUSE_S = 0.2

PlanT = TypeVar("PlanT", bound=SimulationPlan)
ProcessT = TypeVar("ProcessT", bound=CoordinatorProcess)


class World(Generic[PlanT, ProcessT]):
    """All parts of a simulation except the clients.

    A *place* is the index of a coordinator's address. After a crash or stop, a new process runs at the same
    place. Subclasses add the storage and its faults.
    """

    # Without faults, all coordinators must serve their shards within this number of seconds. This time
    # includes the longest pause between two attempts to load a shard or to write to a failed disk.
    ready_by_s = 60.0

    def __init__(
        self,
        plan: PlanT,
        loop: SimLoop,
        rng: Random,
        topics: TopicDirectory,
        *,
        places: int = 1,
        forwarding: bool = False,
    ) -> None:
        self.plan = plan
        self.loop = loop
        self.topics = topics
        self.history = History(forwarding=forwarding)
        self.network = Network(loop, Random(rng.getrandbits(64)), plan.net)
        loop.network = self.network
        self.clocks = [SimClock(loop) for _ in range(places)]
        self.processes: list[ProcessT | None] = [None] * places
        # A lock for each place. A fault holds the lock while it starts or ends the process of the place.
        self.process_locks = [asyncio.Lock() for _ in range(places)]
        # Whether faults are injected.
        self.faulty = True
        self.crashes = self.stops = self.pauses = 0
        self._rng = rng
        self._starts = 0

    @property
    def damage_count(self) -> int:
        """The number of times that a fault damaged the log."""
        raise NotImplementedError

    # Methods that start and end processes.

    def _new_process(self, place: int, number: int) -> ProcessT:
        raise NotImplementedError

    async def start(self, place: int) -> None:
        """Start the coordinator with this number. Retry while the log cannot be opened."""
        while self.processes[place] is None:
            self._starts += 1
            was_faulty = self.faulty
            process = self._new_process(place, self._starts)
            try:
                await process.start(self._start_limit_s())
            except StartStopTimeout:
                await process.crash()
                self.crashes += 1
            except LogDamaged as error:
                await process.crash()
                self._undo_damage(error)
            except LogError as error:
                if not was_faulty:
                    raise Violation(
                        f"all faults have ended, but the log cannot be opened: {error}"
                    ) from error
                await process.crash()
                await asyncio.sleep(RESTART_PAUSE_S)
            else:
                self._on_process_started()
                self.processes[place] = process

    def _start_limit_s(self) -> float | None:
        """Return after how many seconds a start or stop is given up and the process killed; None: never."""
        rate = self.plan.nemesis.interrupt_rate
        return self._rng.expovariate(20.0) if self.faulty and rate and self._rng.random() < rate else None

    def _undo_damage(self, error: LogDamaged) -> None:
        """Undo the damage of a log; raise Violation if no fault has damaged the log."""
        raise Violation(f"the log reports damage, but it was not damaged: {error}") from error

    def _on_process_started(self) -> None:
        """Called after the start of a process."""

    def _on_process_ended(self) -> None:
        """Called after the crash or stop of a process."""

    async def crash(self, place: int) -> None:
        """Kill the process that runs at a place."""
        process, self.processes[place] = self.processes[place], None
        assert process is not None
        await process.crash()
        self.crashes += 1
        self._on_process_ended()

    async def stop(self, place: int) -> None:
        """Stop the process that runs at a place, as on SIGTERM."""
        process, self.processes[place] = self.processes[place], None
        assert process is not None
        try:
            await process.stop(self._start_limit_s())
        except StartStopTimeout:
            await process.crash()
            self.crashes += 1
        self.stops += 1
        self._on_process_ended()

    async def release(self) -> None:
        """Close the objects of the processes that are still open; called at the end of the simulation."""

    def alive(self) -> Sequence[ProcessT]:
        """Return the running processes."""
        return [process for process in self.processes if process is not None]

    # Faults.

    def stop_faults(self) -> None:
        """Disable faults."""
        self.faulty = False
        self._set_faults(self.plan.without_faults())

    def resume_faults(self) -> None:
        """Enable faults again."""
        self.faulty = True
        self._set_faults(self.plan)

    def _set_faults(self, plan: PlanT) -> None:
        self.network.faults = plan.net

    # Methods that compare memory and log.

    def health(self) -> object:
        """Return the reasons why coordinators are not ready, for error messages."""
        return [process.runtime.health() for process in self.alive()]

    def is_complete(self) -> bool:
        """Return whether all coordinators run and serve their shards."""
        return None not in self.processes and not any(p.runtime.health() for p in self.alive())

    def accepts_writes(self) -> bool:
        """Return whether the logs accept writes, so that earlier appends are in the log or never will be."""
        return True

    async def states_in_log(self) -> dict[SharePartitionKey, ShareState]:
        raise NotImplementedError

    async def _states_in_memory(self) -> dict[SharePartitionKey, ShareState]:
        return {
            key: state
            for process in self.alive()
            async for key, state in process.runtime.share_partitions()
            if state_partition(key, self.plan.state_partitions) in process.runtime.owned_shards()
        }

    async def compare_memory_with_log(self) -> dict[SharePartitionKey, ShareState]:
        """Return the states in the memory of their owners; raise Violation if the log has other states.

        The comparison is repeated up to five times, because the coordinator may write snapshots or prune the
        log in the meantime.
        """
        logged: dict[SharePartitionKey, ShareState] = {}
        in_memory: dict[SharePartitionKey, ShareState] = {}
        for _ in range(5):
            await wait_until(self.is_complete, self.health, self.ready_by_s)
            logged = await self.states_in_log()
            in_memory = await self._states_in_memory()
            if logged == in_memory:
                return in_memory
            await asyncio.sleep(0.3)
        different = [key for key in {**logged, **in_memory} if logged.get(key) != in_memory.get(key)]
        raise Violation(
            "\n  ".join(
                f"{key}: in memory {in_memory.get(key)}, in the log {logged.get(key)}" for key in different
            )
        )


async def wait_until(
    condition: Callable[[], bool], what: Callable[[], object], patience_s: float = 2 * PATIENCE_S
) -> None:
    """Poll a condition every 0.1 virtual seconds; raise Violation after `patience_s` virtual seconds."""
    until_s = asyncio.get_running_loop().time() + patience_s
    while not condition():
        if asyncio.get_running_loop().time() > until_s:
            raise Violation(f"a condition was not met within {patience_s:g} virtual s: {what()}")
        await asyncio.sleep(0.1)
