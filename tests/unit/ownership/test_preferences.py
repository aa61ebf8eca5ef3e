"""Hand-over requests of an owner: which are granted, the balance, and the next rebalance."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cluster.ownership.assignor import AssignableMember, assign_shards
from tests.kafka_in_memory.group import GroupInMemory
from tests.kafka_in_memory.group_coordinator import STABLE
from tests.unit.ownership.replicas import ReplicaGroup
from tests.unit.ownership.test_assignor import adopt_plan, check_balance, make_member, random_groups

pytestmark = pytest.mark.run_with(fixture="fleet")

Group = tuple[list[AssignableMember], dict[int, int], int]


def test_shard_moves_to_the_requested_member_and_another_moves_back() -> None:
    members = [make_member(0, owned={0, 1}, wishes={0: "i1"}), make_member(1, owned={2, 3})]
    assert assign_shards(members, {}, 4).owners == (1, 0, 0, 1)


def test_no_shard_moves_back_if_the_balance_allows_it() -> None:
    members = [make_member(0, owned={0, 1, 2}, wishes={1: "i1"}), make_member(1, owned={3, 4})]
    assert assign_shards(members, {}, 5).owners == (0, 1, 0, 1, 1)


def test_request_without_a_member_moves_the_shard_to_the_least_loaded() -> None:
    members = [
        make_member(0, owned={0, 1}, wishes={0: ""}),
        make_member(1, owned={2, 3}),
        make_member(2, owned={4}),
    ]
    assert assign_shards(members, {}, 5).owners == (2, 0, 1, 1, 2)


def test_giver_gets_a_shard_in_exchange_whose_leader_is_next_to_it() -> None:
    members = [
        make_member(0, owned={0, 1}, broker_id=5, wishes={0: "i1"}),
        make_member(1, owned={2, 3}, broker_id=6),
    ]
    # The broker next to the giver leads shard 3.
    assert assign_shards(members, {2: 6, 3: 5}, 4).owners == (1, 0, 1, 0)


def test_request_that_cannot_be_granted_changes_nothing() -> None:
    for wishes, other in (
        ({0: "nobody"}, {}),
        ({0: "i0"}, {}),
        ({0: "i1"}, {"draining": True}),
        ({0: "i1"}, {"ready": False}),
        ({3: "i1"}, {}),
        ({99: "i1"}, {}),
    ):
        members = [make_member(0, owned={0, 1}), make_member(1, owned={2, 3})._replace(**other)]
        wishing = [members[0]._replace(wishes=wishes), members[1]]
        assert assign_shards(wishing, {}, 4).owners == assign_shards(members, {}, 4).owners


def test_two_members_may_exchange_shards() -> None:
    members = [make_member(0, owned={0, 1}, wishes={0: "i1"}), make_member(1, owned={2, 3}, wishes={2: "i0"})]
    owners = assign_shards(members, {}, 4).owners
    assert (owners[0], owners[2]) == (1, 0)
    assert Counter(owners) == {0: 2, 1: 2}


@given(random_groups(distinct=True), st.data())
def test_requests_keep_the_balance_and_the_result_is_stable(group: Group, data: st.DataObject) -> None:
    members, leaders, partitions = group
    members = adopt_plan(assign_shards(members, leaders, partitions), members)
    names = st.sampled_from(["", "stranger", *(one.instance for one in members)])
    wishes = data.draw(st.lists(st.dictionaries(st.integers(0, partitions), names), max_size=len(members)))
    for place, wished in enumerate(wishes):
        members[place] = members[place]._replace(wishes=wished)
    plan = assign_shards(members, leaders, partitions)
    if not check_balance(plan, members, partitions):
        return
    # The next rebalance, without requests, changes nothing.
    after = [one._replace(wishes={}) for one in adopt_plan(plan, members)]
    assert assign_shards(after, leaders, partitions).owners == plan.owners


@given(random_groups(distinct=True), st.data())
def test_single_request_is_granted(group: Group, data: st.DataObject) -> None:
    members, leaders, partitions = group
    members = [one._replace(ready=True, draining=False) for one in members]
    members = adopt_plan(assign_shards(members, leaders, partitions), members)
    giver = data.draw(st.integers(0, len(members) - 1))
    taker = data.draw(st.integers(0, len(members) - 1))
    owned = sorted(members[giver].owned)
    if giver == taker or not owned:
        return
    shard = data.draw(st.sampled_from(owned))
    before = assign_shards(members, leaders, partitions).owners
    members[giver] = members[giver]._replace(wishes={shard: members[taker].instance})
    after = assign_shards(members, leaders, partitions).owners
    assert after[shard] == taker
    # At most one other shard moves, and it moves to the giver.
    others = [p for p in range(partitions) if p != shard and before[p] != after[p]]
    assert [after[p] for p in others] in ([], [giver])


async def test_replica_hands_a_shard_over(group: GroupInMemory, fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(3)
    giver, taker = replicas[0], replicas[2]
    shard = min(giver.owned)
    giver.ownership.hand_over(shard, taker.replica.instance)
    await fleet.wait_until(lambda: shard in taker.owned and fleet.is_shared_by(*replicas))
    assert giver.listener.resignations == [shard]
    # The new owner waits for the release by the previous one.
    assert (shard, True) in taker.listener.elections
    assert len(taker.listener.resignations) == 1
    assert replicas[1].listener.elections == replicas[1].listener.resignations == []

    # The request is forgotten: the next rebalance moves nothing.
    rebalances = giver.ownership.rebalances
    added = await fleet.add(ready=False)
    await fleet.wait_until(lambda: giver.ownership.rebalances > rebalances and group.state == STABLE)
    assert shard in taker.owned
    assert added.owned == set()


async def test_replica_cannot_hand_over_a_shard_of_another_replica(fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(2)
    rebalances = replicas[0].ownership.rebalances
    replicas[0].ownership.hand_over(min(replicas[1].owned), "")
    await asyncio.sleep(60.0)
    assert replicas[0].ownership.rebalances == rebalances


async def test_several_shards_are_handed_over_at_once(fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(2)
    shards = sorted(replicas[0].owned)[:3]
    for shard in shards:
        replicas[0].ownership.hand_over(shard, "")
    await fleet.wait_until(lambda: set(shards) <= replicas[1].owned and fleet.is_shared_by(*replicas))
