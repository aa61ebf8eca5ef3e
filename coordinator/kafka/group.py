"""Membership of a Kafka group, request by request (the classic group protocol), in plain values.

The seam to the client library, and to its fake.  A link keeps no state of the membership; who is a member,
and of which generation, is the caller's to know.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

PROTOCOL_TYPE = "share-coordinator"
PROTOCOL_NAME = "v1"

# The state of a group in which all members have their assignments.
STABLE = "Stable"


class CoordinatorLookup(NamedTuple):
    """The broker that coordinates the group, if the error code is 0."""

    error_code: int
    node: int


class JoinResult(NamedTuple):
    """The answer to a join. The group's leader, and nobody else, is told the members and their metadata."""

    error_code: int
    generation: int = -1
    member_id: str = ""
    leader_id: str = ""
    members: Mapping[str, bytes] = {}


class SyncResult(NamedTuple):
    """The answer to a sync: what the group's leader assigned to this member."""

    error_code: int
    assignment: bytes = b""


class DescribedMember(NamedTuple):
    """What the coordinator of the group stores of one member."""

    metadata: bytes
    assignment: bytes


class Described(NamedTuple):
    """The members of the group; none unless the group is stable."""

    error_code: int
    members: Sequence[DescribedMember] = ()


class MetadataSnapshot(NamedTuple):
    """Which broker leads which state partition, and of the probed brokers the reason why one is silent."""

    leaders: Mapping[int, int]
    silent: Mapping[int, str]


class GroupClient(Protocol):
    """One process's way to the coordinator of one group.  Raises LogError where no broker answers.

    A join may take as long as a rebalance does; other requests go on meanwhile. A cancelled request leaves
    nothing behind that a later one would wait for.  `instance_id` is Kafka's group.instance.id, "" for a
    member without one.
    """

    async def find_coordinator(self) -> CoordinatorLookup:
        """Ask the cluster, at last the bootstrap servers, which broker coordinates the group."""
        ...

    async def join(self, node: int, member_id: str, metadata: bytes, instance_id: str) -> JoinResult:
        """Join the next generation; an empty member id asks for one, or for the place of the instance id."""
        ...

    async def sync(
        self, node: int, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str
    ) -> SyncResult:
        """Give, as the leader, every member's assignment (others give none); get one's own."""
        ...

    async def heartbeat(self, node: int, generation: int, member_id: str, instance_id: str) -> int:
        """Say that the member lives; return Kafka's error code."""
        ...

    async def leave(self, node: int, member_id: str) -> int:
        """Leave the group at once; return Kafka's error code."""
        ...

    async def describe(self, node: int) -> Described:
        """Return the metadata and the assignments of all members."""
        ...

    async def leaders(self) -> Mapping[int, int]:
        """Return which broker leads which state partition, as far as is known. Raises nothing."""
        ...

    async def probe_leaders(
        self, choose: Callable[[Mapping[int, int]], Collection[int]]
    ) -> MetadataSnapshot | None:
        """Ask a broker who leads what, and then the brokers that `choose` returns for a sign of life.

        Returns None if no broker answers. Raises nothing.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
