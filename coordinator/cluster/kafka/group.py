"""Membership in a Kafka group (classic protocol), one method per request, in plain values.

This interface has a real and a fake implementation. A client stores no state of the membership; the caller
keeps the member id and the generation.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

PROTOCOL_TYPE = "share-coordinator"
PROTOCOL_NAME = "v1"

# The state of a group in which all members have their assignments.
STABLE = "Stable"


class FindCoordinatorResult(NamedTuple):
    """The broker that coordinates the group, if the error code is 0."""

    error_code: int
    node: int


class JoinResult(NamedTuple):
    """The response to a join. Only the leader of the group receives the members and their metadata."""

    error_code: int
    generation: int = -1
    member_id: str = ""
    leader_id: str = ""
    members: Mapping[str, bytes] = {}


class SyncResult(NamedTuple):
    """The response to a sync: this member's assignment by the leader of the group."""

    error_code: int
    assignment: bytes = b""


class MemberDescription(NamedTuple):
    """A member as the group coordinator stores it."""

    metadata: bytes
    assignment: bytes


class DescribeResult(NamedTuple):
    """The members of the group; empty unless the group is stable."""

    error_code: int
    members: Sequence[MemberDescription] = ()


class MetadataSnapshot(NamedTuple):
    """The leader of each state partition, and the error of each probed broker that did not answer."""

    leaders: Mapping[int, int]
    silent: Mapping[int, str]


class GroupClient(Protocol):
    """The requests of one process to the coordinator of one group. Raises LogError if no broker answers.

    A join may take as long as a rebalance; other requests do not wait for it. A cancelled request does not
    delay later ones. `instance_id` is Kafka's group.instance.id, "" for a member without one.
    """

    async def find_coordinator(self) -> FindCoordinatorResult:
        """Ask brokers, or else the bootstrap servers, which broker coordinates the group."""
        ...

    async def join(self, node: int, member_id: str, metadata: bytes, instance_id: str) -> JoinResult:
        """Join the next generation.

        With an empty member id, Kafka assigns one; with an instance id, the member replaces the previous one.
        """
        ...

    async def sync(
        self, node: int, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str
    ) -> SyncResult:
        """Send, as the leader, the assignments of all members; return this member's assignment."""
        ...

    async def heartbeat(self, node: int, generation: int, member_id: str, instance_id: str) -> int:
        """Send a heartbeat; return Kafka's error code."""
        ...

    async def leave(self, node: int, member_id: str) -> int:
        """Leave the group at once; return Kafka's error code."""
        ...

    async def describe(self, node: int) -> DescribeResult:
        """Return the metadata and the assignments of all members."""
        ...

    async def leaders_by_partition(self) -> Mapping[int, int]:
        """Return the leader of each state partition, as far as is known. Never raises."""
        ...

    async def probe_leaders(
        self, choose: Callable[[Mapping[int, int]], Collection[int]]
    ) -> MetadataSnapshot | None:
        """Get the partition leaders from a broker, then probe the brokers that `choose` returns.

        Returns None if no broker answers. Never raises.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
