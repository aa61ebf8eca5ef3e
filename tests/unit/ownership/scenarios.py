"""Scenarios that replicas of a group must pass, on the group in memory and on a real Kafka.

Each scenario receives a ReplicaGroup without replicas. A scenario can cut off the group clients of its
replicas. A scenario returns the duration in seconds of the step in its name.
"""

from collections.abc import Awaitable, Callable

from tests.unit.ownership.replicas import GroupReplica, ReplicaGroup, listener_generation

Scenario = Callable[[ReplicaGroup], Awaitable[float]]


def cut_off_replica(one: GroupReplica) -> None:
    """Drop all requests of a replica, as if its process was killed."""
    one.link.cut = True  # type: ignore[attr-defined]


async def killed_replica_is_replaced(fleet: ReplicaGroup) -> float:
    replicas = await fleet.add_all(3)
    before = [set(one.owned) for one in replicas]
    cut_off_replica(replicas[0])
    took_s = await fleet.wait_until(lambda: fleet.is_shared_by(*replicas[1:]))
    for one, owned in zip(replicas[1:], before[1:], strict=True):
        assert one.owned >= owned
        assert one.listener.resignations == []
        gained = one.owned - owned
        assert gained <= before[0]
        assert sorted(one.listener.elections) == [(partition, False) for partition in sorted(gained)]
    await fleet.wait_until(lambda: replicas[0].listener.assignment is None)
    assert not replicas[0].ownership.lease_is_fresh()
    assert replicas[0].ownership.health() != []
    await fleet.wait_until(lambda: replicas[1].ownership.health() == [])
    return took_s


async def draining_replica_hands_over(fleet: ReplicaGroup) -> float:
    replicas = await fleet.add_all(3)
    before = [set(one.owned) for one in replicas]
    began = fleet.now()
    await replicas[0].ownership.drain(20.0)
    assert replicas[0].owned == set()
    given_away = [assignment for assignment in replicas[0].listener.assignments if assignment is not None][-1]
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas[1:]))
    took_s = fleet.now() - began
    for one, owned in zip(replicas[1:], before[1:], strict=True):
        assert one.owned >= owned
        assert one.listener.resignations == []
        assert sorted(partition for partition, _ in one.listener.elections) == sorted(one.owned - owned)
        # Kafka refuses SyncGroup after a member leaves. A member that syncs later gets only the next
        # assignment, which has no hand-over.
        released = {expected for _, expected in one.listener.elections}
        assert len(released) == 1
        if given_away in one.listener.assignments:
            assert released == {True}
    assert not replicas[0].ownership.lease_is_fresh()
    return took_s


async def last_replica_drains(fleet: ReplicaGroup) -> float:
    (one,) = await fleet.add_all(1)
    began = fleet.now()
    await one.ownership.drain(20.0)
    assert one.owned == set()
    return fleet.now() - began


async def stopped_replica_is_replaced(fleet: ReplicaGroup) -> float:
    replicas = await fleet.add_all(2)
    await replicas[1].ownership.stop()
    return await fleet.wait_until(lambda: fleet.is_shared_by(replicas[0]))


async def joining_replica_gets_shards(fleet: ReplicaGroup) -> float:
    replicas = await fleet.add_all(2)
    before = [set(one.owned) for one in replicas]
    added = await fleet.add()
    took_s = await fleet.wait_until(lambda: fleet.is_shared_by(*replicas, added))
    # Only the shards of the new replica moved, and each replica kept its other shards.
    for one, owned in zip(replicas, before, strict=True):
        assert one.owned <= owned
        assert one.listener.resignations == sorted(owned - one.owned)
    assert all(expected for _, expected in added.listener.elections)
    return took_s


async def newer_of_two_replicas_with_one_address_gets_shards(fleet: ReplicaGroup) -> float:
    first, other = await fleet.add_all(2)
    newer = await fleet.add(wire=first.replica.wire)
    took_s = await fleet.wait_until(lambda: fleet.is_shared_by(other, newer))
    await fleet.wait_until(
        lambda: first.owned == set() and "has the same address" in str(first.ownership.health())
    )
    await fleet.wait_until(lambda: first.listener.assignment == newer.listener.assignment)
    await fleet.wait_until(lambda: newer.ownership.health() == [])
    # After the newer replica stops, the older replica owns shards again.
    await newer.ownership.stop()
    await fleet.wait_until(lambda: fleet.is_shared_by(first, other) and first.ownership.health() == [])
    return took_s


async def restarted_static_member_keeps_shards(
    fleet: ReplicaGroup,
) -> float:
    replicas = [await fleet.add(instance_id=f"place {number}") for number in range(3)]
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas))
    took_s = 0.0
    # Restart each replica in turn, so that the group leader is among them.
    for place, killed in enumerate(list(replicas)):
        before = [(one, set(one.owned)) for one in replicas if one is not killed]
        for one in replicas:
            one.listener.resignations.clear()
        cut_off_replica(killed)
        began = fleet.now()
        replicas[place] = await fleet.add(wire=killed.replica.wire, instance_id=f"place {place}")
        await fleet.wait_until(lambda: fleet.is_shared_by(*replicas))
        took_s = max(took_s, fleet.now() - began)
        assert replicas[place].owned == killed.owned
        assert [(one, one.owned, one.listener.resignations) for one, _ in before] == [
            (one, owned, []) for one, owned in before
        ]
    await fleet.wait_until(lambda: all(one.ownership.health() == [] for one in replicas))
    assert took_s < fleet.limits.session_timeout_s
    return took_s


async def static_member_may_change_address(fleet: ReplicaGroup) -> float:
    replicas = [await fleet.add(instance_id=f"place {number}") for number in range(2)]
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas))
    cut_off_replica(replicas[1])
    # The new replica receives the assignment of its predecessor, which does not contain the new address.
    back = await fleet.add(wire="elsewhere:9095", instance_id="place 1")
    took_s = await fleet.wait_until(lambda: fleet.is_shared_by(replicas[0], back))
    await fleet.wait_until(lambda: back.ownership.health() == [])
    return took_s


async def newer_of_two_static_members_gets_shards(fleet: ReplicaGroup) -> float:
    first, other = [await fleet.add(instance_id=f"place {number}") for number in range(2)]
    await fleet.wait_until(lambda: fleet.is_shared_by(first, other))
    newer = await fleet.add(wire=first.replica.wire, instance_id="place 0")
    took_s = await fleet.wait_until(lambda: fleet.is_shared_by(other, newer))
    await fleet.wait_until(
        lambda: first.owned == set() and "has the same address" in str(first.ownership.health())
    )
    await fleet.wait_until(lambda: first.listener.assignment == newer.listener.assignment)
    await fleet.wait_until(lambda: newer.ownership.health() == [])
    # The older replica does not take over the group.instance.id again.
    generation, until = listener_generation(newer), fleet.now() + 5 * fleet.limits.heartbeat_interval_s
    await fleet.wait_until(lambda: fleet.now() > until)
    assert listener_generation(newer) == generation
    await newer.ownership.stop()
    await fleet.wait_until(lambda: fleet.is_shared_by(first, other))
    return took_s


async def replica_with_other_settings_is_refused(fleet: ReplicaGroup) -> float:
    replicas = await fleet.add_all(2)
    elsewhere = await fleet.add(topic="another")
    fewer = await fleet.add(state_partitions=fleet.state_partitions - 1)
    both = (elsewhere, fewer)
    took_s = await fleet.wait_until(lambda: all("refuses" in str(one.ownership.health()) for one in both))
    await fleet.wait_until(lambda: "topic another" in str(elsewhere.ownership.health()))
    assert all(one.owned == set() and one.listener.assignment is None for one in both)
    assert all(one.ownership.members == 0 for one in both)
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas))
    assert all(one.listener.resignations == [] for one in replicas)
    return took_s


async def fenced_shard_is_elected_again(fleet: ReplicaGroup) -> float:
    replicas = await fleet.add_all(2)
    partition = min(replicas[0].owned)
    replicas[0].fence_shard(partition)
    took_s = await fleet.wait_until(lambda: fleet.is_shared_by(*replicas))
    assert all(one.listener.resignations == [] for one in replicas)
    assert [one.listener.elections for one in replicas if one.listener.elections] == [[(partition, False)]]
    return took_s


async def unready_replica_loses_shards(fleet: ReplicaGroup) -> float:
    replicas = await fleet.add_all(2)
    replicas[0].listener.is_ready = False
    took_s = await fleet.wait_until(lambda: fleet.is_shared_by(replicas[1]))
    replicas[0].listener.is_ready = True
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas))
    return took_s


SCENARIOS: list[Scenario] = [
    killed_replica_is_replaced,
    draining_replica_hands_over,
    last_replica_drains,
    stopped_replica_is_replaced,
    joining_replica_gets_shards,
    newer_of_two_replicas_with_one_address_gets_shards,
    restarted_static_member_keeps_shards,
    static_member_may_change_address,
    newer_of_two_static_members_gets_shards,
    replica_with_other_settings_is_refused,
    fenced_shard_is_elected_again,
    unready_replica_loses_shards,
]
