"""Run a cluster with its coordinators under load, and measure the effect of each failure."""

import asyncio
import json
import random
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, parse_topic_id
from tests.builders import TOPIC_ID
from tests.chaos.consistency import compare_with_topic, owners_agree
from tests.chaos.groups import PARTITIONS, Groups
from tests.chaos.topic_reader import TopicState
from tests.chaos.write_ledger import WriteLedger
from tests.chaos.writers import WriteGapProbe, WriterGate, send_to_fixed_coordinator
from tests.kafka import CoordinatorProcess, wait_until
from tests.kafka.ports import free_ports
from tests.kafka.rig import ReplicatedRig

STATE_PARTITIONS = 12
STATE_TOPIC = "_share-coordinator-state"
GROUP = "share-coordinator"
SETTINGS = {
    "share.coordinator.state.topic.num.partitions": str(STATE_PARTITIONS),
    # The shortest session timeout that brokers allow by default.
    "session.timeout.ms": "6000",
    # Frequent snapshots, so that the log has redundant records at any time.
    "share.coordinator.snapshot.update.records.per.snapshot": "50",
    "share.coordinator.state.topic.prune.interval.ms": "2000",
}
STUBBORN_EACH = 4
# The maximum number of seconds of each step, on a slow machine.
BOUND_S = 120.0


class FailureEffect(NamedTuple):
    """The effect of one failure: seconds without a successful write, for the worst and the median shard."""

    name: str
    worst_s: float
    median_s: float
    shards_hit: int
    consumers_s: float
    settled_s: float


class ChaosCluster:
    """The processes, writers and share groups of the test, and the results. All coroutines use one event
    loop.
    """

    def __init__(self, rig: ReplicatedRig, directory: Path) -> None:
        self.rig = rig
        self.coordinators = list(rig.coordinators)
        self.rows: list[FailureEffect] = []
        self.seen = TopicState()
        self._directory = directory
        self._gate = WriterGate()
        self._rng = random.Random(7)
        self.books = [WriteLedger(key) for key in _key_of_each_shard()]
        addresses = [f"127.0.0.1:{one.port}" for one in rig.coordinators]
        self._addresses = addresses
        self.probes = [
            WriteGapProbe(book, addresses[place % 3 :] + addresses[: place % 3], self._gate)
            for place, book in enumerate(self.books)
        ]
        self.groups = Groups(rig.client)
        self._writers: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def run_under_load(self) -> AsyncIterator[None]:
        """Start the coordinators, and write and consume while the block runs."""
        for one in self.coordinators:
            one.process.start()
        with self.groups.run_while_active():
            async with asyncio.TaskGroup() as self._writers:
                working = [self._writers.create_task(probe.run()) for probe in self.probes]
                working += [
                    self.send_to_fixed_coordinator(one.port)
                    for one in self.coordinators
                    for _ in range(STUBBORN_EACH)
                ]
                await self.wait_until_settled()
                await self.wait_for_condition(
                    lambda: all(one.acknowledged_count > 60 for one in self.groups.groups), "groups consume"
                )
                yield
                for task in working:
                    task.cancel()

    def send_to_fixed_coordinator(self, port: int) -> asyncio.Task[None]:
        """Send requests for random share-partitions to one coordinator, which does not own all of them."""
        assert self._writers is not None
        return self._writers.create_task(
            send_to_fixed_coordinator(self.books, port, self._gate, random.Random(self._rng.random()))
        )

    def make_twin(self, of: CoordinatorProcess) -> CoordinatorProcess:
        """Return a coordinator, not started yet, that advertises the address of another coordinator."""
        own = self._directory / f"twin-of-{of.port}"
        own.mkdir()
        port, http_port = free_ports(2)
        settings = {"bootstrap.servers": self.rig.brokers[0].bootstrap, "ownership": "group", **SETTINGS}
        return CoordinatorProcess(
            own, port=port, http_port=http_port, advertised_port=of.port, settings=settings, log="kafka"
        )

    def describe_shards(self, one: CoordinatorProcess) -> list[dict[str, Any]]:
        """Return a coordinator's description of each shard."""
        status, body = one.get("/api/v1/shards")
        assert status == 200, body
        shards: list[dict[str, Any]] = json.loads(body)["items"]
        return shards

    def active_shards(self, one: CoordinatorProcess) -> list[int]:
        """Return the shards that a coordinator serves."""
        return [
            shard["state_partition"] for shard in self.describe_shards(one) if shard["status"] == "ACTIVE"
        ]

    async def wait_until_written_at(self, one: CoordinatorProcess) -> None:
        """Wait until a coordinator appends to the log of one of its shards."""
        before = self.describe_shards(one)
        await self.wait_for_condition(
            lambda: any(
                now["end_log_offset"] > was["end_log_offset"]
                for was, now in zip(before, self.describe_shards(one), strict=True)
            ),
            "the coordinator appends records",
        )

    async def wait_for_condition(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition is true; fail after `BOUND_S`."""
        await asyncio.to_thread(wait_until, condition, seconds=BOUND_S, what=what)

    async def wait_until_all_shards_are_written(self) -> None:
        """Wait until a write that started after this call has succeeded on each shard."""
        # A write that was started before this call may still be in flight.
        goals = [probe.successes + 2 for probe in self.probes]
        await self.wait_for_condition(
            lambda: all(probe.successes >= goal for probe, goal in zip(self.probes, goals, strict=True)),
            "writes to all shards succeed",
        )

    async def wait_until_settled(self) -> None:
        """Wait until all running coordinators are ready, report the same owners, and writes to all shards
        succeed.
        """
        await self.wait_for_condition(self._is_settled, "the coordinators are ready and agree")
        await self.wait_until_all_shards_are_written()

    def _is_settled(self) -> bool:
        running = [one for one in self.coordinators if one.process.running]
        keys = [book.key for book in self.books]
        return all(one.get("/readyz")[0] == 200 for one in running) and owners_agree(
            [one.port for one in running], keys
        )

    async def run_disaster(
        self, name: str, disaster: Callable[["ChaosCluster"], Awaitable[str | None]]
    ) -> None:
        """Cause a failure, wait for the recovery, record its effect, and check all state."""
        for probe in self.probes:
            probe.restart_measurement()
        for group in self.groups.groups:
            group.restart_measurement()
        began_s = monotonic()
        more = await disaster(self)
        await self.wait_until_settled()
        gaps = [probe.longest_gap_s for probe in self.probes]
        self.rows.append(
            FailureEffect(
                name + (more or ""),
                max(gaps),
                statistics.median(gaps),
                sum(gap > 1 for gap in gaps),
                max(group.longest_gap_s for group in self.groups.groups),
                monotonic() - began_s,
            )
        )
        assert max(gaps) < BOUND_S
        await self.check()

    async def check(self) -> None:
        """Check that the topic has all acknowledged writes, and that the coordinators return the topic's
        state.
        """
        self.groups.pause_consumption()
        await self._gate.close()
        try:
            found = await compare_with_topic(
                self._addresses,
                self.rig.brokers[0].bootstrap,
                STATE_TOPIC,
                STATE_PARTITIONS,
                [*(book.key for book in self.books), *self._keys_of_groups()],
            )
            for book in self.books:
                book.check(found.states[book.key])
            self._record_topic_changes(found)
        finally:
            self._gate.open()
            self.groups.resume_consumption()
        # Wait until writes succeed again, so that their delay does not count for the next failure.
        await self.wait_until_all_shards_are_written()
        done = [group.acknowledged_count for group in self.groups.groups]
        await self.wait_for_condition(
            lambda: all(
                now.acknowledged_count > was for now, was in zip(self.groups.groups, done, strict=True)
            ),
            "groups consume again",
        )

    def _record_topic_changes(self, found: TopicState) -> None:
        """Record the claims, releases and fenced records of the topic, before pruning removes them."""
        self.seen.records = found.records
        self.seen.claims |= found.claims
        self.seen.releases |= found.releases
        self.seen.of_deposed_owners |= found.of_deposed_owners

    def _keys_of_groups(self) -> list[SharePartitionKey]:
        topic_id = parse_topic_id(self.groups.topic_id)
        return [
            SharePartitionKey(group, topic_id, partition)
            for group in self.groups.names
            for partition in range(PARTITIONS)
        ]

    def report(self, console: Console) -> None:
        """Print the effects of all failures."""
        table = Table(box=None, title="Seconds without a successful write", title_justify="left")
        table.add_column("")
        for column in ("worst shard", "median shard", "shards > 1 s", "share consumers", "settled after"):
            table.add_column(column, justify="right")
        for row in self.rows:
            table.add_row(
                row.name,
                f"{row.worst_s:.1f}",
                f"{row.median_s:.1f}",
                f"{row.shards_hit} of {STATE_PARTITIONS}",
                f"{row.consumers_s:.1f}",
                f"{row.settled_s:.1f}",
            )
        console.print()
        console.print(table)
        writes = sum(book.acknowledged_writes for book in self.books)
        console.print(
            f"acknowledged: {writes:,} writes, {self.groups.settled:,} records of share groups; seen in the "
            f"topic: {len(self.seen.claims)} claims, {len(self.seen.releases)} releases, "
            f"{len(self.seen.of_deposed_owners)} records of deposed owners; {self.seen.records:,} records at "
            f"the end"
        )


def _key_of_each_shard() -> list[SharePartitionKey]:
    found: dict[int, SharePartitionKey] = {}
    for number in count():
        key = SharePartitionKey(f"book-{number}", TOPIC_ID, 0)
        found.setdefault(state_partition(key, STATE_PARTITIONS), key)
        if len(found) == STATE_PARTITIONS:
            break
    return [key for _, key in sorted(found.items())]
