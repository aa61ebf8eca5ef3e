"""Run the real group membership on virtual time, with a simulated group coordinator and network.

The group coordinator `tests.kafka_in_memory.group_coordinator` has Kafka's rules for classic groups. These
faults occur:

* A request or response is lost.
* A process cannot reach the group coordinator.
* The group moves to another broker.
* A member is removed from the group.
* The group coordinator is disconnected from the other brokers, and another broker becomes group coordinator.
The disconnected group coordinator continues with its old state (`StaleGroup`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from coordinator.cluster.kafka.group_client import KafkaGroupClient
from coordinator.cluster.kafka.group_results import DescribeResult, JoinResult, MemberDescription, SyncResult
from coordinator.cluster.ownership import Assignment, Ownership, Replica
from coordinator.cluster.ownership.group import GroupOwnership
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.cluster.ownership.messages import read_group_view
from protocol.errors import ErrorCode
from tests.kafka_in_memory.group_coordinator import COMPLETING, PREPARING, STABLE, GroupCoordinator
from tests.simulation.kafka.brokers import SimBrokers
from tests.simulation.loop import SimLoop


class StaleGroup:
    """A disconnected group coordinator that does not know that another broker coordinates the group.

    Heartbeats of members that reach this group coordinator succeed, because the group is still in its memory.
    Its writes to the group's partition fail, so it distributes no new assignment.
    """

    def __init__(self, group: GroupCoordinator, node: int, loop: SimLoop) -> None:
        self.node = node
        self.generation = group.generation
        self._loop = loop
        self._session_s = group.session_s
        self._is_stable = group.state == STABLE
        self._described = group.describe()
        self._heard_s = dict.fromkeys(group.members, loop.time())

    def heartbeat(self, generation: int, member_id: str, instance_id: str = "") -> int:
        """Return the error code for a heartbeat; NONE until the session of a member expires."""
        if member_id not in self._heard_s:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._heard_s[member_id] = self._loop.time()
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._expire_session()
        return ErrorCode.NONE if self._is_stable else ErrorCode.REBALANCE_IN_PROGRESS

    def _expire_session(self) -> None:
        oldest_s = self._loop.time() - self._session_s
        for member_id in [each for each, heard_s in self._heard_s.items() if heard_s < oldest_s]:
            del self._heard_s[member_id]
            self._is_stable = False
            self._described = DescribeResult(ErrorCode.NONE)

    def join(self, member_id: str, metadata: bytes, instance_id: str = "") -> JoinResult:
        """Let a known member join the next generation, which gets no assignment."""
        if member_id not in self._heard_s:
            return JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.generation += 1
        self._is_stable = True
        self._described = DescribeResult(ErrorCode.NONE)
        return JoinResult(ErrorCode.NONE, self.generation, member_id, member_id, {member_id: metadata})

    def sync(
        self, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str = ""
    ) -> SyncResult:
        """Return COORDINATOR_NOT_AVAILABLE, because the assignment cannot be stored."""
        return SyncResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def describe(self) -> DescribeResult:
        """Return the members and assignments at the time of the disconnection, or none after a rebalance."""
        return self._described

    def leave(self, member_id: str) -> int:
        """Remove a member."""
        self._heard_s.pop(member_id, None)
        return ErrorCode.NONE


TOPIC = "state"
# The ratio of the default request timeout to the default session timeout.
REQUEST_TIMEOUT_FRACTION = 0.3
REACHABILITY_INTERVAL_S = 2.0


@dataclass(frozen=True)
class MembershipFaults:
    """The heartbeat interval, the session timeout, and the fraction of messages that are lost."""

    heartbeat_s: float = 1.0
    session_s: float = 6.0
    lost_rate: float = 0.0


class Membership:
    """The group of coordinators, with the real membership code in each process."""

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
        self.group = GroupCoordinator(session_s=faults.session_s, rebalance_s=faults.session_s)
        # By node id of each disconnected broker: the group in its memory, and the group coordinator that it
        # knows.
        self.stale: dict[int, StaleGroup] = {}
        self._coordinators_known: dict[int, int] = {}
        self._shards = shards
        self._named = named
        self._clients: dict[str, KafkaGroupClient] = {}
        self._assignment: Assignment | None = None
        self._read: list[bytes] = []

    def create_ownership(self, replica: Replica, bootstrap_servers: str) -> Ownership:
        """Create the object with which a process takes part in the group."""
        faults = self.faults

        def make_client() -> KafkaGroupClient:
            client = self._clients[replica.instance] = KafkaGroupClient(
                bootstrap_servers,
                "group",
                TOPIC,
                session_timeout_s=faults.session_s,
                rebalance_timeout_s=faults.session_s,
                request_timeout_s=REQUEST_TIMEOUT_FRACTION * faults.session_s,
            )
            return client

        return GroupOwnership(
            make_client,
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
                # Faults make a broker unreachable for longer than two intervals, so that two checks fail.
                reachability_interval_s=REACHABILITY_INTERVAL_S,
                locality_interval_s=60.0,
            ),
            monotonic=self.loop.time,
            started_ms=round(1_000 * self.loop.time()),
            own_thread=False,
        )

    async def release_connections(self, name: str) -> None:
        """Close the group client of a process that has ended."""
        if name in self._clients:
            await self._clients.pop(name).close()

    def owner(self, shard: int) -> str | None:
        """Return the owner of a shard in the newest assignment."""
        assignment = self._current_assignment()
        owner = None if assignment is None else assignment.owner(shard)
        return None if owner is None else owner.instance

    def is_settled(self, names: set[str]) -> bool:
        """Return whether the group members are exactly `names`, and all shards are assigned to them."""
        owners = {self.owner(shard) for shard in range(self._shards)}
        members, _ = self._newest_members()
        is_stable = self.group.state == STABLE or not self.group.members
        return is_stable and len(members) == len(names) and owners <= names

    def expel_member_or_move_group(self) -> None:
        """Remove a member, or move the group to another broker."""
        members = self.group.members
        if members and self.rng.random() < 0.5:
            self.group.expel_member(self.rng.choice(list(members)))
        elif self.group.state not in (PREPARING, COMPLETING):
            self._move_group([node for node in self.brokers.nodes if node not in self.brokers.views])

    def disconnect_broker(self, node: int) -> None:
        """Called when a broker is disconnected; another broker will coordinate its group."""
        self._coordinators_known[node] = self.group.node
        if node == self.group.node:
            self.stale[node] = StaleGroup(self.group, node, self.loop)
            delay_s = self.rng.expovariate(1 / self.brokers.faults.elections_s)
            self.loop.call_later(delay_s, self._elect_coordinator)

    def reconnect_broker(self, node: int) -> None:
        """Called when a broker is reconnected; it then knows the current group coordinator."""
        self.stale.pop(node, None)
        self._coordinators_known.pop(node, None)

    def coordinator_at(self, node: int) -> "GroupCoordinator | StaleGroup | None":
        """Return the group of which a broker is the group coordinator, else None."""
        if node in self.stale:
            return self.stale[node]
        return self.group if node == self.group.node else None

    def coordinator_known_to(self, node: int) -> int:
        """Return the group coordinator that a broker knows."""
        return self._coordinators_known.get(node, self.group.node)

    def next_error(self, api_key: int) -> int:
        """Return NONE, because in this simulation only the network makes requests fail."""
        return ErrorCode.NONE

    def move_group_to(self, node: int) -> None:
        if node != self.group.node and self.group.state not in (PREPARING, COMPLETING):
            self.group.move_to_broker(node)

    def _elect_coordinator(self) -> None:
        if self.group.node in self.stale:
            self._move_group([node for node in self.brokers.nodes if node not in self.brokers.views])

    def _move_group(self, nodes: list[int]) -> None:
        if nodes:
            self.group.move_to_broker(self.rng.choice(nodes))

    def _newest_members(self) -> tuple[Sequence[MemberDescription], int]:
        """Return the metadata and assignments of all members, and the generation.

        A disconnected group coordinator answers heartbeats, so all members may have remained in its group.
        """
        for stale in self.stale.values():
            if not self.group.members and stale.describe().members:
                return stale.describe().members, stale.generation
        members = [
            MemberDescription(member.metadata, member.assignment) for member in self.group.members.values()
        ]
        return members, self.group.generation

    def _current_assignment(self) -> Assignment | None:
        members, generation = self._newest_members()
        assignments = [member.assignment for member in members]
        if assignments != self._read and all(assignments):
            self._read = assignments
            view = read_group_view(members, generation, self._shards)
            self._assignment = view and view.assignment
        return self._assignment
