"""Faults of Kafka that affect a group member: errors, refusals, and coordinators that move or fail."""

import asyncio
import logging

import pytest

from coordinator.cluster.kafka.group_results import JoinResult
from coordinator.cluster.ownership.limits import GroupLimits
from protocol.errors import ErrorCode
from tests.kafka_in_memory.group import GroupInMemory
from tests.kafka_in_memory.group_coordinator import STABLE
from tests.unit.ownership.replicas import ReplicaGroup
from tests.unit.ownership.scenarios import cut_off_replica

pytestmark = pytest.mark.run_with(fixture="fleet")

LIMITS = GroupLimits()
HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("api", "code"),
    [
        ("find", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("join", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("join", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("join", ErrorCode.NOT_COORDINATOR),
        ("join", ErrorCode.UNKNOWN_MEMBER_ID),
        ("join", 999),
        ("sync", ErrorCode.REBALANCE_IN_PROGRESS),
        ("sync", ErrorCode.ILLEGAL_GENERATION),
        ("sync", ErrorCode.UNKNOWN_MEMBER_ID),
        ("sync", ErrorCode.NOT_COORDINATOR),
        ("heartbeat", ErrorCode.REBALANCE_IN_PROGRESS),
        ("heartbeat", ErrorCode.ILLEGAL_GENERATION),
        ("heartbeat", ErrorCode.UNKNOWN_MEMBER_ID),
        ("heartbeat", ErrorCode.NOT_COORDINATOR),
        ("heartbeat", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("heartbeat", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("heartbeat", ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ("heartbeat", 999),
    ],
)
async def test_temporary_error_costs_no_shard(
    group: GroupInMemory, fleet: ReplicaGroup, api: str, code: int
) -> None:
    replicas = await fleet.add_all(2)
    before = [(set(one.owned), list(one.listener.resignations)) for one in replicas]
    if api != "heartbeat":
        replicas[0].fence_shard(min(replicas[0].owned))
    group.errors[api] = [code, code]
    if api == "find":
        group.move_to_broker(2)
    await fleet.wait_until(lambda: group.errors[api] == [])
    await fleet.wait_until(lambda: group.state == STABLE and fleet.is_shared_by(*replicas))
    await fleet.wait_until(lambda: all(one.ownership.health() == [] for one in replicas))
    for one, (owned, resignations) in zip(replicas, before, strict=True):
        assert len(one.owned) == len(owned)
        # After UNKNOWN_MEMBER_ID, the old member id stays in the group until its session expires, so
        # shards may move.
        assert one.listener.resignations == resignations or code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_removed_member_that_joins_again_keeps_its_shards(
    group: GroupInMemory, fleet: ReplicaGroup
) -> None:
    (one,) = await fleet.add_all(1)
    for _ in range(3):
        rebalances = one.ownership.rebalances
        group.expel_member(next(iter(group.members)))
        await fleet.wait_until(lambda: one.ownership.rebalances > rebalances)  # noqa: B023
    assert one.listener.resignations == []
    assert one.listener.elections == []


async def test_plan_for_a_lost_generation_is_not_used_for_the_next_generation(
    group: GroupInMemory,
    fleet: ReplicaGroup,
) -> None:
    """A disconnected group coordinator lets one member lead a generation that the coordinator cannot store.

    The next group coordinator gives the same generation number to another generation, which another member
    leads.
    """
    leader, follower = await fleet.add_all(2)
    generation = group.generation
    join = follower.link.join

    async def join_lost_generation(
        node: int, member_id: str, metadata: bytes, instance_id: str
    ) -> JoinResult:
        follower.link.join = join  # type: ignore[method-assign]
        return JoinResult(ErrorCode.NONE, generation + 1, member_id, member_id, {member_id: metadata})

    follower.link.join = join_lost_generation  # type: ignore[method-assign]
    follower.fence_shard(min(follower.owned))
    await fleet.wait_until(lambda: group.state == STABLE and group.generation == generation + 1)
    await fleet.wait_until(lambda: fleet.is_shared_by(leader, follower))
    assert group.generation == generation + 1


@pytest.mark.parametrize("dies", [False, True], ids=["continues", "dies"])
async def test_returning_member_reloads_shards_that_another_member_owned(
    group: GroupInMemory, fleet: ReplicaGroup, dies: bool
) -> None:
    away, other = await fleet.add_all(2)
    held, resigned = set(away.owned), len(away.listener.resignations)
    cut_off_replica(away)
    await fleet.wait_until(lambda: fleet.is_shared_by(other))
    if dies:
        cut_off_replica(other)
        await fleet.wait_until(lambda: not group.members)
    elected = len(away.listener.elections)
    away.link.cut = False
    await fleet.wait_until(lambda: fleet.is_shared_by(away) if dies else fleet.is_shared_by(away, other))
    assert set(away.listener.resignations[resigned:]) == held
    assert {partition for partition, _ in away.listener.elections[elected:]} == away.owned


async def test_member_removed_for_a_moment_reloads_shards_that_another_owned(
    group: GroupInMemory, fleet: ReplicaGroup
) -> None:
    away, other = await fleet.add_all(2)
    elected = len(away.listener.elections)
    cut_off_replica(away)
    group.expel_member(next(iter(group.members)))
    group.expel_member(next(iter(group.members)))
    await fleet.wait_until(lambda: fleet.is_shared_by(other))
    assert away.ownership.lease_is_fresh()
    away.link.cut = False
    await fleet.wait_until(lambda: fleet.is_shared_by(away, other))
    assert {partition for partition, _ in away.listener.elections[elected:]} == away.owned


async def test_static_member_with_other_settings_gets_no_shards_of_its_id(
    group: GroupInMemory,
    fleet: ReplicaGroup,
) -> None:
    replicas = [await fleet.add(instance_id=f"place {number}") for number in range(2)]
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas))
    cut_off_replica(replicas[1])
    stranger = await fleet.add(topic="another", instance_id="place 1")
    await fleet.wait_until(lambda: fleet.is_shared_by(replicas[0]))
    assert "refuses this replica" in stranger.ownership.health()[0]
    # The refused member causes no further rebalances.
    generation, until = group.generation, fleet.now() + 60.0
    await fleet.wait_until(lambda: fleet.now() > until, 100.0)
    assert group.generation == generation


async def test_group_lost_by_kafka_starts_again_with_the_same_owners(
    group: GroupInMemory, fleet: ReplicaGroup
) -> None:
    replicas = await fleet.add_all(3)
    before = [(set(one.owned), len(one.listener.elections)) for one in replicas]
    generation = group.generation
    # As by default in Kafka, a new group waits for more members.
    group.first_delay_s = 3.0
    group.lose_group()
    await fleet.wait_until(lambda: len(group.members) == 3 and group.state == STABLE)
    await fleet.wait_until(lambda: all(one.ownership.generation == group.generation for one in replicas))
    assert group.generation < generation
    assert [(one.owned, len(one.listener.elections)) for one in replicas] == before


async def test_coordinator_moves_cause_no_rebalance(group: GroupInMemory, fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(3)
    resigned = [list(one.listener.resignations) for one in replicas]
    rebalances = [one.ownership.rebalances for one in replicas]
    for node in (2, 3, 1, 2):
        group.move_to_broker(node)
        seen = group.requests.count("heartbeat")
        await fleet.wait_until(lambda: group.requests.count("heartbeat") > seen + 9)  # noqa: B023
    assert fleet.is_shared_by(*replicas)
    assert [one.listener.resignations for one in replicas] == resigned
    assert [one.ownership.rebalances for one in replicas] == rebalances
    assert all(one.ownership.health() == [] for one in replicas)


async def test_members_find_the_new_coordinator_after_a_failure(
    group: GroupInMemory, fleet: ReplicaGroup
) -> None:
    replicas = await fleet.add_all(2)
    group.brokers.set_down(1)
    loop = asyncio.get_running_loop()
    loop.call_later(5.0, group.move_to_broker, 2)
    await fleet.wait_until(lambda: group.node == 2)
    await fleet.wait_until(lambda: all((one.ownership.heartbeat_age_s or 99) < 1.0 for one in replicas))
    assert fleet.is_shared_by(*replicas)
    assert all(one.listener.assignment is not None for one in replicas)


async def test_join_at_a_failed_coordinator_is_abandoned(group: GroupInMemory, fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(2)
    cut_off_replica(replicas[1])
    replicas.append(await fleet.add())
    await fleet.wait_until(lambda: group.state != STABLE)
    await fleet.wait_until(
        lambda: sum(member.has_pending_request() for member in group.members.values()) == 2
    )
    joins = group.requests.count("join")
    # The pending joins at the old coordinator never get a response.
    group.brokers.set_down(1)
    group.node = 2
    took_s = await fleet.wait_until(lambda: group.requests.count("join") > joins)
    assert took_s < 3 * LIMITS.heartbeat_interval_s
    await fleet.wait_until(lambda: fleet.is_shared_by(replicas[0], replicas[2]))


@pytest.mark.slow
async def test_group_recovers_after_kafka_was_down_for_an_hour(
    group: GroupInMemory, fleet: ReplicaGroup, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    replicas = await fleet.add_all(2)
    resigned = [list(one.listener.resignations) for one in replicas]
    caplog.clear()
    group.brokers.set_down(*group.brokers.nodes)
    began = fleet.now()
    await fleet.wait_until(lambda: fleet.now() - began > HOUR_S, 2 * HOUR_S)
    for one in replicas:
        assert "cannot be reached" in one.ownership.health()[0]
        assert one.listener.assignment is None
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    # Each replica logs once that the group cannot be reached, and once that the lease expired.
    assert len(warnings) == 2 * len(replicas)
    assert not any(record.exc_info for record in caplog.records)
    group.brokers.set_down()
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas) and group.state == STABLE)
    assert all(one.ownership.health() == [] for one in replicas)
    assert [
        one.listener.resignations[: len(was)] for one, was in zip(replicas, resigned, strict=True)
    ] == resigned


async def test_member_joins_when_kafka_starts_later(group: GroupInMemory, fleet: ReplicaGroup) -> None:
    group.brokers.set_down(*group.brokers.nodes)
    one = await fleet.add()
    assert not one.ownership.lease_is_fresh()
    assert "not joined its group yet" in one.ownership.health()[0]
    await fleet.wait_until(lambda: "cannot be reached" in one.ownership.health()[0])
    began = fleet.now()
    await fleet.wait_until(lambda: fleet.now() - began > 60.0, 100.0)
    assert one.listener.assignments == []
    group.brokers.set_down()
    took_s = await fleet.wait_until(lambda: fleet.is_shared_by(one))
    assert took_s < LIMITS.retry_pause_max_s + 0.5


@pytest.mark.parametrize(
    ("api", "code", "words"),
    [
        ("join", ErrorCode.GROUP_AUTHORIZATION_FAILED, "needs READ on the group"),
        ("join", ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "another group id"),
        ("join", ErrorCode.INVALID_SESSION_TIMEOUT, "group.min.session.timeout.ms"),
        ("join", ErrorCode.GROUP_MAX_SIZE_REACHED, "group.max.size"),
        ("join", ErrorCode.INVALID_GROUP_ID, "INVALID_GROUP_ID"),
        ("find", ErrorCode.GROUP_AUTHORIZATION_FAILED, "needs READ on the group"),
        ("join", 999, "error 999"),
    ],
)
async def test_refused_join_is_logged_as_one_sentence(
    group: GroupInMemory,
    fleet: ReplicaGroup,
    caplog: pytest.LogCaptureFixture,
    api: str,
    code: int,
    words: str,
) -> None:
    group.errors[api] = [code] * 20
    one = await fleet.add()
    await fleet.wait_until(lambda: len(group.errors[api]) < 10)
    (sentence,) = one.ownership.health()
    assert words in sentence
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [sentence]
    await fleet.wait_until(lambda: fleet.is_shared_by(one), 60.0)
    assert one.ownership.health() == []


async def test_drain_and_stop_do_not_wait_for_kafka(group: GroupInMemory, fleet: ReplicaGroup) -> None:
    replicas = await fleet.add_all(2)
    group.brokers.set_down(*group.brokers.nodes)
    began = fleet.now()
    await replicas[0].ownership.drain(5.0)
    assert fleet.now() - began < 5.0 + LIMITS.leave_timeout_s
    # Shards without a new owner are resigned anyway, because the log may be available.
    await fleet.wait_until(lambda: replicas[0].owned == set(), 1.0)
    never = await fleet.add()
    await never.ownership.drain(5.0)
