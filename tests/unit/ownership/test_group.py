"""Replicas in a group in memory, on virtual time: scenarios, leases, draining and placement."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from coordinator.cluster.kafka.group_results import JoinResult
from coordinator.cluster.ownership.base import Replica
from coordinator.cluster.ownership.group import GroupOwnership
from coordinator.cluster.ownership.lease import Lease
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.cluster.ownership.membership import Membership
from coordinator.errors import LogUnavailable
from tests.kafka_in_memory.group import GroupInMemory
from tests.kafka_in_memory.group_coordinator import STABLE
from tests.unit.coroutine_tests import wait_until
from tests.unit.ownership.replicas import RecordingListener, ReplicaGroup
from tests.unit.ownership.scenarios import SCENARIOS, Scenario, cut_off_replica

pytestmark = pytest.mark.run_with(fixture="fleet")

LIMITS = GroupLimits()
HOUR_S = 3600.0


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_scenario_takes_less_than_15_s(fleet: ReplicaGroup, scenario: Scenario) -> None:
    # The scenarios limit a drain to 20 s, so no drain ended by its time limit.
    assert await scenario(fleet) < 15.0


@pytest.mark.run_with(function=asyncio.run)
async def test_membership_runs_in_a_thread_that_ends_with_it() -> None:
    class UnreachableGroupClient:
        def __getattr__(self, method: str) -> Any:
            async def refuse_request(*arguments: object) -> None:
                raise LogUnavailable("no broker")

            return refuse_request

    ownership = GroupOwnership(
        UnreachableGroupClient,  # type: ignore[arg-type]
        replica=Replica("instance", "replica:9095"),
        state_topic="state",
        state_partitions=2,
        group_id="group",
    )
    await ownership.start(RecordingListener())
    await wait_until(lambda: ownership.health() == ["Group group cannot be reached: no broker"])
    (thread,) = (each for each in threading.enumerate() if each.name == "ownership")
    loop = ownership._loop
    assert loop is not None
    unfinished = asyncio.run_coroutine_threadsafe(asyncio.sleep(HOUR_S), loop)
    await ownership.stop()
    assert (thread.is_alive(), loop.is_closed(), unfinished.cancelled()) == (False, True, True)


async def test_drained_shards_are_released_before_their_next_owner(fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(2)
    await replicas[0].ownership.drain(20.0)
    await fleet.wait_until(lambda: fleet.is_shared_by(replicas[1]))
    assert {released for _, released in replicas[1].listener.elections} == {True}


async def test_join_renews_the_lease_before_the_first_heartbeat(fleet: ReplicaGroup) -> None:
    replica = await fleet.add()
    joined_s = await fleet.wait_until(lambda: fleet.is_shared_by(replica))
    assert joined_s < LIMITS.heartbeat_interval_s
    assert (replica.ownership.lease_is_fresh(), replica.ownership.health()) == (True, [])
    assert replica.ownership.rebalances == 1


async def test_stopped_replica_leaves_the_group_at_once(fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(2)
    await replicas[0].ownership.stop()
    took_s = await fleet.wait_until(lambda: fleet.is_shared_by(replicas[1]))
    assert took_s < LIMITS.session_timeout_s / 2


async def test_take_over_takes_at_most_a_session_timeout(fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(3)
    cut_off_replica(replicas[0])
    took_s = await fleet.wait_until(lambda: fleet.is_shared_by(*replicas[1:]))
    assert took_s < LIMITS.session_timeout_s + 1.5 * LIMITS.heartbeat_interval_s


async def test_lease_expires_before_another_replica_takes_over(fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(2)
    cut_off_replica(replicas[0])
    stale_s = await fleet.wait_until(lambda: not replicas[0].ownership.lease_is_fresh())
    assert replicas[0].listener.assignment is None or await fleet.wait_until(
        lambda: replicas[0].listener.assignment is None, 0.1
    )
    taken_s = await fleet.wait_until(lambda: fleet.is_shared_by(replicas[1]))
    assert stale_s <= LIMITS.lease_s
    assert taken_s > 0.5
    # The replica still owns its shards: only an assignment or the log takes them away.
    assert replicas[0].owned != set()


async def test_leases_remain_fresh_while_a_join_waits_for_a_dead_member(
    group: GroupInMemory, fleet: ReplicaGroup
) -> None:
    replicas = await fleet.add_all(3)
    cut_off_replica(replicas[0])
    # The session of the dead member has not expired, so the rebalance waits.
    replicas.append(await fleet.add())
    await fleet.wait_until(lambda: group.state != STABLE)
    for one in replicas[1:3]:
        one.listener.assignments.clear()
    waited_s = await fleet.wait_until(lambda: fleet.is_shared_by(*replicas[1:]))
    assert waited_s > LIMITS.session_timeout_s / 2
    for one in replicas[1:3]:
        assert None not in one.listener.assignments


async def test_heartbeats_do_not_renew_the_lease_without_the_new_assignment(
    group: GroupInMemory, fleet: ReplicaGroup
) -> None:
    replicas = await fleet.add_all(2)
    replicas[1].link.syncs_pass.clear()
    added = await fleet.add()
    await fleet.wait_until(lambda: added.owned != set())
    # Heartbeats succeed, but the replica does not know the current assignment.
    stale_s = await fleet.wait_until(lambda: not replicas[1].ownership.lease_is_fresh())
    assert stale_s <= LIMITS.lease_s
    await fleet.wait_until(lambda: replicas[1].listener.assignment is None)
    assert len(group.members) == 3
    replicas[1].link.syncs_pass.set()
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas, added))


async def test_late_assignment_resigns_shards_before_the_lease_is_fresh(fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(2)
    one = replicas[1]
    resigned, fresh = one.listener.on_resigned, []

    def record_lease(state_partition: int) -> None:
        fresh.append(one.ownership.lease_is_fresh())
        resigned(state_partition)

    one.listener.on_resigned = record_lease  # type: ignore[method-assign]
    one.link.joins_pass.clear()
    added = await fleet.add()
    await fleet.wait_until(lambda: not one.ownership.lease_is_fresh())
    one.link.joins_pass.set()
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas, added))
    assert fresh
    assert not any(fresh)
    await fleet.wait_until(one.ownership.lease_is_fresh)


async def test_lease_starts_when_the_heartbeat_is_sent(fleet: ReplicaGroup) -> None:
    (one,) = await fleet.add_all(1)
    one.link.reply_s = 3.0
    ages: list[float] = []
    began = fleet.now()

    def record_age() -> bool:
        ages.append(one.ownership.heartbeat_age_s or 0.0)
        return fleet.now() - began > 60.0

    await fleet.wait_until(record_age, 100.0)
    assert min(ages[len(ages) // 2 :]) >= 3.0
    assert max(ages) < LIMITS.lease_s
    one.link.reply_s = 0.0


async def test_drain_waits_until_the_shards_are_released(group: GroupInMemory, fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(2)
    replicas[0].listener.slow = True
    draining = asyncio.ensure_future(replicas[0].ownership.drain(20.0))
    await fleet.wait_until(lambda: replicas[0].listener.releasing != set())
    began = fleet.now()
    await fleet.wait_until(lambda: fleet.now() - began > 1.0)
    assert not draining.done()
    assert len(group.members) == 2
    replicas[0].listener.releasing.clear()
    await draining
    await fleet.wait_until(lambda: len(group.members) == 1)


async def test_shards_move_next_to_their_leaders_only_after_lasting_changes(
    group: GroupInMemory, fleet: ReplicaGroup
) -> None:
    interval_s = 20.0
    fleet.limits = LIMITS._replace(locality_interval_s=interval_s, locality_moves_max=4)

    async def wait_for_intervals(count: float) -> None:
        began_s = fleet.now()
        await fleet.wait_until(lambda: fleet.now() - began_s > count * interval_s, HOUR_S)

    def lead_partitions(broker_of: Callable[[int], int]) -> None:
        group.partition_leaders = {number: broker_of(number) for number in range(fleet.state_partitions)}

    def count_local_shards() -> int:
        leaders = group.partition_leaders
        return sum(leaders[partition] == one.replica.broker_id for one in replicas for partition in one.owned)

    lead_partitions(lambda number: 1 + number % 3)
    replicas = [await fleet.add(broker_id=1 + number) for number in range(3)]
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas))
    await fleet.wait_until(
        lambda: count_local_shards() == fleet.state_partitions and fleet.is_shared_by(*replicas), HOUR_S
    )
    generation = group.generation
    # Short changes of partition leaders move no shard.
    lead_partitions(lambda number: 1)
    await wait_for_intervals(0.9)
    lead_partitions(lambda number: 1 + number % 3)
    await wait_for_intervals(5)
    assert group.generation == generation
    assert fleet.is_shared_by(*replicas)
    # Lasting changes cause a few moves at a time.
    lead_partitions(lambda number: 1 + (number + 1) % 3)
    await wait_for_intervals(2.5)
    assert 0 < count_local_shards() <= 2 * fleet.limits.locality_moves_max
    await fleet.wait_until(lambda: count_local_shards() == fleet.state_partitions, HOUR_S)


async def test_group_leader_that_cannot_assign_keeps_all_owners(
    fleet: ReplicaGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_defect(*_: object, **__: object) -> None:
        raise RuntimeError("a defect of the assignor")

    replicas = await fleet.add_all(2)
    before = [set(one.owned) for one in replicas]
    with monkeypatch.context() as patch:
        patch.setattr("coordinator.cluster.ownership.group_member.plan_assignment", raise_defect)
        replicas[0].listener.is_ready = False
        await fleet.wait_until(
            lambda: "could not compute an assignment" in str(replicas[1].ownership.health())
        )
        assert [one.owned for one in replicas] == before
        assert all(one.listener.assignment is not None for one in replicas)
    replicas[0].listener.is_ready = True
    await fleet.wait_until(lambda: all(one.ownership.health() == [] for one in replicas))
    assert [one.owned for one in replicas] == before


async def test_requested_rebalances_are_rate_limited(group: GroupInMemory, fleet: ReplicaGroup) -> None:
    (one,) = await fleet.add_all(1)
    generation = group.generation
    began = fleet.now()

    def fence_repeatedly() -> bool:
        # A process outside of the group claims the shard whenever the replica owns it.
        if 0 in one.owned:
            one.fence_shard(0)
        return fleet.now() - began > 60.0

    await fleet.wait_until(fence_repeatedly, 100.0)
    assert 5 < group.generation - generation <= 60.0 / LIMITS.rebalance_pause_s + 1


@pytest.mark.parametrize(
    ("generation", "member_id", "lease_is_fresh", "missed"),
    [
        (4, "me", False, False),
        (5, "me", False, True),
        (4, "another", False, True),
        (5, "another", True, False),
    ],
)
@pytest.mark.run_with(function=asyncio.run)
async def test_missed_assignments_are_detected_by_generation_and_member_id(
    generation: int, member_id: str, lease_is_fresh: bool, missed: bool
) -> None:
    membership = Membership(
        cast(Any, None),
        cast(Any, None),
        group_id="group",
        instance_id="one",
        limits=LIMITS,
        lease=(lease := Lease(10.0, lambda: 100.0)),
        monotonic=lambda: 100.0,
    )
    membership.assignment_generation, membership._assignment_member_id = 3, "me"
    if lease_is_fresh:
        lease.renew(100.0)
    assert membership._may_have_missed_assignments(JoinResult(0, generation, member_id)) is missed
