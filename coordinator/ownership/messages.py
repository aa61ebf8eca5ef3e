"""What the members of a group tell each other through Kafka: metadata on joining, then an assignment.

JSON, so that people can read it with Kafka's own tools.  Fields that are not known are passed over, so that
versions can follow each other in one group.  All members get the same assignment bytes: that is what makes
FindCoordinator answer alike on all of them.

Members must keep the same state in the same topic, cut into as many state partitions.  If some differ, one
setting counts (that of who holds the most shards, then of the most members), and the others are refused: they
get nothing, and are told why.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from coordinator.ownership.assignor import Claimant, assign
from coordinator.ownership.base import NOBODY, OwnerMap, Replica

METADATA_VERSION = 1
ASSIGNMENT_VERSION = 1

# How state lies in the topic. Coordinators of different layouts cannot hand shards to each other.
LAYOUT_VERSION = 1

# More than any cluster gives a topic; a member that names more is not understood.
STATE_PARTITIONS_MAX = 100_000


class Setting(msgspec.Struct, frozen=True, order=True):
    """What all members of a group must have in common."""

    state_topic: str
    state_partitions: Annotated[int, msgspec.Meta(ge=1, le=STATE_PARTITIONS_MAX)]
    layout_version: int = LAYOUT_VERSION

    def __str__(self) -> str:
        return f"topic {self.state_topic} of {self.state_partitions} partitions, layout {self.layout_version}"


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a member says of itself when it joins.

    `joins` counts the rebalances that it asked for: Kafka begins one only if something in here is new.
    The rest is what `coordinator.ownership.assignor.Claimant` says.
    """

    version: int = METADATA_VERSION
    setting: Setting
    replica: Replica
    started_ms: int = 0
    ready: bool = True
    draining: bool = False
    owned: tuple[int, ...] = ()
    claim_generation: int = -1
    claim_fresh: bool = False
    wishes: dict[int, str] = {}
    unreached: tuple[int, ...] = ()
    joins: int = 0

    def claimant(self) -> Claimant:
        """Return what the assignor needs to know."""
        return Claimant(
            instance=self.replica.instance,
            wire=self.replica.wire,
            started_ms=self.started_ms,
            broker_id=self.replica.broker_id,
            ready=self.ready,
            draining=self.draining,
            owned=self.owned,
            claim_generation=self.claim_generation,
            claim_fresh=self.claim_fresh,
            wishes=self.wishes,
            unreached=self.unreached,
        )


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader decided, the same for all members.

    `owners` and `holders` have for each state partition a place in `replicas` or NOBODY: who owns it now, who
    held it until now. `cut_off` are those that their holder does not reach. `doubles` are the instances that
    get nothing because a newer one has their address, `refused` those of another setting, with the reason,
    `unread` how many members could not be understood.
    """

    version: int = ASSIGNMENT_VERSION
    setting: Setting
    replicas: tuple[Replica, ...]
    owners: tuple[int, ...]
    holders: tuple[int, ...]
    cut_off: tuple[int, ...] = ()
    doubles: tuple[str, ...] = ()
    refused: dict[str, str] = {}
    unread: int = 0

    def owner_map(self, generation: int) -> OwnerMap:
        """Return the part that everybody may see."""
        return OwnerMap(generation, self.replicas, self.owners)

    def owned_by(self, instance: str) -> frozenset[int]:
        """Return the state partitions of a replica."""
        return frozenset(
            partition
            for partition, place in enumerate(self.owners)
            if place >= 0 and self.replicas[place].instance == instance
        )

    def mentions(self, instance: str) -> bool:
        """True if it was made with a replica in the group: it says what the replica gets, or why nothing."""
        return (
            instance in self.refused
            or instance in self.doubles
            or any(replica.instance == instance for replica in self.replicas)
        )

    def handed_over(self, state_partition: int) -> bool:
        """True if the shard had another holder until now, who is still in the group and gives it away."""
        holder = self.holders[state_partition]
        return holder >= 0 and holder != self.owners[state_partition]

    def release_expected(self, state_partition: int) -> bool:
        """True if who gives the shard away can say so in its log."""
        return self.handed_over(state_partition) and state_partition not in self.cut_off


class Unreadable(ValueError):
    """Bytes that no version of ours wrote, or one that is too new."""


_encoder = msgspec.json.Encoder()
_metadata_decoder = msgspec.json.Decoder(Metadata)
_assignment_decoder = msgspec.json.Decoder(Assignment)


def encode(message: Metadata | Assignment) -> bytes:
    """Return the bytes of a message."""
    return _encoder.encode(message)


def decode_metadata(data: bytes) -> Metadata:
    """Read what a member says of itself. Raises Unreadable."""
    try:
        return _metadata_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise Unreadable(str(error)) from None


def decode_assignment(data: bytes) -> Assignment:
    """Read what the leader decided. Raises Unreadable, also if it contradicts itself."""
    try:
        assignment = _assignment_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise Unreadable(str(error)) from None
    count = assignment.setting.state_partitions
    places = range(-1, len(assignment.replicas))
    for named in (assignment.owners, assignment.holders):
        if len(named) != count or any(place not in places for place in named):
            raise Unreadable("its owners are not those of its replicas and state partitions")
    return assignment


def plan(members: Mapping[str, bytes], leaders: Mapping[int, int], *, moves_max: int = 0) -> Assignment:
    """Decide as the group's leader who owns what; `members` is member id to metadata bytes.

    A member whose metadata cannot be read gets nothing. Raises Unreadable if that is all of them.
    """
    read: list[Metadata] = []
    unread = 0
    for _, data in sorted(members.items()):
        try:
            read.append(decode_metadata(data))
        except Unreadable:
            unread += 1
    if not read:
        raise Unreadable("no member's metadata can be read")
    setting = _setting_that_counts(read)
    accepted = sorted(
        (metadata for metadata in read if metadata.setting == setting),
        key=lambda metadata: (metadata.started_ms, metadata.replica.instance),
    )
    planned = assign(
        [metadata.claimant() for metadata in accepted],
        leaders,
        setting.state_partitions,
        moves_max=moves_max,
    )
    return Assignment(
        setting=setting,
        replicas=tuple(metadata.replica for metadata in accepted),
        owners=planned.owners,
        holders=planned.holders,
        cut_off=tuple(
            partition
            for partition, holder in enumerate(planned.holders)
            if holder != NOBODY and partition in accepted[holder].unreached
        ),
        doubles=tuple(accepted[place].replica.instance for place in planned.doubles),
        refused={
            metadata.replica.instance: f"it keeps state in {metadata.setting}, the group in {setting}"
            for metadata in read
            if metadata.setting != setting
        },
        unread=unread,
    )


def _setting_that_counts(members: list[Metadata]) -> Setting:
    held: dict[Setting, int] = {}
    count: dict[Setting, int] = {}
    for metadata in members:
        held[metadata.setting] = held.get(metadata.setting, 0) + len(metadata.owned)
        count[metadata.setting] = count.get(metadata.setting, 0) + 1
    return max(count, key=lambda setting: (held[setting], count[setting], setting))
