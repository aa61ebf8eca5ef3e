"""Three coordinators on three brokers, with faults of each link, process and clock, and checked clients."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic

from coordinator.client import SharePartitionKey
from protocol.routing import state_partition
from tests.builders import TOPIC_ID
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.network import ProcessClock
from tests.kafka.ports import free_ports
from tests.kafka.processes import ChildProcess
from tests.kafka.served_process import INSTALLED, ProgramBuild
from tests.simulation.history import Violation
from tests.topic.groups import group_settings
from tests.topic.linked_brokers import BrokersWithFaultyLinks, broker_name
from tests.topic.partition_schedule import PLACES, FaultKind, FaultSchedule, ScheduledFault, coordinator_name
from tests.topic.recorded_clients import HistoryRecordingClients

SHARDS = 6
# The lease of each coordinator. One lease is longer than the session timeout, so the next owner must wait for
# its end.
LEASES_S = (0.5, 1.0, 2.5)
# Short timeouts, so that other coordinators take over within a schedule of a few seconds.
SETTINGS = {
    "session.timeout.ms": "1500",
    "heartbeat.interval.ms": "300",
    "rebalance.timeout.ms": "3000",
    "request.timeout.ms": "1000",
    # Longer than a schedule, so that only the lease ends the reads of an owner whose append is in flight.
    "delivery.timeout.ms": "10000",
    "forwarding": "always",
    # Low values, so that snapshots are written and records are pruned during a schedule.
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
    "share.coordinator.state.topic.prune.interval.ms": "1000",
}
BROKER_SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.num.partitions": "3",
    # A broker that the controller does not reach loses its partitions after this time.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "700",
    "controller.quorum.election.backoff.max.ms": "300",
    "replica.lag.time.max.ms": "3000",
    # Settings of Kafka's own share coordinator.
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "share.coordinator.state.topic.num.partitions": "3",
}
# The number of share-partitions of each shard. An append in flight blocks the reads of its share-partitions,
# but not of the others.
KEYS_OF_SHARD = 3
# After SIGSTOP is sent, the process may still read its clocks for this number of seconds.
SIGSTOP_S = 0.05
# The deadline of all coordinators to serve all share-partitions again, on a busy machine.
RECOVERY_S = 120.0


class PartitionedCluster:
    """Three coordinators with a common state topic, in the network of the brokers."""

    def __init__(
        self,
        brokers: BrokersWithFaultyLinks,
        directory: Path,
        stack: ExitStack,
        topic: str,
        *,
        build: ProgramBuild = INSTALLED,
        leases_s: Sequence[float] = LEASES_S,
    ) -> None:
        """Prepare the coordinators, which are killed when `stack` closes; nothing is started."""
        self._network = brokers.network
        self.coordinators: list[CoordinatorProcess] = []
        self._processes: dict[str, ChildProcess] = {
            broker_name(node): broker.process for node, broker in brokers.brokers.items()
        }
        self._runs = count()
        # The time at which each process was suspended with SIGSTOP.
        self._paused_s: dict[str, float] = {}
        # The processes that were killed or stopped, until they are started again.
        self._ended: set[str] = set()
        ports = free_ports(2 * PLACES)
        for place in range(PLACES):
            self._network.add_process(coordinator_name(place), ports[place : place + 1])
        for place, lease_s in enumerate(leases_s):
            directory_of_place = directory / f"{topic}-{place}"
            directory_of_place.mkdir()
            own_settings = {"owner.lease.ms": str(round(lease_s * 1000))}
            if place == 0:
                # When the coordinator is killed and restarted, it replaces its former member in the group.
                own_settings["group.instance.id"] = coordinator_name(place)
            linked = self._network.environment(coordinator_name(place))
            coordinator = CoordinatorProcess(
                directory_of_place,
                port=ports[place],
                http_port=ports[PLACES + place],
                settings={**group_settings(brokers.bootstrap, topic, SHARDS), **SETTINGS, **own_settings},
                log="kafka",
                build=ProgramBuild(build.command, {**build.environment, **linked}),
            )
            stack.callback(coordinator.kill)
            self._processes[coordinator_name(place)] = coordinator.process
            self.coordinators.append(coordinator)

    def start(self) -> None:
        """Start the coordinators, and wait until they are ready."""
        for coordinator in self.coordinators:
            coordinator.process.start()
        for coordinator in self.coordinators:
            coordinator.process.wait_ready(
                lambda coordinator=coordinator: coordinator.get("/readyz")[0] == 200, seconds=RECOVERY_S
            )

    def run(self, schedule: FaultSchedule) -> HistoryRecordingClients:
        """Run a schedule, wait for the recovery, and check the history.

        If the check fails, raise Violation with the schedule.
        """
        ports = [coordinator.port for coordinator in self.coordinators]
        keys = keys_of_each_shard(f"run-{next(self._runs)}")
        clients = HistoryRecordingClients(keys, ports, Random(schedule.seed))
        try:
            asyncio.run(self._run_schedule(schedule, clients))
            clients.check_linearizability()
        except (AssertionError, TimeoutError, ExceptionGroup) as error:
            refused = "\n".join(clients.refused.values())
            raise Violation(
                f"{type(error).__name__}: {error}\n{schedule}\n"
                f"last refused:\n{refused}\n{self._read_log_ends()}"
            ) from error
        return clients

    def memory_mb(self) -> float:
        """Return the resident memory of the largest coordinator."""
        return max(_resident_mb(coordinator.process.pid) for coordinator in self.coordinators)

    async def _run_schedule(self, schedule: FaultSchedule, clients: HistoryRecordingClients) -> None:
        async with asyncio.timeout(RECOVERY_S):
            await clients.initialize_all_keys()
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(clients.send_random_requests(place)) for place in range(PLACES)]
            working += [
                tasks.create_task(clients.send_random_reads(place))
                for place in range(PLACES)
                for _ in range(2)
            ]
            try:
                await self._inject_faults(schedule.faults)
                async with asyncio.timeout(RECOVERY_S):
                    await clients.write_and_read_all_keys()
            finally:
                for task in working:
                    task.cancel()
        async with asyncio.timeout(RECOVERY_S):
            await clients.delete_all_keys()

    async def _inject_faults(self, faults: Sequence[ScheduledFault]) -> None:
        """Begin and end each fault at its time."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        events = [(fault.start_s, True, fault) for fault in faults]
        events += [(fault.end_s, False, fault) for fault in faults]
        try:
            for at_s, is_start, fault in sorted(events, key=lambda event: event[:2]):
                await asyncio.sleep(began_s + at_s - loop.time())
                (self._begin_fault if is_start else self._end_fault)(fault)
        finally:
            for fault in faults:
                self._end_fault(fault)
                for name in fault.inside:
                    self._network.shift_clock(name, ProcessClock.MONOTONIC, 0)

    def _begin_fault(self, fault: ScheduledFault) -> None:
        for name in fault.inside:
            if fault.kind is FaultKind.WALL_CLOCK:
                self._network.shift_clock(name, ProcessClock.WALL, fault.seconds)
            elif fault.kind in (FaultKind.PAUSE, FaultKind.SUSPEND):
                os.kill(self._processes[name].pid, signal.SIGSTOP)
                self._paused_s[name] = monotonic()
            elif fault.kind in (FaultKind.KILL, FaultKind.STOP):
                is_kill = fault.kind is FaultKind.KILL
                os.kill(self._processes[name].pid, signal.SIGKILL if is_kill else signal.SIGTERM)
                self._ended.add(name)
            for other in fault.outside:
                if fault.kind is FaultKind.CUT:
                    self._network.cut(name, other, fault.direction)
                elif fault.kind is FaultKind.DELAY:
                    self._network.delay(name, other, fault.seconds, fault.direction)
                else:
                    self._network.half_open(name, other)

    def _end_fault(self, fault: ScheduledFault) -> None:
        for name in fault.inside:
            if fault.kind is FaultKind.WALL_CLOCK:
                self._network.shift_clock(name, ProcessClock.WALL, 0)
            elif name in self._paused_s:
                paused_s = monotonic() - self._paused_s.pop(name) - SIGSTOP_S
                if fault.kind is FaultKind.SUSPEND:
                    self._network.shift_clock(name, ProcessClock.MONOTONIC, -max(0.0, paused_s))
                os.kill(self._processes[name].pid, signal.SIGCONT)
            elif name in self._ended:
                self._ended.remove(name)
                self._processes[name].kill()
                self._processes[name].start()
            for other in fault.outside:
                self._network.end_faults(name, other)

    def _read_log_ends(self) -> str:
        return "\n".join(
            f"--- {coordinator.process.log}\n{coordinator.process.log_tail()}"
            for coordinator in self.coordinators
        )


def keys_of_each_shard(
    name: str, shards: int = SHARDS, keys_of_shard: int = KEYS_OF_SHARD
) -> list[SharePartitionKey]:
    """Return `keys_of_shard` share-partitions of each shard. Their groups are named after `name`."""
    keys: dict[int, list[SharePartitionKey]] = {shard: [] for shard in range(shards)}
    for number in count():
        key = SharePartitionKey(f"{name}-{number}", TOPIC_ID, 0)
        keys[state_partition(key, shards)].append(key)
        if all(len(found) >= keys_of_shard for found in keys.values()):
            break
    return [key for found in keys.values() for key in found[:keys_of_shard]]


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
