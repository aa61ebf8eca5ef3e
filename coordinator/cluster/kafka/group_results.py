"""The results of requests to the coordinator of a Kafka group (classic protocol), in plain values."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
