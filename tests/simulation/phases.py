"""The common part of all kinds of simulation: workloads, phases, and checks.

A subclass defines the simulated environment and the order of the phases (`_run`).
"""

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from coordinator.cluster.topics import AllTopics, TopicDirectory
from protocol.state_records import SharePartitionKey
from tests.simulation.checkers import check_history
from tests.simulation.clients import ConnectionLost
from tests.simulation.history import DEFERRED, READ, SUMMARY, History, Operation, Violation
from tests.simulation.hostile_clients import GarbageSender, HostileClient, PollingReader
from tests.simulation.library import LibraryUser
from tests.simulation.loop import SimLoop
from tests.simulation.parts import ReadPart, SummaryPart
from tests.simulation.plan import OPERATIONS_AT_A_TIME_MAX
from tests.simulation.workloads import GroupCoordinator, PartitionLeader, SharedClientState
from tests.simulation.world import PATIENCE_S, wait_until
from tests.static_topics import StaticTopics

# After the end of faults, each client must get this number of answers before a deadline. The deadline
# includes all retries of earlier calls: 5 attempts of up to 30 s, and the pauses between them.
ANSWERS_MIN = 3


@dataclass
class SimulationOutcome:
    """The figures of a simulation, and its violation or None."""

    # The plan of the simulation, whose class depends on the kind of simulation.
    plan: Any
    violation: BaseException | None = None
    ops: int = 0
    known: int = 0
    crashes: int = 0
    stops: int = 0
    damages: int = 0
    pauses: int = 0
    virtual_s: float = 0.0
    # The share-partitions on which the strict checker gave up, and their total.
    given_up: int = 0
    keys: int = 0
    trace: str = ""

    def __str__(self) -> str:
        return (
            f"seed {self.plan.seed} ({self.plan.kind}): {self.ops} operations, {self.known} answered, "
            f"{self.crashes} crashes, {self.stops} stops, {self.damages} damages, {self.pauses} pauses, "
            f"{self.virtual_s:.0f} virtual s" + f", gave up on {self.given_up}" * bool(self.given_up)
        )


class Simulation:
    """One simulation of one plan."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self.loop = SimLoop()
        self._rng = Random(plan.seed ^ 0x5EED)
        self._violations: list[BaseException] = []
        self._keys = self._make_keys()
        self._topics: TopicDirectory = AllTopics()
        if plan.load.topics_listed:
            self._topics = StaticTopics({key.topic_id: plan.load.partitions for key in self._keys})
        self._cluster: SharedClientState
        self._tasks: list[asyncio.Task[None]] = []
        self._given_up = 0

    def _fork_random(self) -> Random:
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
        """The requests and responses of all clients."""
        raise NotImplementedError

    async def _run(self) -> None:
        """Run all phases."""
        raise NotImplementedError

    def _run_checkers(self) -> int:
        """Run all checkers; return the number of share-partitions on which the strict checker gave up."""
        return check_history(self._history, self._topic_known)

    def _count(self, outcome: SimulationOutcome) -> None:
        """Add the number of injected faults to the outcome."""
        raise NotImplementedError

    def _health_problems(self) -> object:
        """Return the reasons why a coordinator is not ready."""
        raise NotImplementedError

    async def _wait_until_idle(self) -> None:
        """Wait until all calls have ended and the coordinators are ready."""
        raise NotImplementedError

    def run(self) -> SimulationOutcome:
        """Run to the end, or to the first violation."""
        outcome = SimulationOutcome(self.plan)
        # Libraries use the global generator.
        random.seed(self.plan.seed)
        with _errors_logged() as errors:
            try:
                self.loop.run_until_complete(self._run())
            except Exception as violation:
                # Report any exception with the seed, including a defect of the simulator itself.
                outcome.violation = violation
            finally:
                self._end()
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
        self._count(outcome)
        outcome.given_up, outcome.keys = self._given_up, len(self._keys)
        outcome.virtual_s = self.loop.time() - SimLoop.BEGAN_S
        outcome.trace = "\n".join(map(str, ops))
        return outcome

    def _end(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(1.0))
        self.loop.run_until_complete(self._release())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _release(self) -> None:
        """Release resources of the processes after the end of all tasks."""

    def _topic_known(self, key: SharePartitionKey) -> bool:
        return self._topics.contains(key.topic_id, key.partition)

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

    def _spawn(self, coro: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(coro))

    def _spawn_workloads(self) -> list[str]:
        cluster, load = self._cluster, self.plan.load
        workers: list[Any] = [
            GroupCoordinator(group_id, cluster, self._fork_random())
            for group_id in dict.fromkeys(key.group_id for key in self._keys)
        ]
        for key in self._keys:
            for number in range(load.leaders_per_key):
                workers.append(
                    PartitionLeader(f"leader {number} of {key}", cluster, key, self._fork_random())
                )
        for number in range(load.strangers):
            workers.append(HostileClient(f"stranger {number}", cluster, self._fork_random()))
        for number in range(load.library_users):
            workers.append(LibraryUser(f"library user {number}", cluster, self._fork_random()))
        if load.watch_s is not None:
            for number in range(load.watchers):
                workers.append(PollingReader(f"watcher {number}", cluster, self._fork_random(), load.watch_s))
        for worker in workers:
            self._spawn(worker.run())
        if load.noise_s is not None:
            self._spawn(GarbageSender(cluster, self._fork_random(), load.noise_s).run())
        return [worker.name for worker in workers]

    async def _check_liveness(self, workers: list[str]) -> None:
        """Check that every client makes progress, and that no operation is deferred without a reason."""
        cluster, load, history = self._cluster, self.plan.load, self._history
        await self._wait_until_idle()
        cluster.gate.set()
        healed_at = history.next_time(self.loop.time())
        cluster.answers.clear()
        cluster.answers_wanted = ANSWERS_MIN
        slowest_s = max(load.look_s, load.stranger_think_s, load.think_s, load.lead_s)
        until_s = self.loop.time() + PATIENCE_S + 20 * ANSWERS_MIN * slowest_s
        while lagging := [name for name in workers if cluster.answers.get(name, 0) < ANSWERS_MIN]:
            if self.loop.time() > until_s:
                raise Violation(
                    f"without faults, {lagging} got too few answers; not ready: {self._health_problems()}"
                )
            await asyncio.sleep(0.5)
            self._raise_if_violated()
        # In a larger queue, no operation is deferred because the queue is full.
        if self.plan.runtime_limits.queued_operations_max > OPERATIONS_AT_A_TIME_MAX:
            for op in history.ops:
                if op.invoked > healed_at and op.error_code in DEFERRED and not self._may_be_deferred(op):
                    raise Violation(f"no fault is active, but an operation was deferred: {op}")

    def _may_be_deferred(self, op: Operation) -> bool:
        """Return whether an operation may be deferred although no fault is active."""
        return op.reached_wrong_coordinator

    async def _wait_for_calls(self) -> None:
        cluster = self._cluster
        await wait_until(lambda: not cluster.busy, lambda: f"{cluster.busy} calls are in progress")

    async def _read_everything(self) -> None:
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


@contextmanager
def _errors_logged() -> Iterator[list[BaseException]]:
    """Collect exceptions that the coordinator or aiokafka logs as errors: each of them is a defect."""
    errors: list[BaseException] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                errors.append(record.exc_info[1])

    collector = Collector(logging.ERROR)
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
