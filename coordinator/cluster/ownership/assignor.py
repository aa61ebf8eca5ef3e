"""Assign shards to the members of a group; a pure function.

These are the rules in descending priority. Only ready replicas get shards. The numbers of shards of ready
replicas differ by at most one. A shard goes to a replica that reaches the broker which leads its state
partition. A shard goes to the replica that its owner requests. A shard stays at its owner. A shard goes to
the replica on the host of the leading broker.

Every member sends its claims, the shards that it owns.  Two members may claim one shard if a member returns
that was considered lost. If two members claim one shard, the claim of the newest generation wins. A claim
with a fresh lease wins over any generation, because generations start again if Kafka forgets the group.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from coordinator.cluster.ownership.base import NOBODY


class AssignableMember(NamedTuple):
    """The properties of a group member that affect the assignment.

    `instance` is the instance id of the member. `started_ms` is the start time of its process: of two
    members with the same address, the newer one gets the shards. `owned` are the shards of its assignment
    in `assignment_generation`. `lease_is_fresh` is True if its lease was valid when it joined.
    `broker_id` is the broker on the same host, or -1. `wishes` are the shards that it hands over, each
    with the instance id of the requested owner, or "" for any other owner. `unreached` are the state
    partitions whose leaders the member does not reach.
    """

    instance: str
    wire: str
    started_ms: int
    broker_id: int
    ready: bool
    draining: bool
    owned: Collection[int]
    assignment_generation: int
    lease_is_fresh: bool
    wishes: Mapping[int, str]
    unreached: Collection[int]


class AssignmentPlan(NamedTuple):
    """The result of an assignment. Members are identified by their index in the input.

    `owners` has the owner of each state partition or NOBODY, `holders` its previous owner (by the winning
    claim) or NOBODY. `doubles` maps members without shards to the newer member with the same address.
    """

    owners: tuple[int, ...]
    holders: tuple[int, ...]
    doubles: Mapping[int, int]


def assign_shards(
    members: Sequence[AssignableMember],
    leaders: Mapping[int, int],
    state_partitions: int,
    *,
    moves_max: int = 0,
) -> AssignmentPlan:
    """Assign each state partition; the result does not depend on the order of the members.

    `leaders` has the broker that leads each state partition, as far as known. Up to `moves_max` shards are
    moved to the host of their leader, although their owner could keep them.
    """
    order = sorted(
        range(len(members)), key=lambda place: (members[place].started_ms, members[place].instance)
    )
    holders = _find_previous_owners(members, order, state_partitions)
    doubles = _find_duplicate_members(members, order)
    able = [place for place in order if place not in doubles and not members[place].draining]
    owning = [place for place in able if members[place].ready] or able
    if not owning:
        return AssignmentPlan((NOBODY,) * state_partitions, tuple(holders), doubles)
    spread = _Balancer(members, owning, leaders, state_partitions)
    spread.keep_owned_shards(holders)
    spread.assign_unowned_shards()
    spread.apply_preferences(members)
    spread.move_shards_to_leader_hosts(moves_max)
    # Repeat at the end: the other steps may make a swap possible, and a repeated assignment must have the
    # same result.
    spread.move_shards_to_reachable_members()
    return AssignmentPlan(tuple(spread.owners), tuple(holders), doubles)


def _find_previous_owners(
    members: Sequence[AssignableMember], order: Sequence[int], state_partitions: int
) -> list[int]:
    holders = [NOBODY] * state_partitions
    for place in sorted(
        order, key=lambda place: (members[place].lease_is_fresh, members[place].assignment_generation)
    ):
        for partition in members[place].owned:
            if 0 <= partition < state_partitions:
                holders[partition] = place
    return holders


def _find_duplicate_members(members: Sequence[AssignableMember], order: Sequence[int]) -> dict[int, int]:
    newest = {members[place].wire: place for place in order}
    return {place: newest[members[place].wire] for place in order if newest[members[place].wire] != place}


class _Balancer:
    """Distributes shards over members: each member gets `least` shards, and `extra` members get one more."""

    def __init__(
        self,
        members: Sequence[AssignableMember],
        owning: Sequence[int],
        leaders: Mapping[int, int],
        state_partitions: int,
    ) -> None:
        self.owners = [NOBODY] * state_partitions
        self._owned_shards = owning
        self._load = dict.fromkeys(owning, 0)
        self._rank = {place: rank for rank, place in enumerate(owning)}
        self._least, self._extra = divmod(state_partitions, len(owning))
        # For each state partition: the members that reach its leader, and the members on the leader's host.
        everybody = frozenset(owning)
        beside: dict[int, set[int]] = {}
        away: dict[int, set[int]] = {}
        for place in owning:
            if members[place].broker_id >= 0:
                beside.setdefault(members[place].broker_id, set()).add(place)
            for partition in members[place].unreached:
                away.setdefault(partition, set()).add(place)
        self._reaching: list[frozenset[int]] = [
            everybody - away[partition] if partition in away else everybody
            for partition in range(state_partitions)
        ]
        self._members_by_broker: list[frozenset[int]] = [
            self._reaching[partition] & beside.get(leaders.get(partition, NOBODY), set())
            for partition in range(state_partitions)
        ]

    def keep_owned_shards(self, holders: Sequence[int]) -> None:
        """Leave shards at their owners, as far as the balance allows."""
        held: dict[int, list[int]] = {place: [] for place in self._owned_shards}
        for partition, holder in enumerate(holders):
            if holder in held:
                held[holder].append(partition)
        # Begin with the members that own the most shards, so that they keep the additional shards.
        for place in sorted(self._owned_shards, key=lambda place: (-len(held[place]), self._rank[place])):
            best_first = sorted(
                held[place],
                key=lambda partition: (
                    place not in self._reaching[partition],
                    place not in self._members_by_broker[partition],
                    partition,
                ),
            )
            for partition in best_first:
                if self._has_capacity(place):
                    self._assign_shard(partition, place)

    def assign_unowned_shards(self) -> None:
        """Assign shards without an owner: on the leader's host, or else to the member with the fewest shards.

        Shards that only some members can serve are assigned first.
        """
        everything = range(len(self.owners))
        contested = [each for each in everything if len(self._reaching[each]) < len(self._owned_shards)]
        everybody = [frozenset(self._owned_shards)] * len(self.owners)
        for partitions, choices in (
            (contested, self._members_by_broker),
            (contested, self._reaching),
            (everything, self._members_by_broker),
            (everything, everybody),
        ):
            for partition in partitions:
                if self.owners[partition] != NOBODY:
                    continue
                candidates = choices[partition]
                roomy = [place for place in candidates if self._has_capacity(place)]
                if roomy:
                    self._assign_shard(
                        partition, min(roomy, key=lambda place: (self._load[place], self._rank[place]))
                    )
        assert NOBODY not in self.owners

    def move_shards_to_reachable_members(self) -> None:
        """Move shards from members that do not reach their leaders, until neither a move nor a swap helps."""
        mended = True
        while mended:
            mended = False
            for partition, owner in enumerate(self.owners):
                if owner not in self._reaching[partition]:
                    mended |= self._move_shard_if_reachable(partition, owner)

    def _move_shard_if_reachable(self, partition: int, owner: int) -> bool:
        for place in sorted(
            self._reaching[partition],
            key=lambda place: (
                self._load[place],
                place not in self._members_by_broker[partition],
                self._rank[place],
            ),
        ):
            if self._load[place] < self._load[owner]:
                self._move_shard(partition, place)
                return True
            back = self._find_swappable_shard(place, owner)
            if back is not None:
                self._move_shard(partition, place)
                self._move_shard(back, owner)
                return True
        return False

    def move_shards_to_leader_hosts(self, moves_max: int) -> None:
        """Move shards to the hosts of their leaders, by a swap if a move would upset the balance."""
        for partition in range(len(self.owners)):
            if moves_max <= 0:
                return
            owner = self.owners[partition]
            if owner in self._members_by_broker[partition]:
                continue
            for place in sorted(
                self._members_by_broker[partition], key=lambda place: (self._load[place], self._rank[place])
            ):
                if self._load[place] < self._load[owner]:
                    self._move_shard(partition, place)
                    moves_max -= 1
                    break
                other = self._find_swappable_shard(place, owner)
                if other is not None and place not in self._members_by_broker[other] and moves_max >= 2:
                    self._move_shard(partition, place)
                    self._move_shard(other, owner)
                    moves_max -= 2
                    break

    def apply_preferences(self, members: Sequence[AssignableMember]) -> None:
        """Move shards as their owners requested; if the balance requires it, another shard moves back."""
        wished = {partition for place in self._owned_shards for partition in members[place].wishes}
        for place in self._owned_shards:
            for partition, instance in sorted(members[place].wishes.items()):
                if not 0 <= partition < len(self.owners) or self.owners[partition] != place:
                    continue
                others = [other for other in self._reaching[partition] if other != place]
                if instance:
                    others = [other for other in others if members[other].instance == instance]
                if others:
                    to = min(others, key=lambda other: (self._load[other], self._rank[other]))
                    self._move_or_swap_shard(partition, place, to, wished)

    def _move_or_swap_shard(self, partition: int, owner: int, to: int, wished: Collection[int]) -> None:
        if self._load[to] < self._load[owner]:
            self._move_shard(partition, to)
            return
        back = self._find_swappable_shard(to, owner, wished)
        if back is not None:
            self._move_shard(partition, to)
            self._move_shard(back, owner)

    def _find_swappable_shard(self, place: int, owner: int, kept: Collection[int] = ()) -> int | None:
        """Return a shard that member `place` can give to member `owner`, or None.

        `owner` must reach the leader of the shard. Preferred in this order: `place` does not reach the
        leader, `place` is not on the leader's host, `owner` is on the leader's host.
        """
        return min(
            (
                partition
                for partition, holder in enumerate(self.owners)
                if holder == place and owner in self._reaching[partition] and partition not in kept
            ),
            key=lambda partition: (
                place in self._reaching[partition],
                place in self._members_by_broker[partition],
                owner not in self._members_by_broker[partition],
                partition,
            ),
            default=None,
        )

    def _has_capacity(self, place: int) -> bool:
        load = self._load[place]
        return load < self._least or (load == self._least and self._extra > 0)

    def _assign_shard(self, partition: int, place: int) -> None:
        if self._load[place] == self._least:
            self._extra -= 1
        self._load[place] += 1
        self.owners[partition] = place

    def _move_shard(self, partition: int, place: int) -> None:
        self._load[self.owners[partition]] -= 1
        self._load[place] += 1
        self.owners[partition] = place
