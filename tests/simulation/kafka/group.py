"""Run the real group membership on virtual time, with a simulated group coordinator and network.

The coordinator is `tests.unit.ownership.fake_group`, with Kafka's rules for classic groups. Faults: a request
or response is lost, a process cannot reach the coordinator, the group moves to another broker, or a member is
removed.

If the coordinating broker is disconnected from the others, another broker coordinates the group. The
disconnected broker continues with its old state (`StaleGroup`).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from coordinator.cluster.kafka.cluster import NoResponse
from coordinator.cluster.kafka.group import (
    CoordinatorLookup,
    DescribeResult,
    JoinResult,
    MetadataSnapshot,
    SyncResult,
)
from coordinator.cluster.ownership import Assignment, Ownership, Replica
from coordinator.cluster.ownership.group import GroupOwnership
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.cluster.ownership.messages import read_group_view
from protocol.errors import ErrorCode
from tests.simulation.kafka.brokers import SimBrokers
from tests.simulation.kafka.membership import MembershipFaults
from tests.simulation.kafka.stale_group import StaleGroup
from tests.simulation.loop import SimLoop
from tests.unit.ownership.fake_group import COMPLETING, PREPARING, STABLE, FakeGroup

_Answer = TypeVar("_Answer")

TOPIC = "state"


class ProductMembership:
    """The real group membership, with the interface of `SimMembership`."""

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
        # By node id: the group at disconnected brokers, and the group coordinator that each of them knows.
        self.stale: dict[int, StaleGroup] = {}
        self._coordinators_known: dict[int, int] = {}
        self._shards = shards
        self._named = named
        self._assignment: Assignment | None = None
        self._read: list[bytes] = []

    def ownership(self, replica: Replica, world: Context) -> Ownership:
        """Return the ownership of a process."""
        faults = self.faults
        return GroupOwnership(
            lambda: _SimGroupClient(self, replica.instance, world),
            replica=replica,
            state_topic=TOPIC,
            state_partitions=self._shards,
            group_id="group",
            # The group.instance.id is the listener address.
            group_instance_id=replica.wire if self._named else "",
            limits=GroupLimits(
                session_timeout_s=faults.session_s,
                heartbeat_interval_s=faults.heartbeat_s,
                rebalance_timeout_s=faults.session_s,
                # A broker is unreachable for longer than two intervals, so that two checks detect it.
                reachability_interval_s=0.5,
                locality_interval_s=60.0,
            ),
            monotonic=self.loop.time,
            started_ms=round(1_000 * self.loop.time()),
            own_thread=False,
        )

    def owner(self, shard: int) -> str | None:
        """Return the owner of a shard in the newest assignment."""
        assignment = self._map()
        owner = None if assignment is None else assignment.owner(shard)
        return None if owner is None else owner.instance

    def settled(self, names: set[str]) -> bool:
        """Return whether the group has exactly the members `names`, and these own all shards."""
        owners = {self.owner(shard) for shard in range(self._shards)}
        return self.group.state == STABLE and len(self.group.members) == len(names) and owners <= names

    def shuffle(self) -> None:
        """Remove a member, or move the group to another broker."""
        members = self.group.members
        if members and self.rng.random() < 0.5:
            self.group.expel(self.rng.choice(list(members)))
        elif self.group.state not in (PREPARING, COMPLETING):
            self._move_to([node for node in self.brokers.nodes if node not in self.brokers.views])

    def cut_off(self, node: int) -> None:
        """Process the disconnection of a broker. If it coordinates the group, another broker will
        coordinate it.
        """
        self._coordinators_known[node] = self.group.node
        if node == self.group.node:
            self.stale[node] = StaleGroup(self.group, node, self.loop)
            delay_s = self.rng.expovariate(1 / self.brokers.faults.elections_s)
            self.loop.call_later(delay_s, self._elect)

    def rejoin(self, node: int) -> None:
        """Process the reconnection of a broker, which then knows the current coordinator."""
        self.stale.pop(node, None)
        self._coordinators_known.pop(node, None)

    def coordinator_at(self, node: int) -> "FakeGroup | StaleGroup | None":
        """Return the group at a broker, or None if the broker does not coordinate it."""
        if node in self.stale:
            return self.stale[node]
        return self.group if node == self.group.node else None

    def coordinator_known_to(self, node: int) -> int:
        """Return the group coordinator that a broker knows."""
        return self._coordinators_known.get(node, self.group.node)

    def coordinate_at(self, node: int) -> None:
        """Move the group to a broker."""
        if node != self.group.node and self.group.state not in (PREPARING, COMPLETING):
            self.group.move(node)

    def _elect(self) -> None:
        if self.group.node in self.stale:
            self._move_to([node for node in self.brokers.nodes if node not in self.brokers.views])

    def _move_to(self, nodes: list[int]) -> None:
        if nodes:
            self.group.move(self.rng.choice(nodes))

    def _map(self) -> Assignment | None:
        """Return the assignment of all members, from their newest messages."""
        assignments = [member.assignment for member in self.group.members.values()]
        if assignments != self._read and all(assignments):
            self._read = assignments
            described = [(member.metadata, member.assignment) for member in self.group.members.values()]
            view = read_group_view(described, self.group.generation, self._shards)
            self._assignment = view and view.assignment
        return self._assignment


class _SimGroupClient:
    """A `GroupClient` of one process."""

    def __init__(self, membership: ProductMembership, name: str, world: Context) -> None:
        self._membership = membership
        self._name = name
        self._world = world
        self._loop = membership.loop

    async def find_coordinator(self) -> CoordinatorLookup:
        """Send FindCoordinator to a random reachable broker."""
        membership = self._membership
        nodes = [node for node in membership.brokers.nodes if self._reaches(node)]
        node = membership.rng.choice(nodes or list(membership.brokers.nodes))
        found = CoordinatorLookup(ErrorCode.NONE, membership.coordinator_known_to(node))
        return await self._send(node, lambda: found)

    async def join(self, node: int, member_id: str, metadata: bytes, instance_id: str) -> JoinResult:
        """Send JoinGroup."""
        return await self._ask(node, lambda group: group.join(member_id, metadata, instance_id), JoinResult)

    async def sync(
        self, node: int, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str
    ) -> SyncResult:
        """Send SyncGroup."""
        return await self._ask(
            node, lambda group: group.sync(generation, member_id, assignments, instance_id), SyncResult
        )

    async def heartbeat(self, node: int, generation: int, member_id: str, instance_id: str) -> int:
        """Send a heartbeat."""
        return await self._ask(node, lambda group: group.heartbeat(generation, member_id, instance_id), int)

    async def leave(self, node: int, member_id: str) -> int:
        """Send LeaveGroup."""
        return await self._ask(node, lambda group: group.leave(member_id), int)

    async def describe(self, node: int) -> DescribeResult:
        """Describe the members."""
        return await self._ask(node, lambda group: group.describe(), DescribeResult)

    async def leaders(self) -> Mapping[int, int]:
        """Return the leader of each state partition."""
        return dict(enumerate(self._membership.brokers.leaders()))

    async def probe_leaders(
        self, choose: Callable[[Mapping[int, int]], Collection[int]]
    ) -> MetadataSnapshot | None:
        """Return the leaders from a reachable broker, and which of them this process cannot reach."""
        brokers = self._membership.brokers
        await asyncio.sleep(self._membership.faults.travel_s)
        for node in brokers.nodes:
            if brokers.reaches(self._name, node):
                leaders = dict(
                    enumerate(brokers.views[node][0] if node in brokers.views else brokers.leaders())
                )
                alive = {*choose(leaders)} - brokers.down
                return MetadataSnapshot(
                    leaders, {each: "blocked" for each in alive if (self._name, each) in brokers.blocked}
                )
        return None

    async def close(self) -> None:
        """Do nothing."""

    def _ask(
        self,
        node: int,
        serve: "Callable[[FakeGroup | StaleGroup], Any]",
        refused: Callable[[int], _Answer],
    ) -> "asyncio.Future[_Answer]":
        """Send a request to a broker. The broker refuses it if it does not coordinate the group."""

        def answer() -> Any:
            group = self._membership.coordinator_at(node)
            return refused(ErrorCode.NOT_COORDINATOR) if group is None else serve(group)

        return self._send(node, answer)

    def _send(self, node: int, serve: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Send a request over the network. The future receives the response, or NoResponse after a
        timeout.
        """
        rng, faults = self._membership.rng, self._membership.faults
        answered: asyncio.Future[Any] = self._loop.create_future()
        patience_s = faults.session_s * rng.choice((0.1, 0.5, 2.5))

        def arrive() -> None:
            if not self._reaches(node):
                return
            answer = serve()
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(lambda done: come_back(done.result()), context=self._world)
            else:
                come_back(answer)

        def come_back(answer: Any) -> None:
            if self._reaches(node) and not self._is_lost():
                self._later(rng.expovariate(1 / faults.travel_s), told, answer)

        def told(answer: Any) -> None:
            if not answered.done():
                answered.set_result(answer)

        def give_up(sent: bool) -> None:
            if not answered.done():
                answered.set_exception(NoResponse("the group's coordinator does not answer", sent=sent))

        if not self._reaches(node):
            self._later(rng.expovariate(1 / faults.travel_s), give_up, False)
            return answered
        self._later(patience_s, give_up, True)
        if not self._is_lost():
            self._later(rng.expovariate(1 / faults.travel_s), arrive)
        return answered

    def _reaches(self, node: int) -> bool:
        membership = self._membership
        return self._name not in membership.blocked and (self._name, node) not in membership.brokers.blocked

    def _is_lost(self) -> bool:
        return self._membership.rng.random() < self._membership.faults.lost_rate

    def _later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        self._loop.call_later(delay_s, callback, *args, context=self._world)
