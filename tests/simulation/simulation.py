"""Simulate coordinators and their clients: inject faults for a while, remove them, and check the history.

The first phase checks *safety*: clients send requests while connections break, writes to the log fail,
clocks jump and processes are killed. Whenever no operation is in progress, the states in memory must equal
the states in the log. The second phase checks *liveness*: all faults end, and every client must get answers
within a limit of virtual time.

`journal` and `kafka.simulator` define the simulated environments.
"""

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from coordinator.cluster.topics import EveryTopicExists, TopicDirectory
from coordinator.shard import ShareState
from protocol.state_records import SharePartitionKey
from tests.simulation.checkers import check_history
from tests.simulation.clients import Clients, ConnectionLost
from tests.simulation.history import DEFERRED, READ, SUMMARY, History, Operation, Violation
from tests.simulation.hostile_clients import GarbageSender, HostileClient, PollingReader
from tests.simulation.library import LibraryUser
from tests.simulation.loop import SimLoop
from tests.simulation.nemesis import FaultKind, make_fault_coroutines
from tests.simulation.plan import OPERATIONS_AT_A_TIME_MAX
from tests.simulation.rpc_parts import ReadPart, SummaryPart
from tests.simulation.workloads import GroupCoordinator, PartitionLeader, SharedClientState
from tests.simulation.world import PATIENCE_S, wait_until
from tests.static_topics import StaticTopics

# After the end of faults, each client must get this number of answers before a deadline. The deadline
# includes all retries of earlier calls: 5 attempts of up to 30 s, and the pauses between them.
ANSWERS_MIN = 3


@dataclass
class SimulationOutcome:
    """The result of a simulation: counts, and the violation that ended it, if any."""

    plan: Any
    violation: BaseException | None = None
    ops: int = 0
    known: int = 0
    crashes: int = 0
    stops: int = 0
    damage_count: int = 0
    pauses: int = 0
    virtual_s: float = 0.0
    # The number of share-partitions; the number on which the linearizability checker gave up.
    given_up: int = 0
    keys: int = 0
    trace: str = ""

    def __str__(self) -> str:
        return (
            f"seed {self.plan.seed} ({self.plan.kind}): {self.ops} operations, {self.known} answered, "
            f"{self.crashes} crashes, {self.stops} stops, {self.damage_count} damages, "
            f"{self.pauses} pauses, {self.virtual_s:.0f} virtual s"
            + f", gave up on {self.given_up}"
            * bool(self.given_up)
        )


class Simulation:
    """One simulation of one plan."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self.loop = SimLoop()
        self._rng = Random(plan.seed ^ 0x5EED)
        self._violations: list[BaseException] = []
        self._keys = self._make_keys()
        self._topics: TopicDirectory = EveryTopicExists()
        if plan.load.topics_listed:
            self._topics = StaticTopics({key.topic_id: plan.load.partitions for key in self._keys})
        self._world: Any
        self._clients: Any
        self._cluster: SharedClientState
        self._tasks: list[asyncio.Task[None]] = []
        self._given_up = 0

    def _new_random(self) -> Random:
        return Random(self._rng.getrandbits(64))

    def _make_keys(self) -> list[SharePartitionKey]:
        load = self.plan.load
        return [
            SharePartitionKey(f"group:{group}", bytes([topic]) * 16, partition)
            for group in range(load.groups)
            for topic in range(1, load.topics + 1)
            for partition in range(load.partitions)
        ]

    @property
    def _history(self) -> History:
        history: History = self._world.history
        return history

    # The methods that each kind of simulation implements.

    def _make_clients(self) -> Clients:
        raise NotImplementedError

    def _list_faults(self) -> Sequence[FaultKind]:
        raise NotImplementedError

    async def _check_final_state(self) -> None:
        """Check the coordinators at the end of the run, while no client sends requests."""
        raise NotImplementedError

    def _run_checkers(self) -> int:
        """Run all checkers; return for how many share-partitions the linearizability checker gave up."""
        return check_history(self._history, self._is_topic_known)

    def run(self) -> SimulationOutcome:
        """Run to the end, or to the first violation."""
        outcome = SimulationOutcome(self.plan)
        # aiokafka uses the global random generator.
        random.seed(self.plan.seed)
        with _collect_logged_errors() as errors:
            try:
                self.loop.run_until_complete(self._run())
            except Exception as violation:
                # Report any exception with the seed, including a defect of the simulator itself.
                outcome.violation = violation
            finally:
                self._cancel_tasks_and_close_loop()
        failures = [*self._violations, *self.loop.failures, *errors]
        if failures:
            outcome.violation = failures[0]
        elif outcome.violation is None:
            try:
                self._given_up = self._run_checkers()
            except Violation as violation:
                outcome.violation = violation
        ops = self._history.ops
        outcome.ops, outcome.known = len(ops), sum(op.known for op in ops)
        world = self._world
        outcome.crashes, outcome.stops, outcome.pauses = world.crashes, world.stops, world.pauses
        outcome.damage_count = world.damage_count
        outcome.given_up, outcome.keys = self._given_up, len(self._keys)
        outcome.virtual_s = self.loop.time() - SimLoop.BEGAN_S
        outcome.trace = "\n".join(map(str, ops))
        return outcome

    def _cancel_tasks_and_close_loop(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(1.0))
        self.loop.run_until_complete(self._world.release())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _is_topic_known(self, key: SharePartitionKey) -> bool:
        return self._topics.contains(key.topic_id, key.partition)

    # Phases.

    async def _run(self) -> None:
        plan, world = self.plan, self._world
        self._clients = self._make_clients()
        self._cluster = SharedClientState(self._clients, plan.load, self._keys, self._new_random())
        await asyncio.gather(*(world.start(place) for place in range(len(world.processes))))
        self._start_task(self._set_deadlines_of_old_operations())
        workers = self._start_workloads()
        for fault in make_fault_coroutines(world, self._new_random(), self._list_faults()):
            self._start_task(fault)
        faulty_until_s = self.loop.time() + plan.faulty_s
        for point in range(plan.quiet_points + 1):
            share = (point + 1) / (plan.quiet_points + 1)
            await self._wait_for_operations(
                faulty_until_s - (1 - share) * plan.faulty_s, int(share * plan.ops_max)
            )
            if point < plan.quiet_points:
                await self._check_state_when_idle()
        self._stop_faults()
        self._cluster.sends_garbage = False
        await self._check_liveness(workers)
        await self._check_state_when_idle()

    def _stop_faults(self) -> None:
        self._world.stop_faults()

    async def _set_deadlines_of_old_operations(self) -> None:
        """Once per second, set the deadline of old operations with an unknown outcome.

        The coordinators must not start these old operations any more. While a log accepts no writes, an
        append of unknown outcome may still become visible, so the deadline is set when the log accepts writes
        again.
        """
        while True:
            await asyncio.sleep(1.0)
            if self._world.accepts_writes():
                now_s = self.loop.time()
                self._history.set_deadlines(now_s, now_s - self.plan.latest_effect_s)

    async def _wait_until_idle(self) -> None:
        """Wait until all calls have ended and the coordinators are ready."""
        world = self._world
        self._cluster.gate.clear()
        await self._wait_for_calls()
        await wait_until(lambda: None not in world.processes, lambda: "a coordinator does not run")
        await wait_until(self._is_complete, world.health, world.ready_by_s)
        # Wait, because requests of clients that closed their connections may still be in progress.
        await asyncio.sleep(self.plan.latest_effect_of_request_without_faults_s)

    def _is_complete(self) -> bool:
        self._raise_if_violated()
        complete: bool = self._world.is_complete()
        return complete

    async def _check_state_when_idle(self) -> None:
        """Wait until no operation is in progress; then compare memory with the log, and read all states."""
        world, was_faulty = self._world, self._world.faulty
        world.stop_faults()
        await self._wait_until_idle()
        self._history.set_deadlines(self.loop.time())
        before = await world.compare_memory_with_log()
        if self._rng.random() < 0.5:
            await self._restart_coordinator()
            after = await world.compare_memory_with_log()
            if visible_state(before) != visible_state(after):
                raise Violation(f"no operation was in progress, but a restart changed {before} to {after}")
        await self._read_all_share_partitions()
        if was_faulty:
            world.resume_faults()
        else:
            await self._check_final_state()
        self._cluster.gate.set()

    async def _restart_coordinator(self) -> None:
        world = self._world
        place = self._rng.randrange(len(world.processes))
        async with world.process_locks[place]:
            await (world.crash(place) if self._rng.random() < 0.5 else world.stop(place))
            await world.start(place)

    async def _wait_for_operations(self, until_s: float, ops: int) -> None:
        history = self._history
        while self.loop.time() < until_s and len(history.ops) - history.idle_ops < ops:
            await asyncio.sleep(0.05)
            self._raise_if_violated()

    def _raise_if_violated(self) -> None:
        if self._violations or self.loop.failures:
            raise Violation("see the first reported violation")
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
                raise Violation(f"{task} ended")

    def _start_task(self, coro: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(coro))

    def _start_workloads(self) -> list[str]:
        cluster, load = self._cluster, self.plan.load
        workers: list[Any] = [
            GroupCoordinator(group_id, cluster, self._new_random())
            for group_id in dict.fromkeys(key.group_id for key in self._keys)
        ]
        for key in self._keys:
            for number in range(load.leaders_per_key):
                workers.append(PartitionLeader(f"leader {number} of {key}", cluster, key, self._new_random()))
        for number in range(load.hostile_clients):
            workers.append(HostileClient(f"hostile client {number}", cluster, self._new_random()))
        for number in range(load.library_users):
            workers.append(LibraryUser(f"library user {number}", cluster, self._new_random()))
        if load.poll_s is not None:
            for number in range(load.polling_readers):
                workers.append(
                    PollingReader(f"polling reader {number}", cluster, self._new_random(), load.poll_s)
                )
        for worker in workers:
            self._start_task(worker.run())
        if load.garbage_s is not None:
            self._start_task(GarbageSender(cluster, self._new_random(), load.garbage_s).run())
        return [worker.name for worker in workers]

    async def _check_liveness(self, workers: list[str]) -> None:
        """Check that every client gets answers, and that no operation gets a retriable error."""
        cluster, load, history = self._cluster, self.plan.load, self._history
        await self._wait_until_idle()
        cluster.gate.set()
        faults_ended = history.next_time(self.loop.time())
        cluster.answers.clear()
        cluster.answers_wanted = ANSWERS_MIN
        slowest_s = max(load.summary_s, load.hostile_pause_s, load.think_s, load.lead_s)
        until_s = self.loop.time() + PATIENCE_S + 20 * ANSWERS_MIN * slowest_s
        while lagging := [name for name in workers if cluster.answers.get(name, 0) < ANSWERS_MIN]:
            if self.loop.time() > until_s:
                raise Violation(
                    f"without faults, {lagging} got too few answers; not ready: {self._world.health()}"
                )
            await asyncio.sleep(0.5)
            self._raise_if_violated()
        # If the limit of the queue is small, an operation may be refused because the queue of its shard is
        # full.
        if self.plan.runtime_limits.queued_operations_max > OPERATIONS_AT_A_TIME_MAX:
            for op in history.ops:
                if (
                    op.invoked > faults_ended
                    and op.error_code in DEFERRED
                    and not self._may_get_retriable_error(op)
                ):
                    raise Violation(f"no fault is active, but an operation got a retriable error: {op}")

    def _may_get_retriable_error(self, op: Operation) -> bool:
        """Return whether an operation may get a retriable error although no fault is active."""
        return op.reached_wrong_coordinator

    async def _wait_for_calls(self) -> None:
        cluster = self._cluster
        await wait_until(
            lambda: not cluster.calls_in_progress,
            lambda: f"{cluster.calls_in_progress} calls are in progress",
        )

    async def _read_all_share_partitions(self) -> None:
        """Read all share-partitions, so that the history contains their final state for the checkers."""
        clients, peers = self._cluster.clients, {}
        try:
            for node in dict.fromkeys(map(clients.coordinating_node, self._keys)):
                peers[node] = await clients.connect("observer", node)
        except ConnectionLost:
            raise Violation("no fault is active, but no connection can be opened") from None
        for key in self._keys:
            peer = peers[clients.coordinating_node(key)]
            leader_epoch = self._cluster.leader_epochs[key] + 1
            (op,) = await peer.send_state_request(READ, [(key, ReadPart(key.partition, leader_epoch))])
            (summary,) = await peer.send_state_request(SUMMARY, [(key, SummaryPart(key.partition, 0))])
            if not (op.known and summary.known):
                raise Violation(f"no fault is active, but a read failed: {op}")
        for peer in peers.values():
            peer.close()


def visible_state(
    states: dict[SharePartitionKey, ShareState],
) -> dict[SharePartitionKey, tuple[object, ...]]:
    """Return the fields of the states that clients can read; a snapshot may change the other fields."""
    return {
        key: (
            state.state_epoch,
            state.leader_epoch,
            state.leader_epoch_max,
            state.start_offset,
            state.delivery_complete_count,
            state.batches,
        )
        for key, state in states.items()
    }


@contextmanager
def _collect_logged_errors() -> Iterator[list[BaseException]]:
    """Collect the exceptions that the coordinator or aiokafka logs as errors; each one is a violation."""
    errors: list[BaseException] = []

    class ExceptionCollector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                errors.append(record.exc_info[1])

    collector = ExceptionCollector(logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("coordinator", "aiokafka")]
    for logger in loggers:
        logger.addHandler(collector)
        logger.propagate = False
    try:
        yield errors
    finally:
        for logger in loggers:
            logger.removeHandler(collector)
            logger.propagate = True
