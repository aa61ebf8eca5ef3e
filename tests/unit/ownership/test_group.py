"""Replicas in a group in memory, on virtual time: the scenarios, and all that Kafka can do to a member."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest

from coordinator.kafka import group as kafka
from coordinator.ownership.limits import GroupLimits
from tests.simulation.loop import SimLoop
from tests.unit.ownership.fake_group import STABLE, FakeGroup
from tests.unit.ownership.replicas import Fleet
from tests.unit.ownership.scenarios import SCENARIOS, Scenario, cut

LIMITS = GroupLimits()
HOUR_S = 3600.0

Play = Callable[[Callable[[FakeGroup, Fleet], Awaitable[object]]], None]


@pytest.fixture
def play() -> Iterator[Play]:
    """Play a scene with a group in memory; stop all replicas at its end, which must be quick."""
    loop = SimLoop()

    def run(scene: Callable[[FakeGroup, Fleet], Awaitable[object]]) -> None:
        async def main() -> None:
            group = FakeGroup(session_s=LIMITS.session_timeout_s, rebalance_s=LIMITS.rebalance_timeout_s)
            fleet = Fleet(group.link, limits=LIMITS)
            await scene(group, fleet)
            async with asyncio.timeout(2.5 * LIMITS.leave_timeout_s):
                await fleet.stop()

        loop.run_until_complete(main())
        assert loop.failures == []

    yield run
    loop.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(play: Play, scenario: Scenario) -> None:
    play(lambda group, fleet: scenario(fleet))


def test_take_over_is_bounded_by_the_session(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        ones = await fleet.add_all(3)
        cut(ones[0])
        took_s = await fleet.until(lambda: fleet.shared_by(*ones[1:]))
        assert took_s < LIMITS.session_timeout_s + 1.5 * LIMITS.heartbeat_interval_s

    play(scene)


def test_the_lease_is_over_before_anybody_takes_over(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        ones = await fleet.add_all(2)
        cut(ones[0])
        stale_s = await fleet.until(lambda: not ones[0].ownership.lease_is_fresh())
        assert ones[0].heard.owner_map is None or await fleet.until(
            lambda: ones[0].heard.owner_map is None, 0.1
        )
        taken_s = await fleet.until(lambda: fleet.shared_by(ones[1]))
        assert stale_s <= LIMITS.lease_s
        assert taken_s > 0.5
        # It still holds its shards: only a map or the log takes them away.
        assert ones[0].owned != set()

    play(scene)


def test_a_join_that_waits_for_a_dead_member_costs_nobody_the_lease(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        ones = await fleet.add_all(3)
        cut(ones[0])
        # The dead one has not been missed yet, and keeps the barrier closed.
        ones.append(await fleet.add())
        await fleet.until(lambda: group.state != STABLE)
        for one in ones[1:3]:
            one.heard.maps.clear()
        waited_s = await fleet.until(lambda: fleet.shared_by(*ones[1:]))
        assert waited_s > LIMITS.session_timeout_s / 2
        for one in ones[1:3]:
            assert None not in one.heard.maps

    play(scene)


@pytest.mark.parametrize(
    ("api", "code"),
    [
        ("find", kafka.COORDINATOR_NOT_AVAILABLE),
        ("join", kafka.COORDINATOR_LOAD_IN_PROGRESS),
        ("join", kafka.COORDINATOR_NOT_AVAILABLE),
        ("join", kafka.NOT_COORDINATOR),
        ("join", kafka.UNKNOWN_MEMBER_ID),
        ("join", 999),
        ("sync", kafka.REBALANCE_IN_PROGRESS),
        ("sync", kafka.ILLEGAL_GENERATION),
        ("sync", kafka.UNKNOWN_MEMBER_ID),
        ("sync", kafka.NOT_COORDINATOR),
        ("heartbeat", kafka.REBALANCE_IN_PROGRESS),
        ("heartbeat", kafka.ILLEGAL_GENERATION),
        ("heartbeat", kafka.UNKNOWN_MEMBER_ID),
        ("heartbeat", kafka.NOT_COORDINATOR),
        ("heartbeat", kafka.COORDINATOR_LOAD_IN_PROGRESS),
        ("heartbeat", kafka.COORDINATOR_NOT_AVAILABLE),
        ("heartbeat", kafka.GROUP_AUTHORIZATION_FAILED),
        ("heartbeat", 999),
    ],
)
def test_an_error_passes_and_costs_no_shard(play: Play, api: str, code: int) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        ones = await fleet.add_all(2)
        before = [(set(one.owned), list(one.heard.resignations)) for one in ones]
        if api != "heartbeat":
            ones[0].take_away(min(ones[0].owned))
        group.errors[api] = [code, code]
        if api == "find":
            group.move(2)
        await fleet.until(lambda: group.errors[api] == [])
        await fleet.until(lambda: group.state == STABLE and fleet.shared_by(*ones))
        await fleet.until(lambda: all(one.ownership.health() == [] for one in ones))
        for one, (owned, resignations) in zip(ones, before, strict=True):
            assert len(one.owned) == len(owned)
            assert one.heard.resignations == resignations

    play(scene)


def test_one_that_is_thrown_out_keeps_its_shards(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        (one,) = await fleet.add_all(1)
        for _ in range(3):
            rebalances = one.ownership.rebalances
            group.throw_out(next(iter(group.members)))
            await fleet.until(lambda: one.ownership.rebalances > rebalances)  # noqa: B023
        assert one.heard.resignations == []
        assert one.heard.elections == []

    play(scene)


def test_a_group_that_kafka_forgot_begins_anew_with_the_same_owners(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        ones = await fleet.add_all(3)
        before = [(set(one.owned), len(one.heard.elections)) for one in ones]
        generation = group.generation
        # Kafka's default: a group that begins waits a little for more members.
        group.first_delay_s = 3.0
        group.forget()
        await fleet.until(lambda: len(group.members) == 3 and group.state == STABLE)
        await fleet.until(lambda: all(one.ownership.generation == group.generation for one in ones))
        assert group.generation < generation
        assert [(one.owned, len(one.heard.elections)) for one in ones] == before

    play(scene)


def test_the_coordinator_moves_and_moves(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        ones = await fleet.add_all(3)
        resigned = [list(one.heard.resignations) for one in ones]
        rebalances = [one.ownership.rebalances for one in ones]
        for node in (2, 3, 1, 2):
            group.move(node)
            seen = group.requests.count("heartbeat")
            await fleet.until(lambda: group.requests.count("heartbeat") > seen + 9)  # noqa: B023
        assert fleet.shared_by(*ones)
        assert [one.heard.resignations for one in ones] == resigned
        assert [one.ownership.rebalances for one in ones] == rebalances
        assert all(one.ownership.health() == [] for one in ones)

    play(scene)


def test_a_coordinator_that_dies_is_looked_for(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        ones = await fleet.add_all(2)
        group.down.add(1)
        loop = asyncio.get_running_loop()
        loop.call_later(5.0, group.move, 2)
        await fleet.until(lambda: group.node == 2)
        await fleet.until(lambda: all((one.ownership.heartbeat_age_s or 99) < 1.0 for one in ones))
        assert fleet.shared_by(*ones)
        assert all(one.heard.owner_map is not None for one in ones)

    play(scene)


def test_kafka_is_down_for_an_hour(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        ones = await fleet.add_all(2)
        resigned = [list(one.heard.resignations) for one in ones]
        caplog.clear()
        group.down |= group.nodes
        began = fleet.now()
        await fleet.until(lambda: fleet.now() - began > HOUR_S, 2 * HOUR_S)
        for one in ones:
            assert "cannot be reached" in one.ownership.health()[0]
            assert one.heard.owner_map is None
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        # Each says once that the group cannot be reached, and once that the lease ran out.
        assert len(warnings) == 2 * len(ones)
        assert not any(record.exc_info for record in caplog.records)
        group.down.clear()
        await fleet.until(lambda: fleet.shared_by(*ones) and group.state == STABLE)
        assert all(one.ownership.health() == [] for one in ones)
        assert [
            one.heard.resignations[: len(was)] for one, was in zip(ones, resigned, strict=True)
        ] == resigned

    with caplog.at_level(logging.INFO):
        play(scene)


def test_kafka_is_down_at_the_start(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        group.down |= group.nodes
        one = await fleet.add()
        assert not one.ownership.lease_is_fresh()
        assert "not joined its group yet" in one.ownership.health()[0]
        await fleet.until(lambda: "cannot be reached" in one.ownership.health()[0])
        began = fleet.now()
        await fleet.until(lambda: fleet.now() - began > 60.0, 100.0)
        assert one.heard.maps == []
        group.down.clear()
        took_s = await fleet.until(lambda: fleet.shared_by(one))
        assert took_s < LIMITS.retry_pause_max_s + 0.5

    play(scene)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (kafka.GROUP_AUTHORIZATION_FAILED, "needs READ on the group"),
        (kafka.INCONSISTENT_GROUP_PROTOCOL, "another group id"),
        (kafka.INVALID_SESSION_TIMEOUT, "group.min.session.timeout.ms"),
        (kafka.GROUP_MAX_SIZE_REACHED, "group.max.size"),
        (kafka.INVALID_GROUP_ID, "INVALID_GROUP_ID"),
        (999, "error 999"),
    ],
)
def test_a_refusal_is_a_sentence(play: Play, caplog: pytest.LogCaptureFixture, code: int, words: str) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        group.errors["join"] = [code] * 20
        one = await fleet.add()
        await fleet.until(lambda: len(group.errors["join"]) < 10)
        (sentence,) = one.ownership.health()
        assert words in sentence
        assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
            sentence
        ]
        await fleet.until(lambda: fleet.shared_by(one), 60.0)
        assert one.ownership.health() == []

    play(scene)


def test_draining_and_stopping_do_not_wait_for_kafka(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        ones = await fleet.add_all(2)
        group.down |= group.nodes
        began = fleet.now()
        await ones[0].ownership.drain(5.0)
        assert fleet.now() - began < 5.0 + LIMITS.leave_timeout_s
        # What nobody took is resigned all the same: the log may be there.
        await fleet.until(lambda: ones[0].owned == set(), 1.0)
        never = await fleet.add()
        await never.ownership.drain(5.0)

    play(scene)


def test_draining_waits_until_the_shards_are_released(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        ones = await fleet.add_all(2)
        ones[0].heard.slow = True
        draining = asyncio.ensure_future(ones[0].ownership.drain(20.0))
        await fleet.until(lambda: ones[0].heard.releasing != set())
        began = fleet.now()
        await fleet.until(lambda: fleet.now() - began > 1.0)
        assert not draining.done()
        assert len(group.members) == 2
        ones[0].heard.releasing.clear()
        await draining
        await fleet.until(lambda: len(group.members) == 1)

    play(scene)


def test_shards_go_to_those_beside_their_leaders_later_and_without_churn(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        group.partition_leaders = {partition: partition % 3 for partition in range(fleet.state_partitions)}
        ones = [await fleet.add(broker_id=number) for number in range(3)]
        await fleet.until(lambda: fleet.shared_by(*ones))

        def near() -> int:
            leaders = group.partition_leaders
            return sum(leaders[partition] == one.replica.broker_id for one in ones for partition in one.owned)

        await fleet.until(lambda: near() == fleet.state_partitions and fleet.shared_by(*ones), HOUR_S)
        generation = group.generation
        # Leaders that wander for a while are not followed.
        group.partition_leaders = {partition: 0 for partition in range(fleet.state_partitions)}
        began = fleet.now()
        await fleet.until(lambda: fleet.now() - began > 0.9 * LIMITS.near_interval_s, HOUR_S)
        group.partition_leaders = {partition: partition % 3 for partition in range(fleet.state_partitions)}
        await fleet.until(lambda: fleet.now() - began > HOUR_S, 2 * HOUR_S)
        assert group.generation == generation
        assert fleet.shared_by(*ones)

    play(scene)


def test_a_leader_that_cannot_decide_takes_nothing_away(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        ones = await fleet.add_all(2)
        before = [set(one.owned) for one in ones]
        with monkeypatch.context() as patch:
            patch.setattr("coordinator.ownership.participant.plan", broken)
            ones[0].heard.is_ready = False
            await fleet.until(lambda: "could not decide" in str(ones[1].ownership.health()))
            assert [one.owned for one in ones] == before
            assert all(one.heard.owner_map is not None for one in ones)
        ones[0].heard.is_ready = True
        await fleet.until(lambda: all(one.ownership.health() == [] for one in ones))
        assert [one.owned for one in ones] == before

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake of ours")

    play(scene)


def test_rebalances_that_we_ask_for_are_not_many(play: Play) -> None:
    async def scene(group: FakeGroup, fleet: Fleet) -> None:
        (one,) = await fleet.add_all(1)
        generation = group.generation
        began = fleet.now()

        def fight() -> bool:
            # Somebody outside of the group claims a shard whenever we own it.
            if 0 in one.owned:
                one.take_away(0)
            return fleet.now() - began > 60.0

        await fleet.until(fight, 100.0)
        assert 5 < group.generation - generation <= 60.0 / LIMITS.rebalance_pause_s + 1

    play(scene)
