"""The assignor: balanced, sticky, close to partition leaders, and independent of the order of members."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cluster.ownership.assignor import AssignableMember, AssignmentPlan, assign_shards
from coordinator.cluster.ownership.base import NOBODY


def make_member(number: int, **facts: object) -> AssignableMember:
    """Return a member whose start time is its number."""
    instance, wire = f"i{number}", f"host-{number}:9095"
    member = AssignableMember(instance, wire, number, -1, True, False, (), -1, False, {}, ())
    return member._replace(**facts)


@st.composite
def random_groups(
    draw: st.DrawFn, distinct: bool = False
) -> tuple[list[AssignableMember], dict[int, int], int]:
    """Generate a group whose members report arbitrary shards as owned, and have arbitrary properties."""
    partitions = draw(st.integers(1, 24))
    count = draw(st.integers(1, 6))
    members = []
    for number in range(count):
        owned = draw(st.sets(st.integers(0, partitions + 2)))
        members.append(
            AssignableMember(
                instance=f"i{number}",
                wire=f"host-{number if distinct else draw(st.integers(0, count))}:9095",
                started_ms=draw(st.integers(0, 3)),
                broker_id=draw(st.integers(-1, 3)),
                ready=draw(st.booleans()),
                draining=draw(st.booleans()),
                owned=frozenset(owned),
                assignment_generation=draw(st.integers(-1, 3)),
                lease_is_fresh=draw(st.booleans()),
                wishes={},
                unreached=(),
            )
        )
    leaders = draw(st.dictionaries(st.integers(0, partitions - 1), st.integers(0, 3)))
    return members, leaders, partitions


def list_eligible_members(members: Sequence[AssignableMember], plan: AssignmentPlan) -> set[int]:
    """Return the members that may own shards: the ready ones, or all if none is ready."""
    able = [n for n, one in enumerate(members) if n not in plan.doubles and not one.draining]
    return set([n for n in able if members[n].ready] or able)


def adopt_plan(before: AssignmentPlan, members: Sequence[AssignableMember]) -> list[AssignableMember]:
    return [
        one._replace(
            owned=frozenset(p for p, owner in enumerate(before.owners) if owner == place),
            assignment_generation=10,
            lease_is_fresh=True,
        )
        for place, one in enumerate(members)
    ]


def count_shards_at_leaders(
    owners: Sequence[int], members: Sequence[AssignableMember], leaders: Mapping[int, int]
) -> int:
    return sum(
        owner != NOBODY and members[owner].broker_id >= 0 and members[owner].broker_id == leaders.get(p)
        for p, owner in enumerate(owners)
    )


def check_balance(plan: AssignmentPlan, members: Sequence[AssignableMember], partitions: int) -> set[int]:
    """Check that the numbers of shards of two eligible members differ by at most one. Return the eligible
    members.
    """
    owning = list_eligible_members(members, plan)
    if not owning:
        assert plan.owners == (NOBODY,) * partitions
        return owning
    load = Counter(plan.owners)
    assert set(load) <= owning
    sizes = [load[place] for place in owning]
    assert sum(sizes) == partitions
    assert max(sizes) - min(sizes) <= 1
    return owning


@given(random_groups(), st.integers(0, 30))
def test_eligible_members_own_equal_numbers_of_shards_within_one(
    group: tuple[list[AssignableMember], dict[int, int], int], moves_max: int
) -> None:
    members, leaders, partitions = group
    check_balance(assign_shards(members, leaders, partitions, moves_max=moves_max), members, partitions)


@given(random_groups(), st.randoms(use_true_random=False))
def test_order_of_members_does_not_change_the_assignment(
    group: tuple[list[AssignableMember], dict[int, int], int], chance: object
) -> None:
    members, leaders, partitions = group
    shuffled = list(members)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]

    def owner_names(members: list[AssignableMember]) -> list[str | None]:
        owners = assign_shards(members, leaders, partitions, moves_max=5).owners
        return [None if owner == NOBODY else members[owner].instance for owner in owners]

    assert owner_names(shuffled) == owner_names(members)


@pytest.mark.slow
@given(random_groups())
def test_assignment_is_stable_after_members_adopted_it(
    group: tuple[list[AssignableMember], dict[int, int], int],
) -> None:
    members, leaders, partitions = group
    plan = assign_shards(members, leaders, partitions)
    again = assign_shards(adopt_plan(plan, members), {}, partitions)
    assert again.owners == plan.owners
    assert again.holders == plan.owners


@given(random_groups(distinct=True), st.data())
def test_only_the_shards_of_a_leaving_member_move(
    group: tuple[list[AssignableMember], dict[int, int], int], data: st.DataObject
) -> None:
    members, leaders, partitions = group
    members = [one._replace(ready=True, draining=False) for one in members]
    plan = assign_shards(members, leaders, partitions)
    leaving = data.draw(st.integers(0, len(members) - 1))
    left = adopt_plan(plan, members)
    del left[leaving]
    after = assign_shards(left, leaders, partitions)
    for before, owner in zip(plan.owners, after.owners, strict=True):
        if before != leaving and left:
            assert left[owner].instance == members[before].instance


@given(random_groups(distinct=True))
def test_shards_move_only_to_a_joining_member(
    group: tuple[list[AssignableMember], dict[int, int], int],
) -> None:
    members, leaders, partitions = group
    members = [one._replace(ready=True, draining=False) for one in members]
    plan = assign_shards(members, leaders, partitions)
    joined = [*adopt_plan(plan, members), make_member(99)]
    after = assign_shards(joined, leaders, partitions)
    for before, owner in zip(plan.owners, after.owners, strict=True):
        assert owner in (before, len(members))


@given(random_groups(distinct=True), st.integers(0, 8))
def test_moves_are_limited_and_increase_locality(
    group: tuple[list[AssignableMember], dict[int, int], int], moves_max: int
) -> None:
    members, leaders, partitions = group
    still = adopt_plan(assign_shards(members, {}, partitions), members)
    stay = assign_shards(still, leaders, partitions).owners
    nearer = assign_shards(still, leaders, partitions, moves_max=moves_max).owners
    moves = sum(before != after for before, after in zip(stay, nearer, strict=True))
    assert moves <= moves_max
    gained = count_shards_at_leaders(nearer, still, leaders) - count_shards_at_leaders(stay, still, leaders)
    assert gained >= (moves + 1) // 2


# The leaders of shards 0 to 5: brokers 2, 2, 2, 1, 1, 1.
EXCHANGED = {partition: 2 if partition < 3 else 1 for partition in range(6)}


@pytest.mark.parametrize(
    ("owned_by_0", "leaders", "moves_max", "owners"),
    [
        # A swap of two shards counts as two moves.
        (3, EXCHANGED, 0, (0, 0, 0, 1, 1, 1)),
        (3, EXCHANGED, 1, (0, 0, 0, 1, 1, 1)),
        (3, EXCHANGED, 2, (1, 0, 0, 0, 1, 1)),
        (3, EXCHANGED, 3, (1, 0, 0, 0, 1, 1)),
        (3, EXCHANGED, 5, (1, 1, 0, 0, 0, 1)),
        (3, EXCHANGED, 9, (1, 1, 1, 0, 0, 0)),
        # A swap would only exchange which shard is next to its leader.
        (3, dict.fromkeys(range(6), 2), 9, (0, 0, 0, 1, 1, 1)),
        # The assignor makes one move that the balance allows, and then swaps.
        (4, EXCHANGED | {6: 2}, 1, (1, 0, 0, 0, 1, 1, 1)),
        (4, EXCHANGED | {6: 2}, 2, (1, 0, 0, 0, 0, 1, 1)),
        (4, EXCHANGED | {6: 2}, 3, (1, 1, 0, 0, 0, 1, 1)),
        (4, EXCHANGED | {6: 2}, 4, (1, 1, 0, 0, 0, 0, 1)),
        (4, dict.fromkeys(range(7), 2), 9, (1, 0, 0, 0, 1, 1, 1)),
    ],
)
def test_shards_move_to_the_hosts_of_their_leaders_within_the_limit(
    owned_by_0: int, leaders: dict[int, int], moves_max: int, owners: tuple[int, ...]
) -> None:
    members = [
        make_member(0, broker_id=1, owned=frozenset(range(owned_by_0))),
        make_member(1, broker_id=2, owned=frozenset(range(owned_by_0, len(leaders)))),
    ]
    assert assign_shards(members, leaders, len(leaders), moves_max=moves_max).owners == owners


def test_shard_is_swapped_with_one_of_several_members_at_its_leader() -> None:
    brokers = (1, 2, 2)
    members = [
        make_member(number, broker_id=broker, owned=frozenset({number}))
        for number, broker in enumerate(brokers)
    ]
    assert assign_shards(members, {0: 2, 1: 1, 2: 1}, 3, moves_max=9).owners == (1, 0, 2)


def test_unowned_shards_go_to_the_replica_next_to_their_leader() -> None:
    members = [make_member(number, broker_id=number) for number in range(3)]
    leaders = {partition: (partition + 1) % 3 for partition in range(12)}
    assert assign_shards(members, leaders, 12).owners == tuple((partition + 1) % 3 for partition in range(12))


def test_repeated_assignments_place_all_shards_next_to_their_leaders() -> None:
    members = [make_member(number, broker_id=number) for number in range(3)]
    plan = assign_shards(members, {}, 12)
    leaders = {partition: (partition + 2) % 3 for partition in range(12)}
    for _ in range(12):
        plan = assign_shards(adopt_plan(plan, members), leaders, 12, moves_max=2)
    assert count_shards_at_leaders(plan.owners, members, leaders) == 12


def test_unready_member_owns_no_shards_if_another_is_ready() -> None:
    unready, ready = make_member(0, ready=False, owned={0, 1, 2}), make_member(1)
    assert assign_shards([unready, ready], {}, 3).owners == (1, 1, 1)
    assert set(assign_shards([unready, ready._replace(ready=False)], {}, 4).owners) == {0, 1}
    assert assign_shards([unready, ready._replace(draining=True)], {}, 3).owners == (0, 0, 0)


def test_no_member_owns_shards_if_all_drain() -> None:
    members = [make_member(0, draining=True, owned={0}), make_member(1, draining=True)]
    assert assign_shards(members, {}, 2) == AssignmentPlan((NOBODY, NOBODY), (0, NOBODY), {})


@pytest.mark.parametrize("turned", [False, True])
def test_later_started_of_two_members_with_one_address_gets_the_shards(turned: bool) -> None:
    older, newer = make_member(0, wire="h:1", owned={0, 1}, lease_is_fresh=True), make_member(1, wire="h:1")
    members = [newer, older] if turned else [older, newer]
    plan = assign_shards(members, {}, 2)
    winner, loser = members.index(newer), members.index(older)
    assert plan.owners == (winner, winner)
    assert plan.doubles == {loser: winner}
    # The older member remains the holder of the shards, so that it can hand them over.
    assert plan.holders == (loser, loser)


@pytest.mark.parametrize(
    ("one", "other", "holder"),
    [
        ({"assignment_generation": 4}, {"assignment_generation": 5}, 1),
        ({"assignment_generation": 5}, {"assignment_generation": 4}, 0),
        ({"assignment_generation": 9}, {"assignment_generation": 1, "lease_is_fresh": True}, 1),
        (
            {"assignment_generation": 9, "lease_is_fresh": True},
            {"assignment_generation": 8, "lease_is_fresh": True},
            0,
        ),
    ],
)
def test_holder_is_the_member_with_a_fresh_lease_and_the_newest_assignment(
    one: dict[str, object], other: dict[str, object], holder: int
) -> None:
    plan = assign_shards([make_member(0, owned={0}, **one), make_member(1, owned={0}, **other)], {}, 2)
    assert plan.holders == (holder, NOBODY)
    assert plan.owners[0] == holder
