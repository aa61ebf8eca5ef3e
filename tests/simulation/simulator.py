"""Simulate one coordinator: inject faults for a while, remove them, and check the history.

The first phase checks *safety*. Clients work while connections break, the log fails, clocks jump and
processes die. When no operation is in progress, the states in memory must equal the log. The second phase
checks *liveness*: all faults end, and every client must get answers within a bound of virtual time.
"""

import asyncio

from coordinator.shard import ShareState
from protocol.state_records import SharePartitionKey
from tests.simulation.clients import Clients
from tests.simulation.history import History, Violation
from tests.simulation.nemesis import make_faults
from tests.simulation.phases import Simulation, SimulationOutcome
from tests.simulation.plan import Plan
from tests.simulation.process import ADDRESS, NODE_ID_FIRST
from tests.simulation.storage import JournalStorage
from tests.simulation.workloads import SharedClientState
from tests.simulation.world import READY_BY_S, World, wait_until


class Simulator(Simulation):
    """A simulation of one coordinator and its clients."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._world = World(
            plan, self.loop, self._fork_random(), JournalStorage(plan, self._fork_random()), self._topics
        )

    @property
    def _history(self) -> History:
        return self._world.history

    def _count(self, outcome: SimulationOutcome) -> None:
        world = self._world
        outcome.crashes, outcome.stops, outcome.damages = world.crashes, world.stops, world.damages

    def _health_problems(self) -> object:
        process = self._world.process
        return None if process is None else process.runtime.health()

    async def _run(self) -> None:
        plan, world = self.plan, self._world
        clients = Clients(
            world.network,
            [ADDRESS],
            world.history,
            self._violations.append,
            state_partitions=plan.state_partitions,
            node_id_first=NODE_ID_FIRST,
            node_ids=plan.node_ids,
            answers_in_time=plan.has_response_deadline,
        )
        self._cluster = SharedClientState(clients, plan.load, self._keys, self._fork_random())
        await world.start()
        self._spawn(self._close_late_operations())
        workers = self._spawn_workloads()
        for strike in make_faults(world, self._fork_random()):
            self._spawn(strike)
        faulty_until_s = self.loop.time() + plan.faulty_s
        for point in range(plan.quiet_points + 1):
            share = (point + 1) / (plan.quiet_points + 1)
            await self._wait_for_operations(
                faulty_until_s - (1 - share) * plan.faulty_s, int(share * plan.ops_max)
            )
            if point < plan.quiet_points:
                await self._compare_when_idle()
        world.stop_faults()
        self._cluster.is_noisy = False
        await self._check_liveness(workers)
        await self._compare_when_idle()
        await self._wait_until_idle()
        await world.wait_until_connections_are_closed()
        world.check_journal_size()

    async def _close_late_operations(self) -> None:
        """Periodically set the deadline of old operations with an unknown outcome.

        The coordinator must not start such operations any more. While the log accepts no writes, earlier
        appends may be on the disk or not, so no deadline is set until the log accepts writes again.
        """
        while True:
            await asyncio.sleep(1.0)
            process = self._world.process
            if process is None or process.log.health() is not None:
                continue
            self._world.history.close_unknown(self.loop.time(), self.loop.time() - self.plan.latest_effect_s)

    async def _wait_until_idle(self) -> None:
        """Wait until all calls have ended and the coordinator is ready."""
        world, cluster = self._world, self._cluster
        cluster.gate.clear()
        await self._wait_for_calls()
        await wait_until(lambda: world.process is not None, lambda: "no process lives")
        process = world.process
        assert process is not None
        await wait_until(lambda: not process.runtime.health(), process.runtime.health, READY_BY_S)
        # Wait until the coordinator has detected connections whose client has vanished.
        await asyncio.sleep(self.plan.latest_effect_s)

    async def _compare_when_idle(self) -> None:
        """Wait until no operation is in progress, compare memory with the log, and read all state."""
        world, cluster, was_faulty = self._world, self._cluster, self._world.faulty
        world.stop_faults()
        cluster.gate.clear()
        await self._wait_for_calls()
        await wait_until(lambda: world.process is not None, lambda: "no process lives")
        async with world.life:
            await asyncio.sleep(self.plan.latest_effect_s)
            world.history.close_unknown(self.loop.time())
            before = await world.compare_memory_with_log()
            if self._rng.random() < 0.5:
                await world.crash()
                await world.start()
                after = await world.compare_memory_with_log()
                if _visible_state(before) != _visible_state(after):
                    raise Violation(f"no operation was in progress, but a crash changed {before} to {after}")
            await self._read_everything()
        if was_faulty:
            world.resume_faults()
        cluster.gate.set()


def _visible_state(
    states: dict[SharePartitionKey, ShareState],
) -> dict[SharePartitionKey, tuple[object, ...]]:
    """Return the part of the states that clients can read. Snapshots may change the rest at any time."""
    return {
        key: (state.state_epoch, state.leader_epoch_max, state.start_offset, state.batches)
        for key, state in states.items()
    }
