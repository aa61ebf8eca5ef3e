"""Rounds of expiry on a Kafka in memory: which coordinator deletes, what expires, and the limit per round."""

import asyncio

import pytest

from coordinator.cluster.kafka.share_group_types import ChangeResult
from coordinator.operate.expiry import ExpiryStatus
from coordinator.operate.expiry import remover as remover_module
from coordinator.serve.runtime import Operation, ShardStatus
from protocol.errors import ErrorCode
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.kafka_in_memory.share_groups import ShareGroup, topic_id
from tests.manual_clock import ManualClock
from tests.unit.admin.admin_server import SHARDS
from tests.unit.expiry.replicas import (
    GRACE,
    INTERVAL_MINUTES,
    KNOWN,
    MINUTE_MS,
    RETENTION,
    make_cluster,
    make_state,
    run_replica,
    split_shards,
)
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)

GAP = 3 * INTERVAL_MINUTES


async def test_empty_group_is_deleted_in_kafka_after_its_offsets() -> None:
    cluster, clock = make_cluster("t", "u", g=ShareGroup("t", "u")), ManualClock()
    records = [KNOWN, *(make_state("g", topic, number) for topic in "tu" for number in range(3))]
    async with run_replica(cluster, clock, records) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(RETENTION - INTERVAL_MINUTES)
        assert cluster.deletions == []
        await replica.advance_with_rounds(INTERVAL_MINUTES)
        ((group, topics),) = cluster.deletions
        assert (group, sorted(topics)) == ("g", ["t", "u"])
        assert await replica.list_topics() == {("other", "known")}
        assert cluster.deleted_groups == ["g"]
        assert replica.read_counter("expired_share_partitions_total", reason="group_empty") == 6
        assert replica.read_counter("expiry_last_round_timestamp_seconds") == clock.ms / 1000
        assert replica.read_counter("expiry_failures_total") == 0


async def test_group_with_a_topic_that_is_not_visible_is_not_deleted() -> None:
    cluster, clock = make_cluster("t", "u", g=ShareGroup("t", "u")), ManualClock()
    cluster.topics.discard("u")
    cluster.hidden_topics.add("u")
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t"), make_state("g", "u")]) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(RETENTION + GAP)
        assert cluster.deletions == [("g", ("t",))]
        assert cluster.deleted_groups == []
        assert await replica.list_topics() == {("other", "known"), ("g", "u")}


async def test_group_is_not_deleted_if_other_coordinators_own_shards() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    records = [KNOWN, make_state("g", "t")]
    shards = {state_partition(record.key, SHARDS) for record in records}
    async with run_replica(cluster, clock, records, shards=shards) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(RETENTION + GAP)
        assert cluster.deletions == [("g", ("t",))]
        assert cluster.deleted_groups == []


async def test_unsubscribed_topic_expires_when_the_group_is_empty() -> None:
    cluster, clock = make_cluster("kept", "left", g=ShareGroup("kept", "left")), ManualClock()
    cluster.groups["g"].join("kept")
    records = [KNOWN, make_state("g", "kept"), make_state("g", "left")]
    async with run_replica(cluster, clock, records) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(RETENTION)
        # Kafka does not delete offsets of a group with members, regardless of their subscriptions.
        waiting = ("topic_unsubscribed", ExpiryStatus.WAITS_FOR_EMPTY_GROUP)
        assert await replica.status_by_topic() == {("g", "left"): waiting}
        assert cluster.deletions == []
        cluster.groups["g"].leave()
        await replica.expiry.run_round()
        assert (cluster.deletions, cluster.deleted_groups) == ([("g", ("left",))], [])


async def test_retention_counts_from_offsets_set_for_an_empty_group() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    set_ms = clock.ms + 50 * MINUTE_MS
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t", initialized_ms=set_ms)]) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(RETENTION + 50)
        assert ("g", "t") in await replica.list_topics()
        # A member may have joined and left after the offsets were set, so expiry may take GAP minutes more.
        await replica.advance_with_rounds(GAP)
        assert ("g", "t") not in await replica.list_topics()


async def test_state_of_a_missing_group_expires_after_the_grace_time() -> None:
    cluster, clock = make_cluster("t"), ManualClock()
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t"), make_state("h", "t")]) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(GRACE - INTERVAL_MINUTES)
        assert {("g", "t"), ("h", "t")} <= await replica.list_topics()

        async def recreate_after_next_request() -> None:
            async def recreate_group() -> None:
                cluster.groups["h"] = ShareGroup("t")
                cluster.groups["h"].join("t")

            # The first describe request is the observation; the second precedes the deletion.
            cluster.before["describe"] = recreate_group

        cluster.before["describe"] = recreate_after_next_request
        await replica.advance_with_rounds(INTERVAL_MINUTES)
        assert await replica.list_topics() == {("other", "known"), ("h", "t")}
        assert replica.read_counter("expired_share_partitions_total", reason="group_deleted") == 1


async def test_grace_time_counts_from_offsets_set_for_a_missing_group() -> None:
    cluster, clock = make_cluster("t"), ManualClock()
    set_ms = clock.ms + 5 * INTERVAL_MINUTES * MINUTE_MS
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t", initialized_ms=set_ms)]) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(GRACE + 4 * INTERVAL_MINUTES)
        assert ("g", "t") in await replica.list_topics()
        await replica.advance_with_rounds(INTERVAL_MINUTES)
        assert ("g", "t") not in await replica.list_topics()


async def test_state_initialized_during_a_round_is_not_deleted() -> None:
    cluster, clock = make_cluster("t"), ManualClock()
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")]) as replica:
        await replica.expiry.run_round()
        clock.advance(GRACE)

        async def initialise_after_second_observation() -> None:
            async def initialise_state() -> None:
                key = SharePartitionKey("g", topic_id("t"), 0)
                shard = state_partition(key, SHARDS)
                replica.runtime._runners[shard].shard.apply(
                    make_state("g", "t", initialized_ms=clock.ms), clock.ms
                )

            cluster.before["describe"] = initialise_state

        cluster.before["describe"] = initialise_after_second_observation
        await replica.expiry.run_round()
        assert ("g", "t") in await replica.list_topics()


@pytest.mark.parametrize("happens", ["visit", "reset"])
async def test_state_used_again_after_the_observation_is_not_deleted(happens: str) -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")]) as replica:
        await replica.expiry.run_round()
        clock.advance(RETENTION)

        async def use_group_after_observation() -> None:
            async def join_and_leave() -> None:
                cluster.groups["g"].join("t")
                cluster.groups["g"].leave()

            cluster.before["describe"] = join_and_leave

        async def reset_state() -> None:
            # When the round describes the groups, it has already listed the states.
            shard = state_partition(SharePartitionKey("g", topic_id("t"), 0), SHARDS)
            replica.runtime._runners[shard].shard.apply(
                make_state("g", "t", initialized_ms=clock.ms), clock.ms
            )

        cluster.before["describe"] = {"visit": use_group_after_observation, "reset": reset_state}[happens]
        done = await replica.expiry.run_round()
        assert [removal.refused for removal in done.removals] == ["it was used since the last observation"]
        assert cluster.deletions == []
        assert replica.read_counter("expiry_failures_total") == 0


@pytest.mark.parametrize("kafka_has_the_topic", [False, True])
async def test_state_is_not_counted_as_expired_if_its_shard_refuses_deletion(
    kafka_has_the_topic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, clock = make_cluster(*("t" * kafka_has_the_topic), g=ShareGroup()), ManualClock()
    async with run_replica(
        cluster, clock, [KNOWN, *(make_state("g", "t", number) for number in range(3))]
    ) as replica:
        submit = replica.runtime.submit

        def submit_or_refuse(operation: Operation) -> None:
            if operation.key.partition == 1:
                operation.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The log takes no writes.")
            else:
                submit(operation)

        monkeypatch.setattr(replica.runtime, "submit", submit_or_refuse)
        await replica.expiry.run_round()
        clock.advance(RETENTION + GAP)
        (removal,) = (await replica.expiry.run_round()).removals
        assert (removal.share_partitions, removal.refused, removal.failed) == (
            2,
            "The log takes no writes.",
            True,
        )
        reason = "group_empty" if kafka_has_the_topic else "topic_deleted"
        assert replica.read_counter("expired_share_partitions_total", reason=reason) == 2
        assert replica.read_counter("expiry_failures_total") == 1
        assert cluster.deleted_groups == []


async def test_hazard_a_state_of_deleted_topic_expires_after_its_shard_was_loading() -> None:
    cluster, clock = make_cluster(g=ShareGroup()), ManualClock()
    async with run_replica(
        cluster, clock, [KNOWN, *(make_state("g", "t", number) for number in range(3))]
    ) as replica:
        await replica.expiry.run_round()
        clock.advance(GRACE)
        runner = replica.runtime._runners[state_partition(SharePartitionKey("g", topic_id("t"), 1), SHARDS)]
        runner._reload(runner)
        assert runner.status is not ShardStatus.ACTIVE
        await replica.expiry.run_round()
        assert ("g", "t") in await replica.list_topics()
        async with asyncio.timeout(60):
            while runner.status is not ShardStatus.ACTIVE:  # noqa: ASYNC110
                await asyncio.sleep(0)
        # The grace time may start again for a shard that was loading.
        await replica.advance_with_rounds(GRACE + INTERVAL_MINUTES)
        assert await replica.list_topics() == {("other", "known")}


async def test_state_that_kafka_does_not_have_is_deleted_by_the_coordinator() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup()), ManualClock()
    async with run_replica(
        cluster, clock, [KNOWN, *(make_state("g", "t", number) for number in range(4))]
    ) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(RETENTION)
        assert ("g", "t") not in await replica.list_topics()
        assert replica.read_counter("expired_share_partitions_total", reason="group_empty") == 4


async def test_owner_of_topic_partition_0_deletes_the_state() -> None:
    first, others = split_shards("g", "t")
    records = [KNOWN, *(make_state("g", "t", number) for number in range(20))]
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    async with (
        run_replica(cluster, clock, records, shards=first, has_other_owners=True) as owner,
        run_replica(cluster, clock, records, shards=others, has_other_owners=True) as other,
    ):
        await owner.expiry.run_round()
        await other.expiry.run_round()
        clock.advance(RETENTION)
        await other.expiry.run_round()
        assert (await other.status_by_topic())["g", "t"] == ("group_empty", ExpiryStatus.ELSEWHERE)
        assert cluster.deletions == []
        await owner.expiry.run_round()
        assert len(cluster.deletions) == 1
        assert {("g", "t")}.isdisjoint(await owner.list_topics() | await other.list_topics())


async def test_round_continues_if_a_broker_does_not_list_its_groups() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")], has_other_owners=True) as replica:
        await replica.expiry.run_round()
        clock.advance(RETENTION)
        cluster.unanswered.add("list")
        await replica.expiry.run_round()
        assert len(cluster.deletions) == 1


async def test_other_owner_deletes_state_that_remains_without_partition_0() -> None:
    _, others = split_shards("g", "t")
    cluster, clock = make_cluster("t", g=ShareGroup()), ManualClock()
    # A deletion that stopped after partition 0 leaves the state of the other partitions.
    records = [KNOWN, *(make_state("g", "t", number) for number in range(1, 20))]
    async with run_replica(cluster, clock, records, shards=others) as other:
        await other.expiry.run_round()
        await other.advance_with_rounds(RETENTION + 5 * INTERVAL_MINUTES)
        assert ("g", "t") in await other.list_topics()
        await other.advance_with_rounds(INTERVAL_MINUTES)
        assert ("g", "t") not in await other.list_topics()


async def test_nothing_is_deleted_without_a_fresh_lease() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    lease = [False]
    async with run_replica(
        cluster, clock, [KNOWN, make_state("g", "t")], has_fresh_lease=lambda: lease[0]
    ) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(RETENTION)
        assert cluster.deletions == []
        lease[0] = True
        await replica.advance_with_rounds(INTERVAL_MINUTES)
        assert len(cluster.deletions) == 1


async def test_deletions_stop_when_the_lease_ends_during_a_round() -> None:
    cluster, clock = make_cluster("t", g1=ShareGroup("t"), g2=ShareGroup("t")), ManualClock()
    lease = [True]
    records = [KNOWN, make_state("g1", "t"), make_state("g2", "t")]
    async with run_replica(cluster, clock, records, has_fresh_lease=lambda: lease[0]) as replica:
        await replica.expiry.run_round()
        clock.advance(RETENTION)

        async def end_lease() -> None:
            lease[0] = False

        cluster.before["delete"] = end_lease
        await replica.expiry.run_round()
        assert len(cluster.deletions) == 1


async def test_group_with_more_topics_in_kafka_is_not_deleted() -> None:
    cluster, clock = make_cluster("t", "u", g=ShareGroup("t", "u")), ManualClock()
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")]) as replica:
        await replica.expiry.run_round()
        clock.advance(RETENTION)
        await replica.expiry.run_round()
        assert cluster.deletions == [("g", ("t",))]
        assert cluster.deleted_groups == []


async def test_shard_that_moves_during_a_round_is_left_to_its_new_owner() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")]) as replica:
        await replica.expiry.run_round()
        clock.advance(RETENTION)

        async def resign_all_shards() -> None:
            for shard in range(SHARDS):
                replica.runtime.resign(shard)

        cluster.before["describe"] = resign_all_shards
        done = await replica.expiry.run_round()
        assert (done.removals, done.left_over) == ([], 1)
        assert cluster.deletions == []


async def test_deletions_of_a_round_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remover_module, "GROUPS_MAX", 3)
    monkeypatch.setattr(remover_module, "SHARE_PARTITIONS_MAX", 3)
    names = [f"g{number}" for number in range(5)]
    cluster, clock = make_cluster("t", **{name: ShareGroup("t") for name in names}), ManualClock()
    records = [KNOWN, *(make_state(name, topic) for name in names for topic in ("t", "gone"))]
    async with run_replica(cluster, clock, records) as replica:
        await replica.expiry.run_round()
        clock.advance(RETENTION)
        done = await replica.expiry.run_round()
        assert (len(done.removals), done.left_over) == (6, 4)
        done = await replica.expiry.run_round()
        assert (len(done.removals), done.left_over) == (4, 0)
        assert await replica.list_topics() == {("other", "known")}
        assert sorted(cluster.deleted_groups) == names


async def test_group_whose_deletion_fails_does_not_block_other_groups() -> None:
    names = ["a", "b", "c"]
    cluster, clock = make_cluster("t", **{name: ShareGroup("t") for name in names}), ManualClock()
    async with run_replica(cluster, clock, [KNOWN, *(make_state(name, "t") for name in names)]) as replica:
        await replica.expiry.run_round()
        clock.advance(RETENTION)
        first = (await replica.expiry.forecast()).items[0].group_id
        cluster.refusals[first] = ChangeResult(ErrorCode.UNKNOWN_SERVER_ERROR, "no room")
        done = await replica.expiry.run_round()
        assert {removal.refused for removal in done.removals} == {"", "no room"}
        assert {group for group, _ in await replica.list_topics()} == {"other", first}
        assert replica.read_counter("expiry_failures_total") == 1


async def test_missing_group_coordinator_ends_the_round_and_is_retried_last() -> None:
    names = ["a", "b", "c"]
    cluster, clock = make_cluster("t", **{name: ShareGroup("t") for name in names}), ManualClock()
    async with run_replica(cluster, clock, [KNOWN, *(make_state(name, "t") for name in names)]) as replica:
        await replica.expiry.run_round()
        clock.advance(RETENTION)
        cluster.refusals = dict.fromkeys(names, ChangeResult(ErrorCode.NOT_COORDINATOR, "it moved"))
        done = await replica.expiry.run_round()
        assert (len(done.removals), done.left_over) == (1, 2)
        del cluster.refusals[cluster.deletions[0][0]]
        cluster.deletions.clear()
        await replica.expiry.run_round()
        await replica.expiry.run_round()
        await replica.expiry.run_round()
        deleted = [group for group, _ in cluster.deletions]
        assert set(deleted) == set(names), "each group is tried"
        cluster.refusals.clear()
        await replica.expiry.run_round()
        assert await replica.list_topics() == {("other", "known")}
