"""Brokers that a replica does not reach, and the shards that move because of them."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from coordinator.cluster.kafka.group_results import MetadataSnapshot
from coordinator.cluster.ownership.broker_reachability import PROBES_MAX, BrokerReachability
from coordinator.cluster.ownership.limits import GroupLimits
from tests.kafka_in_memory.group import REQUEST_TIMEOUT_S, GroupInMemory
from tests.kafka_in_memory.group_coordinator import STABLE
from tests.unit.ownership.replicas import GroupReplica, ReplicaGroup

pytestmark = pytest.mark.run_with(fixture="fleet")

LIMITS = GroupLimits()
LEADERS = {partition: 1 + partition % 3 for partition in range(12)}


def make_snapshot(**away: str) -> MetadataSnapshot:
    return MetadataSnapshot(LEADERS, {int(name[1:]): why for name, why in away.items()})


def partitions_led_by(*nodes: int) -> tuple[int, ...]:
    return tuple(partition for partition, leader in LEADERS.items() if leader in nodes)


def test_broker_is_unreachable_after_two_failed_checks_in_a_row() -> None:
    reach = BrokerReachability()
    steps: list[tuple[MetadataSnapshot | None, tuple[int, ...]]] = [
        (make_snapshot(b2="no"), ()),
        (make_snapshot(), ()),
        (make_snapshot(b2="no"), ()),
        (make_snapshot(b3="no"), ()),
        (make_snapshot(b2="no", b3="no"), (3,)),
        (make_snapshot(b2="no"), (2,)),
        (make_snapshot(), ()),
        (make_snapshot(b2="no"), ()),
        # A check without any answer ends the sequence of failures, and the known state remains.
        (None, ()),
        (make_snapshot(b2="no"), ()),
        (make_snapshot(b2="no"), (2,)),
        (None, (2,)),
        (make_snapshot(b2="no", b1="no"), (2,)),
        (make_snapshot(b1="no"), (1,)),
    ]
    for number, (seen, unreached) in enumerate(steps):
        reach.record_probes(seen)
        assert reach.unreached == unreached, number


def test_unreachable_broker_remains_unreachable_when_it_leads_again() -> None:
    reach = BrokerReachability()
    for leaders in ({0: 1, 1: 2}, {0: 1, 1: 2}, {0: 2, 1: 2}, {0: 1, 1: 1}):
        reach.record_probes(MetadataSnapshot(leaders, {2: "no"}))
    assert reach.unreached == ()
    reach.record_probes(MetadataSnapshot({0: 2, 1: 1}, {2: "no"}))
    assert reach.unreached == (2,)


def test_replica_probes_leaders_of_its_shards_and_unreachable_brokers() -> None:
    reach = BrokerReachability()
    assert reach.brokers_to_probe(LEADERS, {0, 3}) == {1}
    reach.record_probes(MetadataSnapshot(LEADERS, {1: "no"}))
    assert reach.brokers_to_probe(LEADERS, {1}) == {1, 2}
    reach.record_probes(MetadataSnapshot(LEADERS, {1: "no"}))
    assert reach.unreached == (1,)
    # The replica no longer owns the shards. The replica probes the leader of these shards until the leader
    # answers or leads no partition.
    assert reach.brokers_to_probe(LEADERS, {1}) == {1, 2}
    assert reach.brokers_to_probe({0: 3, 1: 2}, {1}) == {2}
    reach.record_probes(MetadataSnapshot(LEADERS, {}))
    assert reach.brokers_to_probe(LEADERS, {1}) == {2}


def test_many_brokers_are_probed_in_turn() -> None:
    reach = BrokerReachability()
    leaders = {partition: partition for partition in range(50)}
    rounds = [reach.brokers_to_probe(leaders, leaders) for _ in range(5)]
    assert [len(probed) for probed in rounds] == [PROBES_MAX] * 5
    assert set().union(*rounds[:3]) == set(leaders)
    assert all(set().union(*rounds[first : first + 3]) == set(leaders) for first in range(3))


def set_unreachable_brokers(one: GroupReplica, *nodes: int) -> None:
    one.link.unreachable_brokers = set(nodes)


def are_all_leaders_reached(replicas: Sequence[GroupReplica]) -> bool:
    """Return whether each replica reaches the leaders of all its shards."""
    return all(
        LEADERS[partition] not in one.link.unreachable_brokers for one in replicas for partition in one.owned
    )


def are_shared_with_leaders_reached(fleet: ReplicaGroup, replicas: Sequence[GroupReplica]) -> bool:
    """Return whether the replicas share all shards, and each reaches the leaders of its shards."""
    return are_all_leaders_reached(replicas) and fleet.is_shared_by(*replicas)


async def test_only_replica_that_does_not_reach_a_broker_swaps_its_shards(
    group: GroupInMemory, fleet: ReplicaGroup, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    group.partition_leaders = dict(LEADERS)
    replicas = await fleet.add_all(3)
    set_unreachable_brokers(replicas[1], 2)
    took_s = await fleet.wait_until(lambda: are_shared_with_leaders_reached(fleet, replicas), 60.0)
    assert (
        LIMITS.reachability_interval_s
        < took_s
        < 2 * (LIMITS.reachability_interval_s + REQUEST_TIMEOUT_S) + LIMITS.rebalance_pause_s + 3
    )
    swapped = len(replicas[1].listener.resignations)
    # The replica cannot release these shards, so their new owners do not wait.
    assert [expected for _, expected in replicas[1].listener.elections] == [True] * swapped
    for one in (replicas[0], replicas[2]):
        assert {expected for _, expected in one.listener.elections} <= {False}
    assert 2 * swapped == sum(len(one.listener.resignations) for one in replicas)
    assert all(one.ownership.health() == [] for one in replicas)

    # When the broker is reachable again, no shard moves, but the coordinator tells the leader of its group.
    set_unreachable_brokers(replicas[1])
    rebalances = replicas[1].ownership.rebalances
    ownership = replicas[1].ownership
    await fleet.wait_until(lambda: ownership.rebalances > rebalances and group.state == STABLE)
    assert fleet.is_shared_by(*replicas)
    assert 2 * swapped == sum(len(one.listener.resignations) for one in replicas)
    set_unreachable_brokers(replicas[0], 2)
    set_unreachable_brokers(replicas[2], 2)
    await fleet.wait_until(lambda: are_shared_with_leaders_reached(fleet, replicas), 60.0)
    assert replicas[1].owned == set(partitions_led_by(2))
    messages = [record for record in caplog.records if record.name.endswith(".broker_reachability")]
    assert [record.levelno for record in messages] == [
        logging.WARNING,
        logging.INFO,
        logging.WARNING,
    ]
    assert "broker 2 at broker-2:9092: " in messages[0].getMessage()


async def test_lasting_unreachability_is_logged_and_reported_once(
    group: GroupInMemory, fleet: ReplicaGroup, caplog: pytest.LogCaptureFixture
) -> None:
    group.partition_leaders = dict(LEADERS)
    replicas = await fleet.add_all(2)
    set_unreachable_brokers(replicas[0], 2)
    await fleet.wait_until(lambda: are_all_leaders_reached(replicas), 60.0)
    await fleet.wait_until(lambda: group.state == STABLE and fleet.is_shared_by(*replicas))
    generation = group.generation
    await asyncio.sleep(300.0)
    assert group.generation == generation
    assert sum(record.name.endswith(".broker_reachability") for record in caplog.records) == 1


async def test_broker_failure_moves_no_shard(group: GroupInMemory, fleet: ReplicaGroup) -> None:
    group.partition_leaders = dict(LEADERS)
    replicas = await fleet.add_all(2)
    generation = group.generation
    for _ in range(10):
        # By default, Kafka detects the failure after 9 s.
        group.brokers.set_down(2)
        await asyncio.sleep(9.0)
        group.partition_leaders = {each: 1 if each % 2 else 3 for each in LEADERS}
        await asyncio.sleep(7.3)
        group.brokers.set_down()
        group.partition_leaders = dict(LEADERS)
        await asyncio.sleep(14.1)
    assert group.generation == generation
    assert all(one.listener.resignations == [] for one in replicas)


async def test_reported_reachability_is_kept_while_no_broker_answers(
    group: GroupInMemory, fleet: ReplicaGroup
) -> None:
    group.partition_leaders = dict(LEADERS)
    replicas = await fleet.add_all(2)
    set_unreachable_brokers(replicas[0], 2)
    await fleet.wait_until(lambda: are_shared_with_leaders_reached(fleet, replicas), 60.0)
    resigned = [list(one.listener.resignations) for one in replicas]
    group.brokers.set_down(*group.brokers.nodes)
    await asyncio.sleep(100.0)
    group.brokers.set_down()
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas) and group.state == STABLE, 60.0)
    await asyncio.sleep(60.0)
    assert are_all_leaders_reached(replicas)
    # Members that Kafka removed meanwhile get their shards again. The shards move to no other member.
    for one, before in zip(replicas, resigned, strict=True):
        assert set(one.listener.resignations[len(before) :]) <= one.owned


async def test_failure_detected_by_many_replicas_causes_few_rebalances(
    group: GroupInMemory, fleet: ReplicaGroup
) -> None:
    """A broker answers no replica, and each replica detects this at a different time."""
    group.partition_leaders = dict(LEADERS)
    replicas = []
    for _ in range(12):
        replicas.append(await fleet.add())
        # Start the replicas at different times, so that they probe at different times.
        await asyncio.sleep(LIMITS.reachability_interval_s / 12)
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas) and group.state == STABLE)
    generation = group.generation
    for one in replicas:
        set_unreachable_brokers(one, 2)
    await asyncio.sleep(120.0)
    assert fleet.is_shared_by(*replicas)
    assert 1 <= group.generation - generation <= 5
