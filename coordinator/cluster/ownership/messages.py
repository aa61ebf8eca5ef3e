"""The messages of a group: the metadata of a member, and the assignment of each member by the leader.

Kafka stores the metadata and assignments of all members in one record, which is limited by max.message.bytes.
Therefore, an assignment contains only the shards of its member, and nothing that is in the metadata. The size
of the record grows with the number of members plus the number of shards, not with their product. To know the
owners of all shards, each member reads the messages of all members with DescribeGroups (`read_group_view`).

A message is a JSON array that begins with the version of its format, so that Kafka's tools can show it.
Messages of other versions are refused with an error message. Earlier releases ignore elements that are added
at the end.

All members must have the same state topic and number of state partitions. If members differ, the setting of
the members with the most shards is used, or of the most members if the numbers of shards are equal. The other
members get no shards; their assignment contains the reason.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import msgspec

from coordinator.cluster.ownership.assignor import AssignableMember, assign_shards
from coordinator.cluster.ownership.base import NOBODY, Assignment, Replica

METADATA_VERSION = 2
ASSIGNMENT_VERSION = 2

# The version of the layout of state in the topic. Coordinators with different layouts cannot be in one group.
LAYOUT_VERSION = 1

# Maximum number of state partitions in the metadata of a member; no topic has more.
STATE_PARTITIONS_MAX = 100_000


class GroupSettings(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The settings that all members of a group must share."""

    state_topic: str
    state_partitions: Annotated[int, msgspec.Meta(ge=1, le=STATE_PARTITIONS_MAX)]
    layout_version: int = LAYOUT_VERSION

    def __str__(self) -> str:
        return f"topic {self.state_topic} of {self.state_partitions} partitions, layout {self.layout_version}"


class MemberMetadata(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The metadata with which a member joins.

    `unreached` are the brokers that lead shards and do not answer the member. `joins` is the number of
    rebalances that the member has requested: Kafka starts a rebalance only if the metadata has changed. The
    other fields are those of `coordinator.cluster.ownership.assignor.AssignableMember`.
    """

    version: int = METADATA_VERSION
    setting: GroupSettings
    replica: Replica
    started_ms: int = 0
    ready: bool = True
    draining: bool = False
    owned: tuple[int, ...] = ()
    assignment_generation: int = -1
    lease_is_fresh: bool = False
    wishes: dict[int, str] = {}
    unreached: tuple[int, ...] = ()
    joins: int = 0

    def to_assignable_member(self, leaders: Mapping[int, int]) -> AssignableMember:
        """Return the assignor's view of the member; `leaders` has the broker that leads each shard."""
        return AssignableMember(
            instance=self.replica.instance,
            wire=self.replica.wire,
            started_ms=self.started_ms,
            broker_id=self.replica.broker_id,
            ready=self.ready,
            draining=self.draining,
            owned=self.owned,
            assignment_generation=self.assignment_generation,
            lease_is_fresh=self.lease_is_fresh,
            wishes=self.wishes,
            unreached=self.unreached_partitions(leaders),
        )

    def unreached_partitions(self, leaders: Mapping[int, int]) -> frozenset[int]:
        """Return the state partitions whose leaders this member does not reach."""
        if not self.unreached:
            return frozenset()
        return frozenset(partition for partition, leader in leaders.items() if leader in self.unreached)


class AssignmentMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The assignment of one member, made in `generation`.

    `instance` is the instance id of the replica that gets it, "" if the leader could not read its metadata.
    `handed_over`: shards in `owned` that another member owned before. `unreleased`: shards that their
    previous owner cannot release, because it does not reach their leader. `refused` is the reason why the
    member gets no shards. `double` is True if the reason is a newer member with the same address.
    """

    version: int = ASSIGNMENT_VERSION
    generation: int
    instance: str = ""
    owned: tuple[int, ...] = ()
    handed_over: tuple[int, ...] = ()
    unreleased: tuple[int, ...] = ()
    refused: str = ""
    double: bool = False


class GroupView(NamedTuple):
    """The view of all members: the owners, and the brokers that some member does not reach."""

    assignment: Assignment
    unreached: frozenset[int]


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The leader's decision for the whole group.

    `owners` has the new owner of each state partition, and `holders` the previous one: an index in
    `replicas`, or NOBODY. `cut_off` are shards whose previous owner does not reach their leader. `doubles`
    are the instance ids that get no shards because a newer replica has the same address. `refused` maps the
    instance ids with other settings to the reason. `unreached` are the brokers that some member does not
    reach. `instances` has the instance of each member id, "" if its metadata cannot be read.
    """

    setting: GroupSettings
    replicas: tuple[Replica, ...]
    owners: tuple[int, ...]
    holders: tuple[int, ...]
    cut_off: frozenset[int] = frozenset()
    unreached: frozenset[int] = frozenset()
    doubles: frozenset[str] = frozenset()
    refused: dict[str, str] = {}
    instances: dict[str, str] = {}

    @property
    def unreadable_members(self) -> int:
        """The number of members whose metadata cannot be read."""
        return sum(not instance for instance in self.instances.values())

    def make_view(self, generation: int) -> GroupView:
        return GroupView(Assignment(generation, self.replicas, self.owners), self.unreached)

    def partitions_owned_by(self, instance: str) -> frozenset[int]:
        return frozenset(
            partition
            for partition, place in enumerate(self.owners)
            if place >= 0 and self.replicas[place].instance == instance
        )

    def is_handed_over(self, state_partition: int) -> bool:
        """Return whether another current member owned the shard before."""
        holder = self.holders[state_partition]
        return holder >= 0 and holder != self.owners[state_partition]

    def compute_assignments(self, generation: int) -> dict[str, AssignmentMessage]:
        owned: dict[str, list[int]] = {}
        for partition, place in enumerate(self.owners):
            if place >= 0:
                owned.setdefault(self.replicas[place].instance, []).append(partition)
        return {
            member_id: self._build_assignment(generation, instance, owned.get(instance, []))
            for member_id, instance in self.instances.items()
        }

    def _build_assignment(self, generation: int, instance: str, owned: list[int]) -> AssignmentMessage:
        handed_over = tuple(partition for partition in owned if self.is_handed_over(partition))
        return AssignmentMessage(
            generation=generation,
            instance=instance,
            owned=tuple(owned),
            handed_over=handed_over,
            unreleased=tuple(partition for partition in handed_over if partition in self.cut_off),
            refused=self.refused.get(instance, ""),
            double=instance in self.doubles,
        )


class UnreadableMessage(ValueError):
    """Bytes in no supported version of the format."""


class _VersionHeader(msgspec.Struct, array_like=True):
    version: int


_encoder = msgspec.json.Encoder()
_version_decoder = msgspec.json.Decoder(_VersionHeader)
_metadata_decoder = msgspec.json.Decoder(MemberMetadata)
_assignment_decoder = msgspec.json.Decoder(AssignmentMessage)


def encode_message(message: MemberMetadata | AssignmentMessage) -> bytes:
    return _encoder.encode(message)


def decode_metadata(data: bytes) -> MemberMetadata:
    """Decode the metadata of a member. Raises UnreadableMessage."""
    _check_version(data, METADATA_VERSION)
    try:
        return _metadata_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise UnreadableMessage(str(error)) from None


def decode_assignment(data: bytes) -> AssignmentMessage:
    """Decode the assignment of a member. Raises UnreadableMessage."""
    _check_version(data, ASSIGNMENT_VERSION)
    try:
        return _assignment_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise UnreadableMessage(str(error)) from None


def _check_version(data: bytes, expected: int) -> None:
    try:
        version = _version_decoder.decode(data).version
    except msgspec.DecodeError as error:
        raise UnreadableMessage(f"it has no version ({error})") from None
    if version != expected:
        raise UnreadableMessage(f"it has version {version}, and this release reads version {expected}")


def read_group_view(
    members: Iterable[tuple[bytes, bytes]], generation: int, state_partitions: int
) -> GroupView | None:
    """Return the view of the group, from the metadata and the assignments of all members.

    Returns None if an assignment has another generation. Members with unreadable messages own nothing. Raises
    UnreadableMessage if two replicas own one shard.
    """
    read: list[tuple[str, MemberMetadata]] = []
    decisions: dict[str, AssignmentMessage] = {}
    for metadata_bytes, assignment_bytes in members:
        try:
            metadata, decision = decode_metadata(metadata_bytes), decode_assignment(assignment_bytes)
        except UnreadableMessage:
            continue
        if decision.generation != generation:
            return None
        if decision.instance and not decision.refused:
            read.append((decision.instance, metadata))
            decisions[metadata.replica.instance] = decision
    accepted = _newest_metadata_by_replica(read)
    owners = [NOBODY] * state_partitions
    for place, metadata in enumerate(accepted):
        for partition in decisions[metadata.replica.instance].owned:
            if not 0 <= partition < state_partitions or owners[partition] != NOBODY:
                raise UnreadableMessage(f"state partition {partition} does not have one owner")
            owners[partition] = place
    replicas = tuple(metadata.replica for metadata in accepted)
    unreached = frozenset(node for metadata in accepted for node in metadata.unreached)
    return GroupView(Assignment(generation, replicas, tuple(owners)), unreached)


def _newest_metadata_by_replica(members: Iterable[tuple[str, MemberMetadata]]) -> list[MemberMetadata]:
    """Return the newest metadata for each replica, in the order of their starts.

    A process that had to join again has two members, until Kafka removes the one that sends no heartbeats. A
    restarted static member has the assignment of its previous process.
    """
    newest: dict[str, MemberMetadata] = {}
    for replica, metadata in sorted(members, key=_age_sort_key):
        newest[replica] = metadata
    return sorted(newest.values(), key=lambda metadata: (metadata.started_ms, metadata.replica.instance))


def _age_sort_key(member: tuple[str, MemberMetadata]) -> tuple[int, int, int]:
    _, metadata = member
    return metadata.started_ms, metadata.assignment_generation, metadata.joins


def plan_assignment(
    members: Mapping[str, bytes], leaders: Mapping[int, int], *, moves_max: int = 0
) -> GroupPlan:
    """Compute the owners as the group's leader; `members` maps member ids to metadata bytes.

    A member with unreadable metadata gets no shards. Raises UnreadableMessage if all are unreadable.
    """
    read: list[MemberMetadata] = []
    instances: dict[str, str] = {}
    for member_id, data in sorted(members.items()):
        try:
            metadata = decode_metadata(data)
        except UnreadableMessage:
            instances[member_id] = ""
        else:
            instances[member_id] = metadata.replica.instance
            read.append(metadata)
    if not read:
        raise UnreadableMessage("no member's metadata can be read")
    setting = _find_prevailing_settings(read)
    accepted = _newest_metadata_by_replica(
        (metadata.replica.instance, metadata) for metadata in read if metadata.setting == setting
    )
    claimants = [metadata.to_assignable_member(leaders) for metadata in accepted]
    planned = assign_shards(
        claimants,
        leaders,
        setting.state_partitions,
        moves_max=moves_max,
    )
    return GroupPlan(
        setting=setting,
        replicas=tuple(metadata.replica for metadata in accepted),
        owners=planned.owners,
        holders=planned.holders,
        cut_off=frozenset(
            partition
            for partition, holder in enumerate(planned.holders)
            if holder != NOBODY and partition in claimants[holder].unreached
        ),
        unreached=frozenset(node for metadata in accepted for node in metadata.unreached),
        doubles=frozenset(accepted[place].replica.instance for place in planned.doubles),
        refused={
            metadata.replica.instance: f"it keeps state in {metadata.setting}, the group in {setting}"
            for metadata in read
            if metadata.setting != setting
        },
        instances=instances,
    )


def _find_prevailing_settings(members: list[MemberMetadata]) -> GroupSettings:
    held: dict[GroupSettings, int] = {}
    count: dict[GroupSettings, int] = {}
    for metadata in members:
        held[metadata.setting] = held.get(metadata.setting, 0) + len(metadata.owned)
        count[metadata.setting] = count.get(metadata.setting, 0) + 1
    return max(count, key=lambda setting: (held[setting], count[setting], setting))
