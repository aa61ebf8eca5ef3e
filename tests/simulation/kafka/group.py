"""The product's own membership on virtual time: a group's coordinator in the world, and the ways to it.

The coordinator is `tests.unit.ownership.fake_group`, which goes by Kafka's rules for classic groups.  What
may happen here: a request or its answer is lost, somebody cannot reach the coordinator, the group moves to
another broker, a member is thrown out for no reason.  What does not happen: a broker that is cut off goes on
as the group's coordinator without knowing it while another one leads the group; a member is thrown out for no
reason while it may be cut off with such a broker.  Nothing that a member hears could tell it then that others
own its shards, so a lease would bound nothing.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from coordinator.kafka import group as kafka
from coordinator.kafka.cluster import NoAnswer
from coordinator.kafka.group import Described, Found, Joined, Look, Synced
from coordinator.ownership import OwnerMap, Ownership, Replica
from coordinator.ownership.group import GroupOwnership
from coordinator.ownership.limits import GroupLimits
from coordinator.ownership.messages import group_view
from tests.simulation.kafka.brokers import SimBrokers
from tests.simulation.kafka.membership import MembershipFaults
from tests.simulation.loop import SimLoop
from tests.unit.ownership.fake_group import COMPLETING, PREPARING, STABLE, FakeGroup

_Answer = TypeVar("_Answer")

TOPIC = "state"


class GroupMembership:
    """The group; has the face of `SimMembership` for the world."""

    def __init__(
        self,
        loop: SimLoop,
        rng: Random,
        faults: MembershipFaults,
        brokers: SimBrokers,
        shards: int,
        *,
        named: bool,
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.faults = faults
        self.blocked: set[str] = set()
        self.brokers = brokers
        self.group = FakeGroup(session_s=faults.session_s, rebalance_s=faults.session_s)
        self.group.nodes = set(brokers.nodes)
        self._shards = shards
        self._named = named
        self._owner_map: OwnerMap | None = None
        self._read: list[bytes] = []

    def ownership(self, replica: Replica, world: Context) -> Ownership:
        """Make the ownership of a process."""
        faults = self.faults
        return GroupOwnership(
            lambda: _Link(self, replica.instance, world),
            replica=replica,
            state_topic=TOPIC,
            state_partitions=self._shards,
            group_id="group",
            # A place is where it listens.
            group_instance_id=replica.wire if self._named else "",
            limits=GroupLimits(
                session_timeout_s=faults.session_s,
                heartbeat_interval_s=faults.heartbeat_s,
                rebalance_timeout_s=faults.session_s,
                # Two looks are to fit into the time that somebody is cut off from a broker.
                reach_interval_s=0.5,
                near_interval_s=60.0,
            ),
            monotonic=self.loop.time,
            started_ms=round(1_000 * self.loop.time()),
            own_thread=False,
        )

    def owner(self, shard: int) -> str | None:
        """Return who should own a shard by the newest assignment."""
        owner_map = self._map()
        owner = None if owner_map is None else owner_map.owner(shard)
        return None if owner is None else owner.instance

    def settled(self, names: set[str]) -> bool:
        """Tell whether exactly these are members, and all shards are theirs."""
        owners = {self.owner(shard) for shard in range(self._shards)}
        return self.group.state == STABLE and len(self.group.members) == len(names) and owners <= names

    def shuffle(self) -> None:
        """Throw a member out, or have another broker coordinate the group."""
        members = self.group.members
        if members and not self.brokers.views and self.rng.random() < 0.5:
            self.group.throw_out(self.rng.choice(list(members)))
        elif self.group.state not in (PREPARING, COMPLETING):
            self.group.move(self.rng.choice(sorted(self.group.nodes)))

    def _map(self) -> OwnerMap | None:
        """Return the owners by the newest assignments of all members."""
        assignments = [member.assignment for member in self.group.members.values()]
        if assignments != self._read and all(assignments):
            self._read = assignments
            described = [(member.metadata, member.assignment) for member in self.group.members.values()]
            view = group_view(described, self.group.generation, self._shards)
            self._owner_map = view and view.owner_map
        return self._owner_map


class _Link:
    """A `GroupLink` of one process."""

    def __init__(self, membership: GroupMembership, name: str, world: Context) -> None:
        self._membership = membership
        self._group = membership.group
        self._name = name
        self._world = world
        self._loop = membership.loop

    async def find_coordinator(self) -> Found:
        """Ask any broker."""
        return await self._ask(
            None, lambda: Found(kafka.NONE, self._group.node), lambda code: Found(code, -1)
        )

    async def join(self, node: int, member_id: str, metadata: bytes, instance_id: str) -> Joined:
        """Join."""
        return await self._ask(node, lambda: self._group.join(member_id, metadata, instance_id), Joined)

    async def sync(
        self, node: int, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str
    ) -> Synced:
        """Sync."""
        return await self._ask(
            node, lambda: self._group.sync(generation, member_id, assignments, instance_id), Synced
        )

    async def heartbeat(self, node: int, generation: int, member_id: str, instance_id: str) -> int:
        """Send a heartbeat."""
        return await self._ask(node, lambda: self._group.heartbeat(generation, member_id, instance_id), int)

    async def leave(self, node: int, member_id: str) -> int:
        """Leave."""
        return await self._ask(node, lambda: self._group.leave(member_id), int)

    async def describe(self, node: int) -> Described:
        """Describe the members."""
        return await self._ask(node, self._group.describe, Described)

    async def leaders(self) -> Mapping[int, int]:
        """Return who leads which state partition."""
        return dict(enumerate(self._membership.brokers.leaders()))

    async def look(self, choose: Callable[[Mapping[int, int]], Collection[int]]) -> Look | None:
        """Say which leaders this process cannot reach, as a broker that it can reach knows them."""
        brokers = self._membership.brokers
        await asyncio.sleep(self._membership.faults.travel_s)
        for node in brokers.nodes:
            if brokers.reaches(self._name, node):
                leaders = dict(
                    enumerate(brokers.views[node][0] if node in brokers.views else brokers.leaders())
                )
                alive = {*choose(leaders)} - brokers.down
                return Look(
                    leaders, {each: "blocked" for each in alive if (self._name, each) in brokers.blocked}
                )
        return None

    async def close(self) -> None:
        """Do nothing."""

    def _ask(
        self, node: int | None, serve: Callable[[], Any], refused: Callable[[int], _Answer]
    ) -> "asyncio.Future[_Answer]":
        """Send a request through the world; the future gets the answer, or NoAnswer after a while."""
        membership, rng, faults = self._membership, self._membership.rng, self._membership.faults
        answered: asyncio.Future[_Answer] = self._loop.create_future()
        patience_s = faults.session_s * rng.choice((0.1, 0.5, 2.5))

        def arrive() -> None:
            answer = serve() if node in (None, self._group.node) else refused(kafka.NOT_COORDINATOR)
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(lambda done: come_back(done.result()), context=self._world)
            else:
                come_back(answer)

        def come_back(answer: _Answer) -> None:
            if not self._is_lost():
                self._later(rng.expovariate(1 / faults.travel_s), told, answer)

        def told(answer: _Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        def give_up(sent: bool) -> None:
            if not answered.done():
                answered.set_exception(NoAnswer("the group's coordinator does not answer", sent=sent))

        if self._name in membership.blocked:
            self._later(rng.expovariate(1 / faults.travel_s), give_up, False)
            return answered
        self._later(patience_s, give_up, True)
        if not self._is_lost():
            self._later(rng.expovariate(1 / faults.travel_s), arrive)
        return answered

    def _is_lost(self) -> bool:
        membership = self._membership
        return self._name in membership.blocked or membership.rng.random() < membership.faults.lost_rate

    def _later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        self._loop.call_later(delay_s, callback, *args, context=self._world)
