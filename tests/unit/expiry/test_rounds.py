"""Rounds of expiry against a cluster in memory: what is doubted, who acts, and what a round may do."""

from pathlib import Path

import pytest

from coordinator.errors import LogUnavailable
from coordinator.expiry import MemoryFile, Rules, Status
from coordinator.expiry import remover as remover_module
from coordinator.kafka.cluster import NOT_COORDINATOR
from coordinator.kafka.group_facts import Outcome
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.unit.admin.serving import SHARDS, looped
from tests.unit.expiry.clusters import (
    LOOK_MINUTES,
    MINUTE_MS,
    RULES,
    FakeCluster,
    FakeGroup,
    StandingClock,
    replica,
    state,
    topic_id,
)

RETENTION, GRACE = RULES.retention_minutes or 0, RULES.grace_minutes
GAP = 3 * LOOK_MINUTES
UNKNOWN_SERVER_ERROR = -1
# Another topic that there is state of, so that the cluster is not doubted.
KNOWN = state("other", "known")


def a_cluster(*topics: str, **groups: FakeGroup) -> FakeCluster:
    cluster = FakeCluster()
    cluster.topics = {"known", *topics}
    cluster.groups = {"other": FakeGroup("known"), **groups}
    cluster.groups["other"].join("known")
    return cluster


@looped
async def test_an_empty_group_goes_through_kafka_and_then_the_group_itself() -> None:
    cluster, clock = a_cluster("t", "u", g=FakeGroup("t", "u")), StandingClock()
    records = [KNOWN, *(state("g", topic, number) for topic in "tu" for number in range(3))]
    async with replica(cluster, clock, records) as one:
        await one.expiry.round()
        await one.rounds(RETENTION - LOOK_MINUTES)
        assert cluster.deletions == []
        await one.rounds(LOOK_MINUTES)
        ((group, topics),) = cluster.deletions
        assert (group, sorted(topics)) == ("g", ["t", "u"])
        assert await one.topics() == {("other", "known")}
        assert cluster.deleted_groups == ["g"]
        assert one.counted("expired_share_partitions_total", reason="group_empty") == 6
        assert one.counted("expiry_last_round_timestamp_seconds") == clock.ms / 1000
        assert one.counted("expiry_failures_total") == 0


@looped
async def test_offsets_that_were_set_for_a_group_that_has_yet_to_come_count_from_then() -> None:
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    set_ms = clock.ms + 50 * MINUTE_MS
    async with replica(cluster, clock, [KNOWN, state("g", "t", initialized_ms=set_ms)]) as one:
        await one.expiry.round()
        await one.rounds(RETENTION + 50)
        assert ("g", "t") in await one.topics()
        # Somebody may have come and gone unseen, and then it is only so long ago.
        await one.rounds(GAP)
        assert ("g", "t") not in await one.topics()


@looped
async def test_a_group_whose_coordinator_does_not_answer_does_not_expire() -> None:
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    async with replica(cluster, clock, [KNOWN, state("g", "t")]) as one:
        await one.expiry.round()
        cluster.deaf_groups.add("g")
        await one.rounds(3 * RETENTION)
        assert (await one.statuses())["g", "t"] == ("group_empty", Status.NOT_KNOWN)
        assert (await one.expiry.forecast()).unheard_groups == 1
        assert ("g", "t") in await one.topics()
        cluster.deaf_groups.clear()
        await one.rounds(LOOK_MINUTES)
        assert ("g", "t") not in await one.topics()


@looped
async def test_a_group_of_which_nothing_was_ever_heard_is_not_listed() -> None:
    cluster, clock = a_cluster("t"), StandingClock()
    cluster.deaf_groups.add("g")
    async with replica(cluster, clock, [KNOWN, state("g", "t")]) as one:
        await one.expiry.round()
        await one.rounds(3 * RETENTION)
        assert await one.statuses() == {}


@looped
async def test_a_topic_that_only_may_be_gone_stays() -> None:
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    cluster.groups["g"].join("t")
    async with replica(cluster, clock, [KNOWN, state("g", "t")]) as one:
        await one.expiry.round()
        cluster.topics.discard("t")
        cluster.hidden_topics.add("t")
        await one.rounds(3 * GRACE)
        assert ("g", "t") in await one.topics()
        # Missing, then unclear, then missing still: unclear is no sign that it is there.
        cluster.hidden_topics.clear()
        await one.rounds(LOOK_MINUTES)
        cluster.hidden_topics.add("t")
        await one.rounds(GRACE)
        assert (await one.statuses())["g", "t"] == ("topic_deleted", Status.NOT_KNOWN)
        assert ("g", "t") in await one.topics()
        cluster.hidden_topics.clear()
        await one.rounds(LOOK_MINUTES)
        assert ("g", "t") not in await one.topics()
        assert cluster.deletions == []
        assert one.counted("expired_share_partitions_total", reason="topic_deleted") == 1


@looped
async def test_a_topic_that_comes_back_is_missing_from_anew() -> None:
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    cluster.groups["g"].join("t")
    async with replica(cluster, clock, [KNOWN, state("g", "t")]) as one:
        cluster.topics.discard("t")
        await one.expiry.round()
        await one.rounds(GRACE - LOOK_MINUTES)
        cluster.topics.add("t")
        await one.rounds(LOOK_MINUTES)
        cluster.topics.discard("t")
        await one.rounds(GRACE)
        assert ("g", "t") in await one.topics()


@looped
async def test_a_cluster_that_knows_none_of_the_topics_is_another_one() -> None:
    cluster, clock = a_cluster(), StandingClock()
    cluster.topics = {"unlike"}
    async with replica(cluster, clock, [KNOWN, state("g", "t")]) as one:
        await one.expiry.round()
        await one.rounds(3 * RETENTION)
        assert await one.topics() == {("other", "known"), ("g", "t")}
        assert "knows none of the 2 topics" in str((await one.expiry.forecast()).doubt)


@looped
async def test_with_another_cluster_all_clocks_begin_anew(tmp_path: Path) -> None:
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    file = MemoryFile(tmp_path / "expiry.json")
    async with replica(cluster, clock, [KNOWN, state("g", "t")], file=file) as one:
        await one.expiry.round()
    cluster.cluster_id = "another"
    clock.move(RETENTION)
    async with replica(cluster, clock, [KNOWN, state("g", "t")], file=file) as one:
        await one.expiry.round()
        assert ("g", "t") in await one.topics()
        await one.rounds(RETENTION)
        assert ("g", "t") not in await one.topics()


@looped
async def test_a_group_that_is_not_there_goes_after_the_grace_time_and_not_if_it_comes_back() -> None:
    cluster, clock = a_cluster("t"), StandingClock()
    async with replica(cluster, clock, [KNOWN, state("g", "t"), state("h", "t")]) as one:
        await one.expiry.round()
        await one.rounds(GRACE - LOOK_MINUTES)
        assert {("g", "t"), ("h", "t")} <= await one.topics()

        async def come_back() -> None:
            async def right_after_the_look() -> None:
                cluster.groups["h"] = FakeGroup("t")
                cluster.groups["h"].join("t")

            # The look's own description is first.
            cluster.before["describe"] = right_after_the_look

        cluster.before["describe"] = come_back
        await one.rounds(LOOK_MINUTES)
        assert await one.topics() == {("other", "known"), ("h", "t")}
        assert one.counted("expired_share_partitions_total", reason="group_deleted") == 1


@looped
async def test_state_that_comes_to_be_while_kafka_is_asked_is_not_deleted() -> None:
    cluster, clock = a_cluster("t"), StandingClock()
    async with replica(cluster, clock, [KNOWN, state("g", "t")]) as one:
        await one.expiry.round()
        clock.move(GRACE)

        async def initialise_after_the_second_look() -> None:
            async def initialise() -> None:
                key = SharePartitionKey("g", topic_id("t"), 0)
                shard = state_partition(key, SHARDS)
                one.runtime._runners[shard].shard.apply(state("g", "t", initialized_ms=clock.ms), clock.ms)

            cluster.before["describe"] = initialise

        cluster.before["describe"] = initialise_after_the_second_look
        await one.expiry.round()
        assert ("g", "t") in await one.topics()


@looped
async def test_what_kafka_knows_nothing_of_is_deleted_here() -> None:
    cluster, clock = a_cluster("t", g=FakeGroup()), StandingClock()
    async with replica(cluster, clock, [KNOWN, *(state("g", "t", number) for number in range(4))]) as one:
        await one.expiry.round()
        await one.rounds(RETENTION)
        assert ("g", "t") not in await one.topics()
        assert one.counted("expired_share_partitions_total", reason="group_empty") == 4


@looped
async def test_of_several_coordinators_the_owner_of_the_first_partition_acts() -> None:
    key = SharePartitionKey("g", topic_id("t"), 0)
    first = state_partition(key, SHARDS)
    others = [shard for shard in range(SHARDS) if shard != first]
    records = [KNOWN, *(state("g", "t", number) for number in range(20))]
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    async with (
        replica(cluster, clock, records, shards=[first], watch_all=True) as owner,
        replica(cluster, clock, records, shards=others, watch_all=True) as other,
    ):
        await owner.expiry.round()
        await other.expiry.round()
        clock.move(RETENTION)
        await other.expiry.round()
        assert (await other.statuses())["g", "t"] == ("group_empty", Status.ELSEWHERE)
        assert cluster.deletions == []
        await owner.expiry.round()
        assert len(cluster.deletions) == 1
        assert {("g", "t")}.isdisjoint(await owner.topics() | await other.topics())


@looped
async def test_what_the_owner_of_the_first_partition_does_not_see_to_another_owner_does() -> None:
    key = SharePartitionKey("g", topic_id("t"), 0)
    others = [shard for shard in range(SHARDS) if shard != state_partition(key, SHARDS)]
    cluster, clock = a_cluster("t", g=FakeGroup()), StandingClock()
    # Of a deletion that broke off after partition 0.
    records = [KNOWN, *(state("g", "t", number) for number in range(1, 20))]
    async with replica(cluster, clock, records, shards=others) as other:
        await other.expiry.round()
        await other.rounds(RETENTION + 5 * LOOK_MINUTES)
        assert ("g", "t") in await other.topics()
        await other.rounds(LOOK_MINUTES)
        assert ("g", "t") not in await other.topics()


@looped
async def test_without_a_fresh_lease_nothing_is_done() -> None:
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    lease = [False]
    async with replica(cluster, clock, [KNOWN, state("g", "t")], may_act=lambda: lease[0]) as one:
        await one.expiry.round()
        await one.rounds(RETENTION)
        assert cluster.deletions == []
        lease[0] = True
        await one.rounds(LOOK_MINUTES)
        assert len(cluster.deletions) == 1


@looped
async def test_a_shard_that_moves_meanwhile_is_left_to_its_new_owner() -> None:
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    async with replica(cluster, clock, [KNOWN, state("g", "t")]) as one:
        await one.expiry.round()
        clock.move(RETENTION)

        async def resign() -> None:
            for shard in range(SHARDS):
                one.runtime.resign(shard)

        cluster.before["describe"] = resign
        done = await one.expiry.round()
        assert (done.removals, done.left_over) == ([], 1)
        assert cluster.deletions == []


@looped
async def test_a_round_does_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remover_module, "GROUPS_MAX", 3)
    monkeypatch.setattr(remover_module, "SHARE_PARTITIONS_MAX", 3)
    names = [f"g{number}" for number in range(5)]
    cluster, clock = a_cluster("t", **{name: FakeGroup("t") for name in names}), StandingClock()
    records = [KNOWN, *(state(name, topic) for name in names for topic in ("t", "gone"))]
    async with replica(cluster, clock, records) as one:
        await one.expiry.round()
        clock.move(RETENTION)
        done = await one.expiry.round()
        assert (len(done.removals), done.left_over) == (6, 4)
        done = await one.expiry.round()
        assert (len(done.removals), done.left_over) == (4, 0)
        assert await one.topics() == {("other", "known")}
        assert sorted(cluster.deleted_groups) == names


@looped
async def test_a_group_that_cannot_be_deleted_from_does_not_keep_the_others() -> None:
    names = ["a", "b", "c"]
    cluster, clock = a_cluster("t", **{name: FakeGroup("t") for name in names}), StandingClock()
    async with replica(cluster, clock, [KNOWN, *(state(name, "t") for name in names)]) as one:
        await one.expiry.round()
        clock.move(RETENTION)
        first = (await one.expiry.forecast()).items[0].group_id
        cluster.refusals[first] = Outcome(UNKNOWN_SERVER_ERROR, "no room")
        done = await one.expiry.round()
        assert {removal.refused for removal in done.removals} == {"", "no room"}
        assert {group for group, _ in await one.topics()} == {"other", first}
        assert one.counted("expiry_failures_total") == 1


@looped
async def test_a_coordinator_that_is_not_found_ends_the_round_and_comes_last_in_the_next() -> None:
    names = ["a", "b", "c"]
    cluster, clock = a_cluster("t", **{name: FakeGroup("t") for name in names}), StandingClock()
    async with replica(cluster, clock, [KNOWN, *(state(name, "t") for name in names)]) as one:
        await one.expiry.round()
        clock.move(RETENTION)
        cluster.refusals = dict.fromkeys(names, Outcome(NOT_COORDINATOR, "it moved"))
        done = await one.expiry.round()
        assert (len(done.removals), done.left_over) == (1, 2)
        del cluster.refusals[cluster.deletions[0][0]]
        cluster.deletions.clear()
        await one.expiry.round()
        await one.expiry.round()
        await one.expiry.round()
        asked = [group for group, _ in cluster.deletions]
        assert set(asked) == set(names), "each has its turn"
        cluster.refusals.clear()
        await one.expiry.round()
        assert await one.topics() == {("other", "known")}


@looped
async def test_a_cluster_that_cannot_be_asked_expires_nothing_and_the_next_round_goes_on() -> None:
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    async with replica(cluster, clock, [KNOWN, state("g", "t")]) as one:
        await one.expiry.round()
        cluster.is_down = True
        clock.move(RETENTION)
        with pytest.raises(LogUnavailable):
            await one.expiry.round()
        with pytest.raises(LogUnavailable):
            await one.expiry.forecast()
        assert ("g", "t") in await one.topics()
        cluster.is_down = False
        await one.expiry.round()
        assert ("g", "t") not in await one.topics()


@looped
async def test_without_a_retention_time_nothing_goes_and_everything_can_be_foreseen() -> None:
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    records = [KNOWN, state("g", "t"), state("g", "gone")]
    async with replica(cluster, clock, records, rules=Rules(None, GRACE)) as one:
        one.expiry.start()
        await one.expiry.forecast()
        clock.move(10 * RETENTION)
        done = await one.expiry.round()
        assert done.removals == []
        assert len(await one.topics()) == 3
        foreseen = {each.topic_id: each for each in (await one.expiry.forecast()).items}
        assert foreseen[topic_id("t")].expires_ms is None
        (item,) = (each for each in (await one.expiry.forecast(5)).items if each.topic == "t")
        assert item.status is Status.DUE
        assert not (await one.expiry.forecast()).enabled


@looped
async def test_a_file_that_is_no_use_is_as_good_as_none(tmp_path: Path) -> None:
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    path = tmp_path / "expiry.json"
    path.write_text("{]")
    async with replica(cluster, clock, [KNOWN, state("g", "t")], file=MemoryFile(path)) as one:
        await one.expiry.round()
        assert b"cluster" in path.read_bytes()
    unwritable = tmp_path / "file" / "expiry.json"
    (tmp_path / "file").write_text("not a folder")
    async with replica(cluster, clock, [KNOWN, state("g", "t")], file=MemoryFile(unwritable)) as one:
        await one.expiry.round()
        await one.rounds(RETENTION)
        assert ("g", "t") not in await one.topics()


@looped
async def test_a_clock_that_was_set_back_between_two_starts_makes_nothing_expire_early(
    tmp_path: Path,
) -> None:
    cluster, clock = a_cluster("t", g=FakeGroup("t")), StandingClock()
    file, records = MemoryFile(tmp_path / "expiry.json"), [KNOWN, state("g", "t")]
    async with replica(cluster, clock, records, file=file) as one:
        cluster.groups["g"].join("t")
        await one.expiry.round()
    clock.move(-RETENTION)
    async with replica(cluster, clock, records, file=file) as one:
        cluster.groups["g"].leave()
        await one.expiry.round()
    clock.move(RETENTION)
    async with replica(cluster, clock, records, file=file) as one:
        await one.expiry.round()
        assert ("g", "t") in await one.topics()
        await one.rounds(RETENTION)
        assert ("g", "t") not in await one.topics()
