"""Assignment of shards whose owner does not reach the broker that leads them."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cluster.ownership.assignor import AssignableMember, assign_shards
from coordinator.cluster.ownership.limits import GroupLimits
from tests.unit.ownership.test_assignor import (
    adopt_plan,
    check_balance,
    count_shards_at_leaders,
    list_eligible_members,
    make_member,
    random_groups,
)

LIMITS = GroupLimits()
LEADERS = {partition: 1 + partition % 3 for partition in range(12)}

Group = tuple[list[AssignableMember], dict[int, int], int]


@st.composite
def unreachable_brokers(draw: st.DrawFn) -> Group:
    """Generate a group whose members do not reach some brokers, and have any hand-over requests."""
    members, leaders, partitions = draw(random_groups())
    names = st.sampled_from(["", "stranger", *(one.instance for one in members)])
    for place, one in enumerate(members):
        away = draw(st.sets(st.integers(0, 3)))
        unreached = [partition for partition, leader in leaders.items() if leader in away]
        wishes = draw(st.dictionaries(st.integers(0, partitions), names, max_size=3))
        members[place] = one._replace(unreached=unreached, wishes=wishes)
    return members, leaders, partitions


def fixable_shards(owners: Sequence[int], members: Sequence[AssignableMember], owning: set[int]) -> list[int]:
    """Return the shards whose owner does not reach their leader, although a move or a swap would help."""
    load = Counter(owners)
    return [
        partition
        for partition, owner in enumerate(owners)
        if partition in members[owner].unreached
        and any(
            partition not in members[other].unreached
            and (
                load[other] < load[owner]
                or any(
                    holder == other and back not in members[owner].unreached
                    for back, holder in enumerate(owners)
                )
            )
            for other in owning
        )
    ]


def count_unreachable(owners: Sequence[int], members: Sequence[AssignableMember]) -> int:
    """Return the number of shards whose owner does not reach their leader."""
    return sum(partition in members[owner].unreached for partition, owner in enumerate(owners))


@pytest.mark.slow
@given(unreachable_brokers(), st.integers(0, 30))
def test_assignor_makes_each_helpful_move_or_swap_and_keeps_the_result(group: Group, moves_max: int) -> None:
    members, leaders, partitions = group
    plan = assign_shards(members, leaders, partitions, moves_max=moves_max)
    owning = check_balance(plan, members, partitions)
    if not owning:
        return
    assert fixable_shards(plan.owners, members, owning) == []
    # The next rebalance, without hand-over requests, changes nothing.
    after = [one._replace(wishes={}) for one in adopt_plan(plan, members)]
    assert assign_shards(after, leaders, partitions).owners == plan.owners


@pytest.mark.slow
@given(unreachable_brokers(), st.integers(2, 8))
def test_repeated_assignments_with_unreachable_brokers_converge(group: Group, moves_max: int) -> None:
    members, leaders, partitions = group
    members = [one._replace(wishes={}) for one in members]
    plan = assign_shards(members, {}, partitions)
    if not list_eligible_members(members, plan):
        return
    seen: list[tuple[int, int]] = [(count_unreachable(plan.owners, members), 0)]
    while True:
        before, plan = (
            plan,
            assign_shards(adopt_plan(plan, members), leaders, partitions, moves_max=moves_max),
        )
        if plan.owners == before.owners:
            break
        # Each step improves reachability first, and locality second.
        seen.append(
            (count_unreachable(plan.owners, members), -count_shards_at_leaders(plan.owners, members, leaders))
        )
        assert len(seen) < 4 * partitions


@pytest.mark.slow
@given(unreachable_brokers())
def test_only_shards_with_an_unreachable_leader_cause_moves(group: Group) -> None:
    members, leaders, partitions = group
    reaching = [one._replace(unreached=(), wishes={}) for one in members]
    plan = assign_shards(reaching, leaders, partitions)
    still = adopt_plan(plan, reaching)
    now = [one._replace(unreached=other.unreached) for one, other in zip(still, members, strict=True)]
    after = assign_shards(now, leaders, partitions).owners
    if not list_eligible_members(members, plan):
        return
    moves = sum(was != owner for was, owner in zip(plan.owners, after, strict=True))
    # For each unreachable shard that moves, at most one other shard moves in exchange.
    assert moves <= 2 * (count_unreachable(plan.owners, now) - count_unreachable(after, now))


def test_member_gets_no_locality_for_a_broker_that_it_does_not_reach() -> None:
    leaders = {partition: 1 + partition % 2 for partition in range(6)}
    away = {partition for partition, leader in leaders.items() if leader == 1}
    members = [make_member(0, broker_id=1, unreached=away), make_member(1, broker_id=2), make_member(2)]
    plan = assign_shards(members, leaders, 6)
    for _ in range(6):
        assert count_unreachable(plan.owners, members) == 0
        plan = assign_shards(adopt_plan(plan, members), leaders, 6, moves_max=9)
    # The first member must own two of the three shards whose leader it reaches.
    assert count_shards_at_leaders(plan.owners, members, leaders) == 1


def test_unowned_shard_goes_to_a_member_that_reaches_its_leader() -> None:
    members = [make_member(0, owned={1}, broker_id=1, unreached={0}), make_member(1, owned={2})]
    assert assign_shards(members, {0: 1}, 4).owners == (1, 0, 1, 0)


def test_overloaded_member_first_loses_shards_that_it_does_not_reach() -> None:
    members = [make_member(0, owned=range(6), unreached={0}), make_member(1, owned={6, 7, 8}), make_member(2)]
    assert assign_shards(members, {}, 9).owners == (2, 0, 0, 0, 2, 2, 1, 1, 1)


def test_member_next_to_the_leader_is_preferred_among_those_that_reach_it() -> None:
    members = [
        make_member(0, owned={0, 1}, unreached={0}),
        make_member(1, owned={2, 3}),
        make_member(2, owned={4, 5}, broker_id=1),
    ]
    assert assign_shards(members, {0: 1}, 6).owners == (2, 0, 1, 1, 0, 2)
    nobodys = [
        make_member(0, broker_id=1),
        make_member(1, broker_id=2),
        make_member(2, broker_id=3, unreached={0}),
    ]
    assert assign_shards(nobodys, {0: 2, 1: 1, 2: 3}, 3).owners == (1, 0, 2)


def test_reachability_has_priority_over_locality() -> None:
    leaders = {0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 2}
    # The second member does not reach broker 1. Therefore the first member gets all shards that broker 1
    # leads, although it is on the host of broker 2.
    members = [make_member(0, broker_id=2), make_member(1, unreached={0, 1, 2})]
    assert assign_shards(members, leaders, 6).owners == (0, 0, 0, 1, 1, 1)


def test_hand_over_to_a_member_that_does_not_reach_the_leader_is_refused() -> None:
    giver, taker = make_member(0, owned={0, 1}, wishes={0: "i1"}), make_member(1, owned={2, 3}, unreached={0})
    assert assign_shards([giver, taker], {}, 4).owners == (0, 0, 1, 1)
    # A hand-over is also refused if the giver reaches none of the shards that could move back.
    cut = giver._replace(unreached={2, 3})
    assert assign_shards([cut, taker._replace(unreached=())], {}, 4).owners == (0, 0, 1, 1)
    # If the request names no member, another member gets the shard.
    anybody = giver._replace(wishes={0: ""})
    assert assign_shards([anybody, taker, make_member(2, owned={4, 5})], {}, 6).owners[0] == 2


def test_granted_hand_over_may_allow_another_move() -> None:
    members = [
        make_member(0, owned={1}, wishes={1: "i2"}),
        make_member(1, owned={0}, unreached={0, 1}),
        make_member(2, unreached={0}),
    ]
    assert assign_shards(members, {}, 2).owners == (0, 2)
