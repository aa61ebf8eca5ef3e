"""Simulate one coordinator with a journal on a faulty disk (`tests.simulation.disk`).

A crash ends the process. With journal.sync=always, a crash may also stop the whole machine, which loses
unsynced data. After some crashes, a bit on the disk is flipped. The journal must detect this damage when it
is opened, and the simulation then undoes the damage.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from coordinator.cluster.topics import TopicDirectory
from coordinator.errors import LogDamaged
from coordinator.log.base import StateLog
from coordinator.log.journal import Journal
from coordinator.metrics import Metrics
from coordinator.serve.server import Api, Listener
from coordinator.serve.service import Service
from coordinator.shard import ShareState
from protocol.state_records import SharePartitionKey
from tests.builders import replay_log
from tests.simulation.clients import Clients
from tests.simulation.disk import SimFile, SimStorage
from tests.simulation.history import Violation
from tests.simulation.loop import SimLoop
from tests.simulation.nemesis import FaultKind, crash_coordinator, shift_clock, stop_coordinator
from tests.simulation.plan import JournalPlan
from tests.simulation.process import NODE_ID_FIRST, CoordinatorProcess, coordinator_address
from tests.simulation.simulation import Simulation
from tests.simulation.world import World


class JournalStorage:
    """A simulated disk with the real journal."""

    def __init__(self, plan: JournalPlan, rng: Random) -> None:
        self.disk = SimStorage(rng, replace(plan.disk_faults))
        self._plan = plan
        self._rng = rng
        # A flipped bit: the file, the position, the original byte, and the damaged byte.
        self._flipped: tuple[SimFile, int, int, int] | None = None

    def create_log(self, plan: JournalPlan) -> StateLog:
        """Open the disk for a new process, and create its journal."""
        return Journal(
            Path("simulated"),
            state_partitions=plan.state_partitions,
            segment_bytes=plan.segment_bytes,
            sync=plan.journal_sync,
            disk=self.disk.disk(),
        )

    def crash(self) -> None:
        """End the process, or cut the power of the machine; sometimes flip a bit on the disk."""
        if self._plan.journal_sync == "always" and self._rng.random() < 0.5:
            self.disk.cut_power()
        else:
            self.disk.kill()
        # Flip bits only with journal.sync=always: otherwise, the journal cannot distinguish damage from data
        # that was never written.
        if self._plan.journal_sync == "always" and self._rng.random() < self._plan.damage_rate:
            self._flip_bit()

    def _flip_bit(self) -> None:
        """Flip a bit of a nonzero byte, because a bit in the zeros after the data has no effect."""
        files = [name for name in sorted(self.disk.files) if any(self.disk.files[name].durable)]
        if files and self._flipped is None:
            name = self._rng.choice(files)
            file = self.disk.files[name]
            position = self._rng.choice([index for index, byte in enumerate(file.durable) if byte])
            before = file.durable[position]
            self.disk.flip_bit(name, position)
            self._flipped = (file, position, before, file.durable[position])

    def _restore_bit(self) -> None:
        """Flip the bit back, unless the byte was overwritten meanwhile."""
        if self._flipped is not None:
            file, position, before, after = self._flipped
            for content in (file.durable, file.shown):
                if content[position] == after:
                    content[position] = before
            self._flipped = None

    def on_log_opened(self) -> None:
        """Flip the bit back if the journal did not detect it, because it is outside of valid data."""
        self._restore_bit()

    def undo_damage(self, error: LogDamaged) -> None:
        """Undo the damage that the journal reported; raise Violation if no bit was flipped."""
        if self._flipped is None:
            raise Violation(f"the journal reports damage, but it was not damaged: {error}") from error
        self._restore_bit()

    def set_fault_plan(self, plan: JournalPlan) -> None:
        """Use the disk faults of a plan from now on."""
        self.disk.faults = replace(plan.disk_faults)

    def set_full(self, full: bool) -> None:
        """Simulate a full disk, or restore the disk capacity of the plan."""
        used = sum(len(file.shown) for file in self.disk.files.values())
        self.disk.faults.capacity_bytes = used if full else self._plan.disk_faults.capacity_bytes


# The coordinator must close a connection within this number of seconds, even if its client reads nothing.
CLOSED_BY_S = 60.0
# A journal may have at most this number of segments, plus a multiple of the live state. The limit is high,
# because it counts whole files, also files that are being created or removed, and because small commits have
# overhead.
SEGMENTS_MAX = 8
LIVE_BYTES_FACTOR_MAX = 8


class JournalProcess(CoordinatorProcess):
    """A coordinator with a journal, from its start to its crash or stop."""

    def __init__(self, world: "JournalWorld", place: int, number: int, plan: JournalPlan) -> None:
        super().__init__(world, place, number, plan)
        self._plan = plan
        self._storage = world.storage

    async def _start(self) -> None:
        metrics = Metrics()
        self.log = self._storage.create_log(self._plan)
        self.runtime = self._make_runtime(metrics)
        api = Api(Service(self.runtime), self._make_directory(), metrics)
        self.listener = Listener(api, metrics, self._plan.server_limits)
        await self.runtime.start()
        await self.listener.start(self.address)

    async def _stop(self) -> None:
        self.runtime.mark_not_ready()
        await self.listener.drain(25.0)
        await self.listener.stop()
        await self.runtime.stop()

    async def crash(self) -> None:
        """Kill the process, and sometimes the whole machine."""
        self._storage.crash()
        await super().crash()


class JournalWorld(World[JournalPlan, JournalProcess]):
    """A coordinator and its disk."""

    def __init__(
        self, plan: JournalPlan, loop: SimLoop, rng: Random, storage: JournalStorage, topics: TopicDirectory
    ) -> None:
        super().__init__(plan, loop, rng, topics)
        self.storage = storage
        self._damages = 0
        self._segment_bytes_max = 0

    @property
    def damage_count(self) -> int:
        """The number of starts that the journal refused because of damage."""
        return self._damages

    @property
    def process(self) -> JournalProcess:
        """The running process."""
        (process,) = self.alive()
        return process

    def _new_process(self, place: int, number: int) -> JournalProcess:
        plan = self.plan.plan_next_process(self._rng)
        self._segment_bytes_max = max(self._segment_bytes_max, plan.segment_bytes)
        return JournalProcess(self, place, number, plan if self.faulty else plan.without_faults())

    def _undo_damage(self, error: LogDamaged) -> None:
        self.storage.undo_damage(error)
        self._damages += 1

    def _on_process_started(self) -> None:
        self.storage.on_log_opened()

    def _on_process_ended(self) -> None:
        """Set the deadline of all pending operations, because the process that received them has ended."""
        self.history.set_deadlines(self.loop.time())

    def _set_faults(self, plan: JournalPlan) -> None:
        super()._set_faults(plan)
        self.storage.set_fault_plan(plan)

    def accepts_writes(self) -> bool:
        return all(process is not None and process.log.health() is None for process in self.processes)

    async def states_in_log(self) -> dict[SharePartitionKey, ShareState]:
        process, plan = self.process, self.plan
        return await process.run_in_process(
            lambda: replay_log(process.log, plan.state_partitions, plan.policy)
        )

    async def check_connections_are_closed(self) -> None:
        """Wait longer than the idle timeout; raise Violation if a connection remains open.

        Also raise Violation if request memory is not released by then. No client sends requests in the
        meantime.
        """
        listener, limits = self.process.listener, self.plan.server_limits
        await asyncio.sleep(limits.connection_idle_s + limits.frame_s + CLOSED_BY_S)
        if listener.connection_count or listener.held_bytes:
            raise Violation(
                f"no client sends requests, but {listener.connection_count} connections are open, "
                f"and requests occupy {listener.held_bytes} bytes"
            )

    def check_journal_size(self) -> None:
        """Raise Violation if a journal is much larger than its segments and live state explain."""
        live_bytes = sum(view.live_bytes for view in self.process.runtime.shard_views())
        size_bytes = self.process.log.size_bytes()
        if size_bytes > SEGMENTS_MAX * self._segment_bytes_max + LIVE_BYTES_FACTOR_MAX * live_bytes:
            raise Violation(f"the journal has {size_bytes} bytes for {live_bytes} bytes of live state")


class JournalSimulator(Simulation):
    """A simulation of one coordinator with a journal, and its clients."""

    plan: JournalPlan

    def __init__(self, plan: JournalPlan) -> None:
        super().__init__(plan)
        self._world = JournalWorld(
            plan, self.loop, self._new_random(), JournalStorage(plan, self._new_random()), self._topics
        )

    def _make_clients(self) -> Clients:
        plan, world = self.plan, self._world
        return Clients(
            world.network,
            [coordinator_address(0)],
            world.history,
            self._violations.append,
            state_partitions=plan.state_partitions,
            node_id_first=NODE_ID_FIRST,
            node_ids=plan.node_ids,
            answers_in_time=plan.has_response_deadline,
        )

    def _list_faults(self) -> Sequence[FaultKind]:
        plan = self.plan.nemesis
        return (
            (plan.crash_s, crash_coordinator),
            (plan.stop_s, stop_coordinator),
            (plan.block_network_s, _block_network),
            (plan.suspend_s, _suspend_machine),
            (plan.clock_jump_s, shift_clock),
            (plan.fill_s, _fill_storage),
        )

    async def _check_final_state(self) -> None:
        await self._world.check_connections_are_closed()
        self._world.check_journal_size()


async def _block_network(world: JournalWorld, rng: Random) -> None:
    mean_s = world.plan.nemesis.network_blocked_s
    world.network.block_traffic(min(rng.expovariate(1 / mean_s), 8 * mean_s))


async def _suspend_machine(world: JournalWorld, rng: Random) -> None:
    mean_s = world.plan.nemesis.suspended_s
    world.loop.skip_time(min(rng.expovariate(1 / mean_s), 8 * mean_s))


async def _fill_storage(world: JournalWorld, rng: Random) -> None:
    world.storage.set_full(True)
    await asyncio.sleep(rng.expovariate(1 / world.plan.nemesis.full_s))
    world.storage.set_full(False)
