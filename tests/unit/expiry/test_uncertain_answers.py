"""State does not expire if information is uncertain: silent clusters, damaged files, wrong clocks."""

from pathlib import Path

import pytest

from coordinator.cluster.kafka.metadata import NO_NODE
from coordinator.cluster.kafka.share_group_types import EMPTY, GroupDescription
from coordinator.errors import LogUnavailable
from coordinator.operate.expiry import ExpiryRules, ExpiryStatus, ObservationStore
from coordinator.operate.expiry.observations import GroupObservation, ObservationGaps, observe_group
from coordinator.serve.runtime.status import ShardStatus
from coordinator.shard import Shard, SnapshotPolicy
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
)
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)


async def test_group_whose_coordinator_does_not_answer_does_not_expire() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")]) as replica:
        await replica.expiry.run_round()
        cluster.brokers.coordinators["g"] = NO_NODE
        await replica.advance_with_rounds(3 * RETENTION)
        assert (await replica.status_by_topic())["g", "t"] == ("group_empty", ExpiryStatus.NOT_KNOWN)
        assert (await replica.expiry.forecast()).unanswered_groups == 1
        assert ("g", "t") in await replica.list_topics()
        cluster.brokers.coordinators.clear()
        await replica.advance_with_rounds(INTERVAL_MINUTES)
        assert ("g", "t") not in await replica.list_topics()


async def test_group_that_was_never_described_is_not_listed() -> None:
    cluster, clock = make_cluster("t"), ManualClock()
    cluster.brokers.coordinators["g"] = NO_NODE
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")]) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(3 * RETENTION)
        assert await replica.status_by_topic() == {}


async def test_topic_that_may_be_deleted_does_not_expire() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    cluster.groups["g"].join("t")
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")]) as replica:
        await replica.expiry.run_round()
        cluster.topics.discard("t")
        cluster.hidden_topics.add("t")
        await replica.advance_with_rounds(3 * GRACE)
        assert ("g", "t") in await replica.list_topics()
        # The topic is missing, then not visible, then missing. A topic that is not visible may be missing.
        cluster.hidden_topics.clear()
        await replica.advance_with_rounds(INTERVAL_MINUTES)
        cluster.hidden_topics.add("t")
        await replica.advance_with_rounds(GRACE)
        assert (await replica.status_by_topic())["g", "t"] == ("topic_deleted", ExpiryStatus.NOT_KNOWN)
        assert ("g", "t") in await replica.list_topics()
        cluster.hidden_topics.clear()
        await replica.advance_with_rounds(INTERVAL_MINUTES)
        assert ("g", "t") not in await replica.list_topics()
        assert cluster.deletions == []
        assert replica.read_counter("expired_share_partitions_total", reason="topic_deleted") == 1


async def test_hidden_topic_does_not_expire_by_a_name_that_may_be_outdated() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")]) as replica:
        await replica.expiry.run_round()
        cluster.topics.discard("t")
        cluster.hidden_topics.add("t")
        await replica.advance_with_rounds(RETENTION)
        assert (await replica.status_by_topic())["g", "t"] == ("group_empty", ExpiryStatus.NOT_KNOWN)
        assert cluster.deletions == []
        cluster.hidden_topics.clear()
        cluster.topics.add("t")
        await replica.advance_with_rounds(INTERVAL_MINUTES)
        assert cluster.deletions == [("g", ("t",))]


async def test_without_a_grace_time_a_group_must_be_missing_twice() -> None:
    cluster, clock = make_cluster("t"), ManualClock()
    rules = ExpiryRules(retention_minutes=RETENTION, grace_minutes=0)
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")], rules=rules) as replica:
        await replica.expiry.run_round()
        assert ("g", "t") in await replica.list_topics()
        await replica.advance_with_rounds(INTERVAL_MINUTES)
        assert ("g", "t") not in await replica.list_topics()


async def test_grace_time_starts_again_after_a_topic_reappears() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    cluster.groups["g"].join("t")
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")]) as replica:
        cluster.topics.discard("t")
        await replica.expiry.run_round()
        await replica.advance_with_rounds(GRACE - INTERVAL_MINUTES)
        cluster.topics.add("t")
        await replica.advance_with_rounds(INTERVAL_MINUTES)
        cluster.topics.discard("t")
        await replica.advance_with_rounds(GRACE)
        assert ("g", "t") in await replica.list_topics()


async def test_cluster_without_any_of_the_topics_is_assumed_to_be_another() -> None:
    cluster, clock = make_cluster(), ManualClock()
    cluster.topics = {"unlike"}
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")]) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(3 * RETENTION)
        assert await replica.list_topics() == {("other", "known"), ("g", "t")}
        assert "knows none of the 2 topics" in str((await replica.expiry.forecast()).warning)


async def test_retention_starts_again_with_another_cluster(tmp_path: Path) -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    file = ObservationStore(tmp_path / "expiry.json")
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")], file=file) as replica:
        await replica.expiry.run_round()
    cluster.brokers.cluster_id = "another"
    clock.advance(RETENTION)
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")], file=file) as replica:
        await replica.expiry.run_round()
        assert ("g", "t") in await replica.list_topics()
        await replica.advance_with_rounds(RETENTION)
        assert ("g", "t") not in await replica.list_topics()


async def test_unreachable_cluster_expires_nothing_and_the_next_round_succeeds() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t")]) as replica:
        await replica.expiry.run_round()
        cluster.stop_brokers()
        clock.advance(RETENTION)
        with pytest.raises(LogUnavailable):
            await replica.expiry.run_round()
        with pytest.raises(LogUnavailable):
            await replica.expiry.forecast()
        assert ("g", "t") in await replica.list_topics()
        cluster.start_brokers()
        await replica.expiry.run_round()
        assert ("g", "t") not in await replica.list_topics()


async def test_damaged_or_unwritable_file_is_treated_as_missing(tmp_path: Path) -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    path = tmp_path / "expiry.json"
    path.write_text("{]")
    async with run_replica(
        cluster, clock, [KNOWN, make_state("g", "t")], file=ObservationStore(path)
    ) as replica:
        await replica.expiry.run_round()
        assert b"cluster" in path.read_bytes()
    unwritable = tmp_path / "file" / "expiry.json"
    (tmp_path / "file").write_text("not a folder")
    async with run_replica(
        cluster, clock, [KNOWN, make_state("g", "t")], file=ObservationStore(unwritable)
    ) as replica:
        await replica.expiry.run_round()
        await replica.advance_with_rounds(RETENTION)
        assert ("g", "t") not in await replica.list_topics()


async def test_clock_set_back_between_starts_does_not_cause_early_expiry(
    tmp_path: Path,
) -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    file, records = ObservationStore(tmp_path / "expiry.json"), [KNOWN, make_state("g", "t")]
    async with run_replica(cluster, clock, records, file=file) as replica:
        cluster.groups["g"].join("t")
        await replica.expiry.run_round()
    clock.advance(-RETENTION)
    async with run_replica(cluster, clock, records, file=file) as replica:
        cluster.groups["g"].leave()
        await replica.expiry.run_round()
    clock.advance(RETENTION)
    async with run_replica(cluster, clock, records, file=file) as replica:
        await replica.expiry.run_round()
        assert ("g", "t") in await replica.list_topics()
        await replica.advance_with_rounds(RETENTION)
        assert ("g", "t") not in await replica.list_topics()


@pytest.mark.parametrize("loaded_meanwhile", [False, True])
@pytest.mark.parametrize("not_yet", [ShardStatus.LOADING, ShardStatus.CLOSED])
async def test_observation_is_kept_while_a_shard_is_not_loaded(
    tmp_path: Path, not_yet: ShardStatus, loaded_meanwhile: bool
) -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    file, records = ObservationStore(tmp_path / "expiry.json"), [KNOWN, make_state("g", "t")]
    async with run_replica(cluster, clock, records, file=file) as replica:
        await replica.advance_with_rounds(2 * INTERVAL_MINUTES)
    before = await file.load()
    assert before is not None
    async with run_replica(cluster, clock, records, file=file) as replica:
        key = SharePartitionKey("g", topic_id("t"), 0)
        runner = replica.runtime._runners[state_partition(key, SHARDS)]
        loaded, runner.shard = runner.shard, Shard(runner.state_partition, SnapshotPolicy())
        runner.status = not_yet

        async def load_shard() -> None:
            runner.shard, runner.status = loaded, ShardStatus.ACTIVE

        if loaded_meanwhile:
            cluster.before["resolve"] = load_shard
        await replica.advance_with_rounds(INTERVAL_MINUTES)
        await load_shard()
        await replica.advance_with_rounds(INTERVAL_MINUTES)
    after = await file.load()
    assert after is not None
    assert after.groups["g"].since_ms == before.groups["g"].since_ms
    assert after.groups["g"].read_ms == clock.ms


def observe(
    before: GroupObservation | None,
    minute: int,
    group_epoch: int = 3,
    *,
    state: str = EMPTY,
    gap_minutes: int = 9,
    initialized_minute: int | None = 0,
) -> GroupObservation:
    """Observe a group; a group in the state Stable has a member that subscribes to topic t."""
    members = int(state != EMPTY)
    observation = observe_group(
        before,
        GroupDescription(0, "", state, group_epoch, members, frozenset("t" * members)),
        now_ms=minute * MINUTE_MS,
        gaps=ObservationGaps(gap_minutes * MINUTE_MS, gap_minutes * MINUTE_MS),
        initialized_ms=None if initialized_minute is None else initialized_minute * MINUTE_MS,
    )
    assert observation is not None
    return observation


@pytest.mark.parametrize(
    ("initialized_minute", "since_minute"), [(1, 10), (9, 1000), (999, 1000), (None, 1000)]
)
def test_equal_group_epoch_after_a_gap_does_not_prove_the_same_group(
    initialized_minute: int | None, since_minute: int
) -> None:
    # The group may have been deleted and created again if its state was initialised after the last
    # observation. The clock of the coordinator that initialised the state may be a minute behind.
    observation = observe(
        observe(None, 10, initialized_minute=initialized_minute, gap_minutes=1),
        1000,
        initialized_minute=initialized_minute,
        gap_minutes=1,
    )
    assert observation.since_ms == since_minute * MINUTE_MS


def test_member_between_two_observations_may_have_used_every_topic() -> None:
    assert observe(observe(None, 10), 15, 5).unsubscribed_since_ms("t") == 15 * MINUTE_MS


@pytest.mark.parametrize(("minute", "since_minute"), [(19, 10), (20, 20)])
def test_subscriptions_during_a_long_gap_are_unknown(minute: int, since_minute: int) -> None:
    before = observe(None, 10, state="Stable")
    assert observe(before, minute, 5, state="Stable").unsubscribed_since_ms("u") == since_minute * MINUTE_MS


async def test_group_is_not_deleted_while_a_shard_is_loading() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    keys = [SharePartitionKey("g", topic_id("t"), 0), SharePartitionKey("g", topic_id("u"), 0)]
    shards = [state_partition(key, SHARDS) for key in keys]
    assert shards[0] != shards[1]
    async with run_replica(cluster, clock, [KNOWN, make_state("g", "t"), make_state("g", "u")]) as replica:
        await replica.expiry.run_round()
        runner = replica.runtime._runners[shards[1]]
        loaded, runner.shard = runner.shard, Shard(shards[1], SnapshotPolicy())
        runner.status = ShardStatus.LOADING
        await replica.advance_with_rounds(RETENTION)
        assert cluster.deletions == [("g", ("t",))]
        assert cluster.deleted_groups == []
        runner.shard, runner.status = loaded, ShardStatus.ACTIVE
