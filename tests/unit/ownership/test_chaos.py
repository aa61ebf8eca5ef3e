"""After random faults of a group and its members, the members share the shards again.

A seed determines the faults. During the faults, no replica is elected for a shard that it owns, or resigns a
shard that it does not own. Two replicas with a fresh lease own the same shard at most for the duration of a
lease.
"""

import asyncio
from itertools import combinations
from random import Random

import pytest

from coordinator.cluster.ownership.limits import GroupLimits
from protocol.errors import ErrorCode
from tests.simulation.loop import SimLoop
from tests.unit.ownership.fake_group import STABLE, FakeGroup
from tests.unit.ownership.replicas import GroupReplica, ReplicaGroup

LIMITS = GroupLimits()
FAULTS = 60
CODES = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
]


class FaultInjector:
    """Random faults of a group and its members, and their repairs."""

    def __init__(self, random: Random, group: FakeGroup, fleet: ReplicaGroup) -> None:
        self.random = random
        self.group = group
        self.fleet = fleet
        self.living: list[GroupReplica] = []
        self.overlaps: dict[tuple[str, str, int], float] = {}

    async def inject_one(self) -> None:
        """Inject one random fault or repair."""
        members = (
            self.start_replica,
            self.kill_replica,
            self.drain_replica,
            self.stop_replica,
            self.cut_connection,
            self.reconnect_replicas,
            self.fence_shards,
            self.change_readiness,
        )
        brokers = (
            self.inject_error,
            self.move_coordinator,
            self.expel_member,
            self.stop_broker,
            self.start_brokers,
            self.lose_group,
        )
        await self.random.choice((*members, *brokers))()

    async def start_replica(self) -> None:
        if len(self.living) < 5:
            self.living.append(await self.fleet.add())

    async def kill_replica(self) -> None:
        # A killed process is cut off, and the test no longer uses it.
        if self.living:
            self.random.choice(self.living).link.cut = True  # type: ignore[attr-defined]
            self.living = [one for one in self.living if not one.link.cut]  # type: ignore[attr-defined]

    async def drain_replica(self) -> None:
        if len(self.living) > 1:
            one = self.living.pop(self.random.randrange(len(self.living)))
            await one.ownership.drain(self.random.uniform(0.1, 10.0))
            assert one.owned == set() or await self.fleet.wait_until(lambda: one.owned == set(), 1.0)

    async def stop_replica(self) -> None:
        if len(self.living) > 1:
            one = self.living.pop(self.random.randrange(len(self.living)))
            await one.ownership.stop()

    async def inject_error(self) -> None:
        api = self.random.choice(["find", "join", "sync", "heartbeat"])
        self.group.errors.setdefault(api, []).append(self.random.choice(CODES))

    async def move_coordinator(self) -> None:
        self.group.move_to_broker(self.random.choice(sorted(self.group.nodes)))

    async def expel_member(self) -> None:
        if self.group.members:
            self.group.expel_member(self.random.choice(sorted(self.group.members)))

    async def cut_connection(self) -> None:
        for one in self.random.sample(self.living, min(1, len(self.living))):
            one.link.cut = True  # type: ignore[attr-defined]

    async def reconnect_replicas(self) -> None:
        for one in self.living:
            one.link.cut = False  # type: ignore[attr-defined]

    async def fence_shards(self) -> None:
        for one in self.living:
            if one.owned:
                one.fence_shard(self.random.choice(sorted(one.owned)))

    async def change_readiness(self) -> None:
        for one in self.living:
            one.listener.is_ready = self.random.random() < 0.8

    async def stop_broker(self) -> None:
        self.group.down.add(self.random.choice(sorted(self.group.nodes)))

    async def start_brokers(self) -> None:
        self.group.down.clear()

    async def lose_group(self) -> None:
        if self.random.random() < 0.2:
            self.group.forget()

    async def watch_overlaps(self) -> None:
        """Check that two replicas own one shard with fresh leases at most for the duration of a lease."""
        while True:
            believers = [one for one in self.fleet.replicas if one.ownership.lease_is_fresh()]
            both = {
                (one.replica.instance, other.replica.instance, partition)
                for one, other in combinations(believers, 2)
                for partition in one.owned & other.owned
            }
            self.overlaps = {pair: self.overlaps.get(pair, self.fleet.now()) for pair in both}
            assert all(self.fleet.now() - since_s <= LIMITS.lease_s for since_s in self.overlaps.values())
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("seed", range(40))
def test_members_share_all_shards_after_random_faults(seed: int) -> None:
    loop = SimLoop()

    async def main() -> None:
        random = Random(seed)
        group = FakeGroup(
            session_s=LIMITS.session_timeout_s,
            rebalance_s=LIMITS.rebalance_timeout_s,
            first_delay_s=random.choice([0.0, 3.0]),
        )
        fleet = ReplicaGroup(group.new_client, limits=LIMITS)
        chaos = FaultInjector(random, group, fleet)
        watching = asyncio.ensure_future(chaos.watch_overlaps())
        for _ in range(FAULTS):
            await chaos.inject_one()
            until_s = fleet.now() + random.expovariate(1 / 2.0)
            await fleet.wait_until(lambda: fleet.now() >= until_s)  # noqa: B023
        await chaos.start_brokers()
        await chaos.reconnect_replicas()
        group.errors.clear()
        for one in chaos.living:
            one.listener.is_ready = True
        if not chaos.living:
            await chaos.start_replica()
        await fleet.wait_until(lambda: fleet.is_shared_by(*chaos.living) and group.state == STABLE, 60.0)
        await fleet.wait_until(lambda: all(one.ownership.health() == [] for one in chaos.living), 10.0)
        assert not watching.done()
        watching.cancel()
        await fleet.stop()

    try:
        loop.run_until_complete(main())
        assert loop.failures == []
    finally:
        loop.close()
