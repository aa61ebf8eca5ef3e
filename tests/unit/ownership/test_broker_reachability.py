"""Assignment of shards whose owner does not reach the broker that leads them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cluster.kafka.group import MetadataSnapshot
from coordinator.cluster.ownership.assignor import AssignableMember, assign
from coordinator.cluster.ownership.broker_reachability import PROBES_MAX, BrokerReachability
from coordinator.cluster.ownership.limits import GroupLimits
from tests.unit.ownership.fake_group import STABLE, FakeGroup
from tests.unit.ownership.replicas import GroupReplica, Play, ReplicaGroup
from tests.unit.ownership.test_assignor import adopt, check_balance, groups, locality, may_own, member

LIMITS = GroupLimits()
LEADERS = {partition: 1 + partition % 3 for partition in range(12)}

Group = tuple[list[AssignableMember], dict[int, int], int]


@st.composite
def unreachable_brokers(draw: st.DrawFn) -> Group:
    """Generate a group whose members do not reach some brokers, and have any hand-over requests."""
    members, leaders, partitions = draw(groups())
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


def lost(owners: Sequence[int], members: Sequence[AssignableMember]) -> int:
    """Return the number of shards whose owner does not reach their leader."""
    return sum(partition in members[owner].unreached for partition, owner in enumerate(owners))


@pytest.mark.slow
@given(unreachable_brokers(), st.integers(0, 30))
def test_assignor_makes_each_helpful_move_or_swap_and_keeps_the_result(group: Group, moves_max: int) -> None:
    members, leaders, partitions = group
    plan = assign(members, leaders, partitions, moves_max=moves_max)
    owning = check_balance(plan, members, partitions)
    if not owning:
        return
    assert fixable_shards(plan.owners, members, owning) == []
    # The next rebalance, without hand-over requests, changes nothing.
    after = [one._replace(wishes={}) for one in adopt(plan, members)]
    assert assign(after, leaders, partitions).owners == plan.owners


@pytest.mark.slow
@given(unreachable_brokers(), st.integers(2, 8))
def test_repeated_assignments_with_unreachable_brokers_converge(group: Group, moves_max: int) -> None:
    members, leaders, partitions = group
    members = [one._replace(wishes={}) for one in members]
    plan = assign(members, {}, partitions)
    if not may_own(members, plan):
        return
    seen: list[tuple[int, int]] = [(lost(plan.owners, members), 0)]
    while True:
        before, plan = plan, assign(adopt(plan, members), leaders, partitions, moves_max=moves_max)
        if plan.owners == before.owners:
            break
        # Each step improves reachability first, and locality second.
        seen.append((lost(plan.owners, members), -locality(plan.owners, members, leaders)))
        assert len(seen) < 4 * partitions


@pytest.mark.slow
@given(unreachable_brokers())
def test_only_shards_with_an_unreachable_leader_cause_moves(group: Group) -> None:
    members, leaders, partitions = group
    reaching = [one._replace(unreached=(), wishes={}) for one in members]
    plan = assign(reaching, leaders, partitions)
    still = adopt(plan, reaching)
    now = [one._replace(unreached=other.unreached) for one, other in zip(still, members, strict=True)]
    after = assign(now, leaders, partitions).owners
    if not may_own(members, plan):
        return
    moves = sum(was != owner for was, owner in zip(plan.owners, after, strict=True))
    # An unreachable shard moves, and at most one other shard moves back for it.
    assert moves <= 2 * (lost(plan.owners, now) - lost(after, now))


def test_shard_is_swapped_if_both_members_reach_their_new_shard() -> None:
    members = [member(0, owned={0, 1, 2}, unreached={1}), member(1, owned={3, 4, 5}, unreached={5})]
    assert assign(members, {}, 6).owners == (0, 1, 0, 1, 1, 0)
    assert assign([members[0], members[1]._replace(unreached=())], {}, 6).owners == (0, 1, 0, 0, 1, 1)


def test_shard_moves_without_a_swap_if_the_balance_allows_it() -> None:
    members = [member(0, owned={0, 1, 2}, unreached={1}), member(1, owned={3, 4})]
    assert assign(members, {}, 5).owners == (0, 1, 0, 1, 1)


def test_shard_stays_if_the_balance_does_not_allow_a_move() -> None:
    everything = set(range(4))
    for other in (set[int](), everything):
        members = [
            member(0, owned={0, 1}, unreached=everything),
            member(1, owned={2, 3}, unreached=other),
        ]
        assert assign(members, {}, 4).owners == (0, 0, 1, 1)


def test_member_gets_no_locality_for_a_broker_that_it_does_not_reach() -> None:
    leaders = {partition: 1 + partition % 2 for partition in range(6)}
    away = {partition for partition, leader in leaders.items() if leader == 1}
    members = [member(0, broker_id=1, unreached=away), member(1, broker_id=2), member(2)]
    plan = assign(members, leaders, 6)
    for _ in range(6):
        assert lost(plan.owners, members) == 0
        plan = assign(adopt(plan, members), leaders, 6, moves_max=9)
    # The first member must own two of the three shards whose leader it reaches.
    assert locality(plan.owners, members, leaders) == 1


def test_swap_may_enable_another_swap() -> None:
    members = [
        member(0, owned={0}, unreached={0, 2}),
        member(1, owned={2}),
        member(2, owned={1}, unreached={0, 1}),
    ]
    assert assign(members, {}, 3).owners == (1, 0, 2)


def test_unowned_shard_goes_to_a_member_that_reaches_its_leader() -> None:
    members = [member(0, owned={1}, broker_id=1, unreached={0}), member(1, owned={2})]
    assert assign(members, {0: 1}, 4).owners == (1, 0, 1, 0)


def test_overloaded_member_first_loses_shards_that_it_does_not_reach() -> None:
    members = [member(0, owned=range(6), unreached={0}), member(1, owned={6, 7, 8}), member(2)]
    assert assign(members, {}, 9).owners == (2, 0, 0, 0, 2, 2, 1, 1, 1)


def test_member_next_to_the_leader_is_preferred_among_those_that_reach_it() -> None:
    members = [
        member(0, owned={0, 1}, unreached={0}),
        member(1, owned={2, 3}),
        member(2, owned={4, 5}, broker_id=1),
    ]
    assert assign(members, {0: 1}, 6).owners == (2, 0, 1, 1, 0, 2)
    nobodys = [member(0, broker_id=1), member(1, broker_id=2), member(2, broker_id=3, unreached={0})]
    assert assign(nobodys, {0: 2, 1: 1, 2: 3}, 3).owners == (1, 0, 2)


def test_member_next_to_a_leader_yields_to_the_only_one_that_reaches_another() -> None:
    leaders = {0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 2}
    # Only the member next to the leader of the last three shards reaches the leader of the first three.
    members = [member(0, broker_id=2), member(1, unreached={0, 1, 2})]
    assert assign(members, leaders, 6).owners == (0, 0, 0, 1, 1, 1)


def test_hand_over_to_a_member_that_does_not_reach_the_leader_is_refused() -> None:
    giver, taker = member(0, owned={0, 1}, wishes={0: "i1"}), member(1, owned={2, 3}, unreached={0})
    assert assign([giver, taker], {}, 4).owners == (0, 0, 1, 1)
    # A hand-over is also refused if the giver reaches none of the shards that could move back.
    cut = giver._replace(unreached={2, 3})
    assert assign([cut, taker._replace(unreached=())], {}, 4).owners == (0, 0, 1, 1)
    # If the request names no member, another member gets the shard.
    anybody = giver._replace(wishes={0: ""})
    assert assign([anybody, taker, member(2, owned={4, 5})], {}, 6).owners[0] == 2


def test_granted_hand_over_may_allow_another_move() -> None:
    members = [
        member(0, owned={1}, wishes={1: "i2"}),
        member(1, owned={0}, unreached={0, 1}),
        member(2, unreached={0}),
    ]
    assert assign(members, {}, 2).owners == (0, 2)


# Reachability as seen by one replica.


def snapshot(**away: str) -> MetadataSnapshot:
    return MetadataSnapshot(LEADERS, {int(name[1:]): why for name, why in away.items()})


def partitions_led_by(*nodes: int) -> tuple[int, ...]:
    return tuple(partition for partition, leader in LEADERS.items() if leader in nodes)


def test_broker_is_unreachable_after_two_failed_checks_in_a_row() -> None:
    reach = BrokerReachability()
    steps: list[tuple[MetadataSnapshot | None, tuple[int, ...]]] = [
        (snapshot(b2="no"), ()),
        (snapshot(), ()),
        (snapshot(b2="no"), ()),
        (snapshot(b3="no"), ()),
        (snapshot(b2="no", b3="no"), (3,)),
        (snapshot(b2="no"), (2,)),
        (snapshot(), ()),
        (snapshot(b2="no"), ()),
        # A check without any answer ends the sequence of failures, and the known state remains.
        (None, ()),
        (snapshot(b2="no"), ()),
        (snapshot(b2="no"), (2,)),
        (None, (2,)),
        (snapshot(b2="no", b1="no"), (2,)),
        (snapshot(b1="no"), (1,)),
    ]
    for number, (seen, unreached) in enumerate(steps):
        reach.update(seen)
        assert reach.unreached == unreached, number


def test_unreachable_broker_remains_unreachable_when_it_leads_again() -> None:
    reach = BrokerReachability()
    for leaders in ({0: 1, 1: 2}, {0: 1, 1: 2}, {0: 2, 1: 2}, {0: 1, 1: 1}):
        reach.update(MetadataSnapshot(leaders, {2: "no"}))
    assert reach.unreached == ()
    reach.update(MetadataSnapshot({0: 2, 1: 1}, {2: "no"}))
    assert reach.unreached == (2,)


def test_replica_probes_leaders_of_its_shards_and_unreachable_brokers() -> None:
    reach = BrokerReachability()
    assert reach.probes(LEADERS, {0, 3}) == {1}
    reach.update(MetadataSnapshot(LEADERS, {1: "no"}))
    assert reach.probes(LEADERS, {1}) == {1, 2}
    reach.update(MetadataSnapshot(LEADERS, {1: "no"}))
    assert reach.unreached == (1,)
    # The replica no longer owns the shards. It probes their leader until it answers or leads no partition.
    assert reach.probes(LEADERS, {1}) == {1, 2}
    assert reach.probes({0: 3, 1: 2}, {1}) == {2}
    reach.update(MetadataSnapshot(LEADERS, {}))
    assert reach.probes(LEADERS, {1}) == {2}


def test_many_brokers_are_probed_in_turn() -> None:
    reach = BrokerReachability()
    leaders = {partition: partition for partition in range(50)}
    rounds = [reach.probes(leaders, leaders) for _ in range(5)]
    assert [len(probed) for probed in rounds] == [PROBES_MAX] * 5
    assert set().union(*rounds[:3]) == set(leaders)
    assert all(set().union(*rounds[first : first + 3]) == set(leaders) for first in range(3))


def set_unreachable(one: GroupReplica, *nodes: int) -> None:
    one.link.unreachable_brokers = set(nodes)  # type: ignore[attr-defined]


def serves_all(replicas: Sequence[GroupReplica], leaders: Mapping[int, int]) -> bool:
    return all(
        leaders[partition] not in one.link.unreachable_brokers  # type: ignore[attr-defined]
        for one in replicas
        for partition in one.owned
    )


def test_only_replica_that_does_not_reach_a_broker_swaps_its_shards(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(group: FakeGroup, fleet: ReplicaGroup) -> None:
        group.partition_leaders = dict(LEADERS)
        replicas = await fleet.add_all(3)
        set_unreachable(replicas[1], 2)
        took_s = await fleet.until(lambda: serves_all(replicas, LEADERS) and fleet.shared_by(*replicas), 60.0)
        assert (
            LIMITS.reachability_interval_s
            < took_s
            < 2 * LIMITS.reachability_interval_s + LIMITS.rebalance_pause_s + 3
        )
        swapped = len(replicas[1].listener.resignations)
        # The replica cannot release these shards, so their new owners do not wait.
        assert [expected for _, expected in replicas[1].listener.elections] == [True] * swapped
        for one in (replicas[0], replicas[2]):
            assert {expected for _, expected in one.listener.elections} <= {False}
        assert 2 * swapped == sum(len(one.listener.resignations) for one in replicas)
        assert all(one.ownership.health() == [] for one in replicas)

        # When the broker is reachable again, no shard moves, but the replica informs the group.
        set_unreachable(replicas[1])
        rebalances = replicas[1].ownership.rebalances
        await fleet.until(lambda: replicas[1].ownership.rebalances > rebalances and group.state == STABLE)
        assert fleet.shared_by(*replicas)
        assert 2 * swapped == sum(len(one.listener.resignations) for one in replicas)
        set_unreachable(replicas[0], 2)
        set_unreachable(replicas[2], 2)
        await fleet.until(lambda: serves_all(replicas, LEADERS) and fleet.shared_by(*replicas), 60.0)
        assert replicas[1].owned == set(partitions_led_by(2))

    with caplog.at_level(logging.INFO):
        play(scene)
    said = [record for record in caplog.records if record.name.endswith(".broker_reachability")]
    assert [record.levelno for record in said] == [
        logging.WARNING,
        logging.INFO,
        logging.WARNING,
    ]
    assert "broker 2 is not there" in said[0].getMessage()


def test_lasting_unreachability_is_logged_and_reported_once(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(group: FakeGroup, fleet: ReplicaGroup) -> None:
        group.partition_leaders = dict(LEADERS)
        replicas = await fleet.add_all(2)
        set_unreachable(replicas[0], 2)
        await fleet.until(lambda: serves_all(replicas, LEADERS), 60.0)
        await fleet.until(lambda: group.state == STABLE and fleet.shared_by(*replicas))
        generation = group.generation
        await asyncio.sleep(3600.0)
        assert group.generation == generation

    play(scene)
    assert sum(record.name.endswith(".broker_reachability") for record in caplog.records) == 1


def test_broker_failure_moves_no_shard(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: ReplicaGroup) -> None:
        group.partition_leaders = dict(LEADERS)
        replicas = await fleet.add_all(2)
        generation = group.generation
        for _ in range(10):
            # By default, Kafka detects the failure after 9 s.
            group.down.add(2)
            await asyncio.sleep(9.0)
            group.partition_leaders = {each: 1 if each % 2 else 3 for each in LEADERS}
            await asyncio.sleep(7.3)
            group.down.clear()
            group.partition_leaders = dict(LEADERS)
            await asyncio.sleep(14.1)
        assert group.generation == generation
        assert all(one.listener.resignations == [] for one in replicas)

    play(scene)


def test_reported_reachability_is_kept_while_no_broker_answers(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: ReplicaGroup) -> None:
        group.partition_leaders = dict(LEADERS)
        replicas = await fleet.add_all(2)
        set_unreachable(replicas[0], 2)
        await fleet.until(lambda: serves_all(replicas, LEADERS) and fleet.shared_by(*replicas), 60.0)
        resigned = [list(one.listener.resignations) for one in replicas]
        group.down |= group.nodes
        await asyncio.sleep(300.0)
        group.down.clear()
        await fleet.until(lambda: fleet.shared_by(*replicas) and group.state == STABLE, 60.0)
        await asyncio.sleep(60.0)
        assert serves_all(replicas, LEADERS)
        # Members that Kafka removed meanwhile claim their shards again. The shards move to no other member.
        for one, before in zip(replicas, resigned, strict=True):
            assert set(one.listener.resignations[len(before) :]) <= one.owned

    play(scene)


def test_failure_detected_by_many_replicas_causes_few_rebalances(play: Play) -> None:
    """A broker answers no replica, and each replica detects this at a different time."""

    async def scene(group: FakeGroup, fleet: ReplicaGroup) -> None:
        group.partition_leaders = dict(LEADERS)
        replicas = []
        for _ in range(12):
            replicas.append(await fleet.add())
            # Start the replicas at different times, so that they probe at different times.
            await asyncio.sleep(LIMITS.reachability_interval_s / 12)
        await fleet.until(lambda: fleet.shared_by(*replicas) and group.state == STABLE)
        generation = group.generation
        for one in replicas:
            set_unreachable(one, 2)
        await asyncio.sleep(120.0)
        assert fleet.shared_by(*replicas)
        assert 1 <= group.generation - generation <= 5

    play(scene)
