"""Runtimes in a coordinator group: a failure of one shard does not move other shards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator.cluster.ownership import Assignment, Replica
from coordinator.cluster.ownership.group import GroupOwnership
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.log.kafka import KafkaLog, TopicConfig
from coordinator.process.clock import SystemClock
from tests.kafka_in_memory.faulty_group_client import FaultyGroupClient
from tests.kafka_in_memory.group import GroupInMemory
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.simulation.loop import PROCESS, Process, run
from tests.unit.coroutine_tests import wait_until
from tests.unit.log.kafka_logs import loop_time
from tests.unit.runtime.runtime_without_jobs import make_runtime

pytestmark = [pytest.mark.run_with(function=run), pytest.mark.slow]

TOPIC, SHARDS, BAD = "state", 8, 3
LIMITS = GroupLimits()
# How long a test checks that no shard moves, in seconds. Many rebalances would fit into this time.
WATCHED_S = 60.0


class RuntimeMember:
    """A runtime in a group, composed as in the application, which counts its elections."""

    def __init__(self, name: str, fake: KafkaInMemory, link: FaultyGroupClient) -> None:
        self.name, self.fake, self.link = name, fake, link
        self.cluster = fake.new_client(TOPIC)
        self.elections = 0
        self.ownership = GroupOwnership(
            lambda: link,
            replica=Replica(name, f"{name}:9095"),
            state_topic=TOPIC,
            state_partitions=SHARDS,
            group_id="group",
            limits=LIMITS,
            monotonic=asyncio.get_running_loop().time,
            started_ms=0,
            own_thread=False,
        )
        self.runtime = make_runtime(
            KafkaLog(
                self.cluster,
                TopicConfig(TOPIC, SHARDS),
                owner=name,
                clock=SystemClock(),
                monotonic=loop_time,
            ),
            SHARDS,
            may_claim=self.ownership.lease_is_fresh,
            on_fenced=self.ownership.on_fenced,
        )

    async def start(self) -> None:
        """Start this coordinator as a separate process of the simulation."""
        PROCESS.set(Process(self.name))
        await self.runtime.start(elect_all=False)
        await self.ownership.start(self)

    def on_assignment_changed(self, assignment: Assignment | None) -> None:
        pass

    def on_elected(self, state_partition: int, *, release_expected: bool) -> None:
        self.elections += 1
        self.runtime.elect(state_partition, release_expected=release_expected)

    def on_resigned(self, state_partition: int) -> None:
        self.runtime.resign(state_partition)

    def is_ready_to_serve(self) -> bool:
        return self.runtime.can_serve

    def is_resigning(self) -> bool:
        return bool(self.runtime.resigning_shards)

    def active_shards(self) -> set[int]:
        return {view.state_partition for view in self.runtime.shard_views() if view.status == "ACTIVE"}

    def set_disconnected(self, cut: bool, *, from_the_group: bool = True) -> None:
        """Disconnect the member from the brokers, or reconnect it."""
        self.fake.set_disconnected(self.name, cut)
        # As after a failed request.
        self.cluster.refresh_soon()
        self.link.cut = cut and from_the_group


@asynccontextmanager
async def run_members(
    fake: KafkaInMemory, group: GroupInMemory, count: int
) -> AsyncIterator[list[RuntimeMember]]:
    """Run `count` members until all shards are served; then reset the counts of elections."""
    members = [RuntimeMember(f"member-{number}", fake, group.new_client()) for number in range(count)]
    for member in members:
        await asyncio.create_task(member.start())
    await wait_until(lambda: {len(member.active_shards()) for member in members} == {SHARDS // count})
    for member in members:
        member.elections = 0
    try:
        yield members
    finally:
        for member in members:
            await member.ownership.stop()
            await member.runtime.stop()


def make_group() -> GroupInMemory:
    # As by default in Kafka, a new group waits for more members.
    return GroupInMemory(
        session_s=LIMITS.session_timeout_s, rebalance_s=LIMITS.rebalance_timeout_s, first_delay_s=3.0
    )


async def test_shard_that_cannot_be_loaded_moves_no_other_shard() -> None:
    fake, group = KafkaInMemory(), make_group()
    async with run_members(fake, group, 2) as members:
        (bad,) = [member for member in members if BAD in member.active_shards()]
        served, generation = [member.active_shards() - {BAD} for member in members], group.generation
        log = fake.topics[TOPIC][BAD]
        whole = log.batches[0]
        log.batches[0] = whole[:-1] + bytes([whole[-1] ^ 1])
        bad.runtime._loader.request_load(bad.runtime._runners[BAD])
        await wait_until(lambda: "Shards failed to load" in " ".join(bad.runtime.health()))
        await asyncio.sleep(WATCHED_S)
        assert "Shards failed to load" in " ".join(bad.runtime.health())
        assert [member.active_shards() for member in members] == served
        assert [member.elections for member in members] == [0, 0]
        assert group.generation == generation
        # Only the owner reports the shard. After the repair, the owner serves it.
        assert [member.runtime.health() for member in members if member is not bad] == [[]]
        log.batches[0] = whole
        await wait_until(lambda: BAD in bad.active_shards())


async def test_member_without_brokers_hands_over_its_shards() -> None:
    async with run_members(KafkaInMemory(), make_group(), 2) as (away, other):
        away.set_disconnected(True, from_the_group=False)
        await wait_until(lambda: len(other.active_shards()) == SHARDS)
        away.set_disconnected(False)
        await wait_until(lambda: len(away.active_shards()) == len(other.active_shards()) == SHARDS // 2)


async def test_shards_stay_with_their_owners_after_kafka_returns() -> None:
    for away_s in (4.0, 7.0, 30.0):
        async with run_members(KafkaInMemory(), make_group(), 2) as members:
            served = [member.active_shards() for member in members]
            for member in members:
                member.set_disconnected(True)
            await asyncio.sleep(away_s)
            # Each membership reconnects before its log, and the log of the first member is late.
            for member in members:
                member.link.cut = False
            members[1].set_disconnected(False)
            await asyncio.sleep(1.5)
            members[0].set_disconnected(False)
            await asyncio.sleep(15.0)
            assert [member.active_shards() for member in members] == served
            assert max(member.elections for member in members) <= SHARDS // 2
