"""A run: build a world from a plan, let it go wrong for a while, heal it, and judge what happened.

First *safety*: clients at work while connections break, the log fails, clocks jump and processes die, with a
few quiet points in between.  At a quiet point nothing is under way, so that what is in memory must be what
the log says.  Then *liveness*: everything is healed, and every client must get answers within a bound of
virtual time.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from coordinator.shard import ShareState
from coordinator.topics import EveryTopic, ListedTopics, TopicDirectory
from protocol.messages.read_share_group_state import PartitionData as ReadPart
from protocol.messages.read_share_group_state_summary import PartitionData as SummaryPart
from protocol.state_records import SharePartitionKey
from tests.simulation.checkers import judge
from tests.simulation.clients import Clients, Lost
from tests.simulation.history import PUT_OFF, READ, SUMMARY, Violation
from tests.simulation.library import LibraryUser
from tests.simulation.loop import SimLoop
from tests.simulation.nemesis import strikes
from tests.simulation.plan import Plan
from tests.simulation.process import ADDRESS, NODE_ID_FIRST, Storage
from tests.simulation.storage import make_storage
from tests.simulation.strangers import Noise, Stranger, Watcher
from tests.simulation.workloads import Cluster, GroupCoordinator, Leader
from tests.simulation.world import PATIENCE_S, READY_BY_S, World, until

# How many answers everybody gets after healing. The bound on the time this takes leaves room for a client's
# whole retry (5 attempts of up to 30 s, and the pauses between them) of what it began before.
ANSWERS_MIN = 3

# More than clients ask at a time: with room for so many, nothing is put off for want of room.
OPERATIONS_AT_A_TIME_MAX = 1_000

MakeStorage = Callable[[Plan, Random], Storage]


@dataclass
class Outcome:
    """What a run did, and what was wrong with it: None if nothing."""

    plan: Plan
    violation: BaseException | None = None
    ops: int = 0
    known: int = 0
    crashes: int = 0
    stops: int = 0
    damages: int = 0
    virtual_s: float = 0.0
    # Share-partitions on which the strict judge gave up, of how many.
    given_up: int = 0
    keys: int = 0
    trace: str = ""

    def __str__(self) -> str:
        return (
            f"seed {self.plan.seed} ({self.plan.log}): {self.ops} operations, {self.known} answered, "
            f"{self.crashes} crashes, {self.stops} stops, {self.damages} damages, "
            f"{self.virtual_s:.0f} virtual s" + f", gave up on {self.given_up}" * bool(self.given_up)
        )


class Simulator:
    """One run of one plan."""

    def __init__(self, plan: Plan, make: MakeStorage = make_storage) -> None:
        self.plan = plan
        self.loop = SimLoop()
        self._rng = Random(plan.seed ^ 0x5EED)
        self._violations: list[BaseException] = []
        self._keys = self._make_keys()
        self._topics: TopicDirectory = EveryTopic()
        if plan.load.topics_listed:
            self._topics = ListedTopics({key.topic_id: plan.load.partitions for key in self._keys})
        self._world = World(plan, self.loop, self._fork(), make(plan, self._fork()), self._topics)
        self._cluster: Cluster
        self._tasks: list[asyncio.Task[None]] = []
        self._given_up = 0

    def _fork(self) -> Random:
        return Random(self._rng.getrandbits(64))

    def _make_keys(self) -> list[SharePartitionKey]:
        load = self.plan.load
        return [
            SharePartitionKey(f"group:{group}", bytes([topic]) * 16, partition)
            for group in range(load.groups)
            for topic in range(1, load.topics + 1)
            for partition in range(load.partitions)
        ]

    def run(self) -> Outcome:
        """Run to the end, or to the first violation."""
        world, outcome = self._world, Outcome(self.plan)
        with _errors_logged() as errors:
            try:
                self.loop.run_until_complete(self._run())
            except Exception as violation:
                # A defect of the simulator's own is to be seen with its seed, too.
                outcome.violation = violation
            finally:
                self._end()
        failures = [*self._violations, *self.loop.failures, *errors]
        if failures:
            outcome.violation = failures[0]
        elif outcome.violation is None:
            outcome.violation = self._judge()
        ops = world.history.ops
        outcome.ops, outcome.known = len(ops), sum(op.known for op in ops)
        outcome.crashes, outcome.stops = world.crashes, world.stops
        outcome.damages = world.damages
        outcome.given_up, outcome.keys = self._given_up, len(self._keys)
        outcome.virtual_s = self.loop.time() - SimLoop.BEGAN_S
        outcome.trace = "\n".join(map(str, ops))
        return outcome

    def _end(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(1.0))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _judge(self) -> Violation | None:
        try:
            self._given_up = judge(
                self._world.history, lambda key: self._topics.knows(key.topic_id, key.partition)
            )
        except Violation as violation:
            return violation
        return None

    # Phases.

    async def _run(self) -> None:
        plan, world = self.plan, self._world
        clients = Clients(
            world.network,
            ADDRESS,
            world.history,
            self._violations.append,
            state_partitions=plan.state_partitions,
            node_id_first=NODE_ID_FIRST,
            node_ids=plan.node_ids,
            answers_in_time=plan.answers_in_time,
        )
        self._cluster = Cluster(clients, plan.load, self._keys, self._fork())
        await world.start()
        self._spawn(self._close_what_is_late())
        workers = self._spawn_workloads()
        for strike in strikes(world, self._fork()):
            self._spawn(strike)
        faulty_until_s = self.loop.time() + plan.faulty_s
        for point in range(plan.quiet_points + 1):
            share = (point + 1) / (plan.quiet_points + 1)
            await self._work_until(faulty_until_s - (1 - share) * plan.faulty_s, int(share * plan.ops_max))
            if point < plan.quiet_points:
                await self._quiet_point()
        world.heal()
        self._cluster.is_noisy = False
        await self._live(workers)
        await self._quiet_point()
        await self._rest()
        await world.forget_all_connections()
        world.journal_is_not_too_big()

    async def _work_until(self, until_s: float, ops: int) -> None:
        history = self._world.history
        while self.loop.time() < until_s and len(history.ops) - history.idle_ops < ops:
            await asyncio.sleep(0.05)
            self._stop_if_wrong()

    def _stop_if_wrong(self) -> None:
        if self._violations or self.loop.failures:
            raise Violation("see the first of the violations")
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
                raise Violation(f"{task} ended")

    def _spawn(self, coro: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(coro))

    def _spawn_workloads(self) -> list[str]:
        cluster, load = self._cluster, self.plan.load
        workers: list[Any] = [
            GroupCoordinator(group_id, cluster, self._fork())
            for group_id in dict.fromkeys(key.group_id for key in self._keys)
        ]
        for key in self._keys:
            for number in range(load.leaders_per_key):
                workers.append(Leader(f"leader {number} of {key}", cluster, key, self._fork()))
        for number in range(load.strangers):
            workers.append(Stranger(f"stranger {number}", cluster, self._fork()))
        for number in range(load.library_users):
            workers.append(LibraryUser(f"library user {number}", cluster, self._fork()))
        if load.watch_s is not None:
            workers.append(Watcher(cluster, self._fork(), load.watch_s))
        for worker in workers:
            self._spawn(worker.run())
        if load.noise_s is not None:
            self._spawn(Noise(cluster, self._fork(), load.noise_s).run())
        return [worker.name for worker in workers]

    async def _close_what_is_late(self) -> None:
        """Hold the coordinator to beginning nothing late.

        While the log takes no writes, what it was given before may be on the disk or not. That is settled
        when it takes them again; until then nobody can have written anything else.
        """
        while True:
            await asyncio.sleep(1.0)
            process = self._world.process
            if process is None or process.log.health() is not None:
                continue
            self._world.history.close_unknown(self.loop.time(), self.loop.time() - self.plan.late_s)

    async def _live(self, workers: list[str]) -> None:
        """Demand that everybody gets on, and that nobody is put off without a reason."""
        cluster, load, world = self._cluster, self.plan.load, self._world
        await self._rest()
        cluster.gate.set()
        healed_at = world.history.stamp(self.loop.time())
        cluster.answers.clear()
        cluster.answers_wanted = ANSWERS_MIN
        slowest_s = max(load.look_s, load.stranger_think_s, load.think_s)
        until_s = self.loop.time() + PATIENCE_S + 20 * ANSWERS_MIN * slowest_s
        while lagging := [name for name in workers if cluster.answers.get(name, 0) < ANSWERS_MIN]:
            if self.loop.time() > until_s:
                process = world.process
                health = None if process is None else process.runtime.health()
                raise Violation(f"healed, but {lagging} got too few answers; not ready: {health}")
            await asyncio.sleep(0.5)
            self._stop_if_wrong()
        if self.plan.runtime_limits.mailbox_operations_max > OPERATIONS_AT_A_TIME_MAX:
            for op in world.history.ops:
                if op.invoked > healed_at and op.error_code in PUT_OFF:
                    raise Violation(f"nothing is wrong, but an operation was put off: {op}")

    async def _rest(self) -> None:
        """Let all calls end and the coordinator get ready."""
        world, cluster = self._world, self._cluster
        cluster.gate.clear()
        await self._until_nobody_asks()
        process = world.process
        assert process is not None
        await until(lambda: not process.runtime.health(), process.runtime.health, READY_BY_S)
        # Connections without anybody at their other end have time to be noticed.
        await asyncio.sleep(self.plan.late_s)

    async def _until_nobody_asks(self) -> None:
        world, cluster = self._world, self._cluster
        await until(
            lambda: not cluster.busy and world.process is not None,
            lambda: f"{cluster.busy} calls are under way",
        )

    async def _quiet_point(self) -> None:
        """Let everything come to rest, compare memory with the log, and read all of it."""
        world, cluster, was_faulty = self._world, self._cluster, self._world.faulty
        world.heal()
        cluster.gate.clear()
        await self._until_nobody_asks()
        async with world.life:
            await asyncio.sleep(self.plan.late_s)
            world.history.close_unknown(self.loop.time())
            before = await world.compare_memory_with_log()
            if self._rng.random() < 0.5:
                await world.crash()
                await world.start()
                after = await world.compare_memory_with_log()
                if _seen(before) != _seen(after):
                    raise Violation(f"nothing was under way, but a crash made {after} of {before}")
            await self._read_everything()
        if was_faulty:
            world.hurt()
        cluster.gate.set()

    async def _read_everything(self) -> None:
        """Ask for the state of everything, so that the judges see it."""
        try:
            peer = await self._cluster.clients.connect("observer")
        except Lost:
            raise Violation("nothing is wrong, but no connection is to be had") from None
        for key in self._keys:
            leader_epoch = self._cluster.leader_epochs[key] + 1
            (op,) = await peer.ask(READ, [(key, ReadPart(key.partition, leader_epoch))])
            (summary,) = await peer.ask(SUMMARY, [(key, SummaryPart(key.partition, 0))])
            if not (op.known and summary.known):
                raise Violation(f"nothing is wrong, but a read fails: {op}")
        peer.close()


def _seen(states: dict[SharePartitionKey, ShareState]) -> dict[SharePartitionKey, tuple[object, ...]]:
    """Return what clients see of states: a job may write snapshots of them at any time."""
    return {
        key: (state.state_epoch, state.leader_epoch_max, state.start_offset, state.batches)
        for key, state in states.items()
    }


@contextmanager
def _errors_logged() -> Iterator[list[BaseException]]:
    """Collect what the product logs with a traceback: it went on, but something in it is broken."""
    errors: list[BaseException] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                errors.append(record.exc_info[1])

    collector = Collector(logging.ERROR)
    logger = logging.getLogger("coordinator")
    logger.addHandler(collector)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield errors
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagate
