"""Three coordinators on three brokers, with faults of each link, and clients whose histories are checked."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import Random

from coordinator.client import SharePartitionKey
from protocol.routing import state_partition
from tests.builders import TOPIC_ID
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.ports import free_ports
from tests.kafka.served_process import INSTALLED, Build
from tests.kafka.tcp_proxy import TcpProxy
from tests.simulation.history import Violation
from tests.topic.groups import sharing
from tests.topic.linked_brokers import PLACES, LinkedBrokers
from tests.topic.partition_schedule import Fault, FaultKind, Schedule
from tests.topic.recorded_clients import RecordedClients

SHARDS = 6
LEASE_S = 0.5
# Short timeouts, so that other coordinators take over within a schedule of a few seconds.
SETTINGS = {
    "session.timeout.ms": "1500",
    "heartbeat.interval.ms": "300",
    "rebalance.timeout.ms": "3000",
    "owner.lease.ms": str(int(LEASE_S * 1000)),
    "request.timeout.ms": "1000",
    "delivery.timeout.ms": "3000",
    "forwarding": "always",
    # So often that snapshots are written and records are pruned during a schedule.
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
    "share.coordinator.state.topic.prune.interval.ms": "1000",
}
BROKER_SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.num.partitions": "3",
}
# Several for each shard, because an append in flight blocks the reads of its share-partitions.
KEYS_OF_SHARD = 3
# The deadline of all coordinators to serve all share-partitions again, on a busy machine.
RECOVERY_S = 120.0


class PartitionedCluster:
    """Three coordinators with a common state topic. `links[place]` leads from the others to a coordinator."""

    def __init__(
        self,
        brokers: LinkedBrokers,
        directory: Path,
        stack: ExitStack,
        topic: str,
        *,
        build: Build = INSTALLED,
    ) -> None:
        """Prepare the coordinators, which are killed when `stack` closes; nothing is started."""
        self._brokers = brokers
        self.links: list[TcpProxy] = []
        self.coordinators: list[CoordinatorProcess] = []
        self._runs = count()
        for place in range(PLACES):
            port, http_port, proxy_port = free_ports(3)
            link = TcpProxy(proxy_port, port)
            stack.callback(link.close)
            own = directory / f"{topic}-{place}"
            own.mkdir()
            settings = {**sharing(brokers.bootstraps[place], topic, SHARDS), **SETTINGS}
            one = CoordinatorProcess(
                own,
                port=port,
                http_port=http_port,
                advertised_port=proxy_port,
                settings=settings,
                log="kafka",
                build=build,
            )
            stack.callback(one.kill)
            self.links.append(link)
            self.coordinators.append(one)

    def start(self) -> None:
        """Start the coordinators, and wait until they are ready."""
        for one in self.coordinators:
            one.process.start()
        for one in self.coordinators:
            one.process.wait_ready(lambda one=one: one.get("/readyz")[0] == 200, seconds=RECOVERY_S)

    def run(self, schedule: Schedule) -> RecordedClients:
        """Run a schedule, wait for the recovery, and check the history. Raise Violation with the schedule."""
        ports = [one.port for one in self.coordinators]
        keys = _keys_of_each_shard(f"run-{next(self._runs)}")
        clients = RecordedClients(keys, ports, Random(schedule.seed))
        try:
            asyncio.run(self._run(schedule, clients))
            clients.check()
        except (AssertionError, TimeoutError, ExceptionGroup) as error:
            raise Violation(f"{type(error).__name__}: {error}\n{schedule}\n{self._logs()}") from error
        return clients

    def memory_mb(self) -> float:
        """Return the resident memory of the largest coordinator."""
        return max(_resident_mb(one.process.pid) for one in self.coordinators)

    async def _run(self, schedule: Schedule, clients: RecordedClients) -> None:
        async with asyncio.timeout(RECOVERY_S):
            await clients.initialize()
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(clients.read_and_write(place)) for place in range(PLACES)]
            working += [tasks.create_task(clients.read(place)) for place in range(PLACES) for _ in range(2)]
            try:
                await self._cause(schedule.faults)
                async with asyncio.timeout(RECOVERY_S):
                    await clients.read_everything()
            finally:
                for task in working:
                    task.cancel()
        async with asyncio.timeout(RECOVERY_S):
            await clients.delete()

    async def _cause(self, faults: Sequence[Fault]) -> None:
        """Begin and end each fault at its time."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        events = [(fault.start_s, True, fault) for fault in faults]
        events += [(fault.end_s, False, fault) for fault in faults]
        try:
            for at_s, is_start, fault in sorted(events, key=lambda event: event[:2]):
                await asyncio.sleep(began_s + at_s - loop.time())
                (self._begin if is_start else self._end)(fault)
        finally:
            for fault in faults:
                self._end(fault)

    def _begin(self, fault: Fault) -> None:
        if fault.kind is FaultKind.PAUSE:
            os.kill(self.coordinators[fault.place].process.pid, signal.SIGSTOP)
        for link in self._links_of(fault):
            if fault.kind is FaultKind.CUT:
                link.cut(fault.direction)
            elif fault.kind is FaultKind.DELAY:
                link.delay(fault.delay_s, fault.direction)
            else:
                link.half_open()

    def _end(self, fault: Fault) -> None:
        if fault.kind is FaultKind.PAUSE:
            os.kill(self.coordinators[fault.place].process.pid, signal.SIGCONT)
        for link in self._links_of(fault):
            link.mend()

    def _links_of(self, fault: Fault) -> list[TcpProxy]:
        links = self._brokers.links[fault.place]
        return [links[node] for node in fault.nodes] + [self.links[fault.place]] * fault.peers

    def _logs(self) -> str:
        return "\n".join(f"--- {one.process.log}\n{one.process.log_tail()}" for one in self.coordinators)


def _keys_of_each_shard(name: str) -> list[SharePartitionKey]:
    found: dict[int, list[SharePartitionKey]] = {shard: [] for shard in range(SHARDS)}
    for number in count():
        key = SharePartitionKey(f"{name}-{number}", TOPIC_ID, 0)
        keys = found[state_partition(key, SHARDS)]
        keys += [key] * (len(keys) < KEYS_OF_SHARD)
        if all(len(keys) == KEYS_OF_SHARD for keys in found.values()):
            break
    return [key for keys in found.values() for key in keys]


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
