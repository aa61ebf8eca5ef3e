"""Test live state topics of a real broker as sources, written by this project's or by Kafka's coordinator."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.cluster.kafka.brokers import Brokers
from coordinator.errors import ConfigError, LogUnavailable
from coordinator.log.claims import owner_epoch_headers
from coordinator.process.clock import SystemClock
from coordinator.recovery import api
from coordinator.recovery.archive import archive
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.schema import RECORDS
from coordinator.recovery.sources.archive import ArchiveSource
from coordinator.recovery.sources.base import LogCut, LogRange, ReadPlan
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.sources.topic import TopicSource
from protocol.record_batch import encode_batch
from tests.kafka.rig import BuiltInRig
from tests.recovery.log_strategies import comparable_rows, fold_with_shard_core, shard_core_rows, sort_by_key
from tests.recovery.logs_on_disk import make_varied_records
from tests.topic.logs import new_topic, topic_log
from tests.unit.log.environments import append, read_all
from tests.unit.log.kafka_logs import wait_for_leases

if TYPE_CHECKING:
    from coordinator.recovery.engines.spark import SparkEngine

pytestmark = pytest.mark.broker

LOCAL = LocalEngine(1)
PARTITIONS = 3
RECORDS_EACH = 400


@pytest.fixture(scope="module")
def record_time_ms() -> int:
    """Return a timestamp that brokers accept and that is later than the claims, which have the current
    time.
    """
    return SystemClock().now_ms() + 1_800_000


@pytest.fixture(scope="module")
def source(built_in: BuiltInRig, record_time_ms: int) -> TopicSource:
    """A topic with records of three successive owners, and late records of the first owner."""
    topic = new_topic("recovery")
    bootstrap = built_in.broker.bootstrap

    async def write_records_of_three_owners() -> None:
        for begin, end in ((0, 200), (200, 300), (300, RECORDS_EACH)):
            async with topic_log(bootstrap, topic, PARTITIONS, own=False) as log:
                await claim_all_state_partitions(log)
                await write_log(log, begin, end, record_time_ms)
            if begin == 200:
                await write_records_of_deposed_owner(bootstrap, topic)

    asyncio.run(write_records_of_three_owners())
    return TopicSource(topic, bootstrap)


async def claim_all_state_partitions(log: Any) -> None:
    """Claim all partitions of a log; retry like the runtime if late records made a claim invalid."""
    while True:
        try:
            await asyncio.gather(*map(log.acquire_ownership, range(PARTITIONS)))
            await read_all(log, range(PARTITIONS))
        except LogUnavailable:
            continue
        await wait_for_leases(log, *range(PARTITIONS))
        return


async def write_log(log: Any, begin: int, end: int, record_time_ms: int) -> None:
    for p in range(PARTITIONS):
        records = make_varied_records(RECORDS_EACH, seed=p)[begin:end]
        for at in range(0, len(records), 20):
            _, error = await append(log, p, records[at : at + 20], record_time_ms + begin + at)
            assert error is None


async def write_records_of_deposed_owner(bootstrap: str, topic: str) -> None:
    """Write to partition 1 with an outdated owner epoch, as a deposed owner might."""
    brokers = Brokers(bootstrap, topic)
    await brokers.connect()
    late = encode_batch(0, 1, make_varied_records(5, seed=77), headers=owner_epoch_headers(0))
    answers = await brokers.produce(brokers.leader(1), "late", [(1, late)], 5_000)
    assert answers[1].error_code == 0
    await brokers.close()


def load_expected_states(source: TopicSource, cut: dict[int, int] | None = None) -> list[dict[str, Any]]:
    """Return the states of shards that load the topic, from the fencing rule and the shard core only."""
    states = {}
    for log_range in source.plan(LogCut(cut)).ranges:
        batches = []
        for records in source.read(log_range):
            for row in range(len(records)):
                epoch = int(records.owner_epoch[row])
                headers = owner_epoch_headers(epoch) if epoch >= 0 else ()
                record = (records.keys.get(row) or b"", records.values.get(row))
                offset, at_ms = int(records.log_offset[row]), int(records.timestamp_ms[row])
                batches.append(encode_batch(offset, at_ms, [record], headers=headers))
        states.update(fold_with_shard_core(batches))
    return shard_core_rows(states)


def state_rows(states: Any) -> list[dict[str, Any]]:
    return comparable_rows(sort_by_key(states.to_pylist()))


def test_topic_is_rebuilt_without_records_of_deposed_owner(source: TopicSource) -> None:
    run = rebuild(LOCAL, source)
    assert state_rows(run.states) == load_expected_states(source)
    assert not any(row["group_id"].startswith("group-77") for row in run.states.to_pylist())
    assert run.manifest["totals"]["records"] >= PARTITIONS * RECORDS_EACH + 5
    assert run.manifest["totals"]["claims"] >= 3 * PARTITIONS
    assert len(run.ranges) == PARTITIONS
    cut = {0: 100, 1: 250, 2: 0}
    assert state_rows(rebuild(LOCAL, source, cut=LogCut(cut)).states) == load_expected_states(source, cut)


def test_archive_of_topic_refuses_other_topic(source: TopicSource, tmp_path: Path) -> None:
    identity = source.identity()
    assert identity.keys() == {"cluster_id", "topic_id"}
    assert archive(source, tmp_path / "archive").is_whole
    assert ArchiveSource(str(tmp_path / "archive")).identity() == identity
    other = new_topic("recovery-other")

    async def run_test() -> None:
        async with topic_log(source.bootstrap_servers, other, PARTITIONS) as log:
            await append(log, 0, make_varied_records(3))

    asyncio.run(run_test())
    with pytest.raises(ConfigError, match="its topic_id is"):
        archive(TopicSource(other, source.bootstrap_servers), tmp_path / "archive")


def test_cut_by_time_finds_offsets(source: TopicSource, record_time_ms: int) -> None:
    everything = source.plan(LogCut()).ends
    assert source.plan(LogCut(time_ms=2 * record_time_ms)).ends == everything
    halfway = source.plan(LogCut(time_ms=record_time_ms + RECORDS_EACH // 2 - 1)).ends
    assert all(0 < halfway[p] < everything[p] for p in range(PARTITIONS))


def test_topic_brokers_disk_and_archive_have_same_states(
    source: TopicSource, built_in: BuiltInRig, tmp_path: Path
) -> None:
    states = rebuild(LOCAL, source).states
    disk = SegmentSource(str(built_in.broker.directory / "data" / source.topic))
    assert rebuild(LOCAL, disk).states.equals(states)
    run = archive(source, tmp_path)
    assert (run.ends, run.gaps) == (source.plan(LogCut()).ends, {})
    assert rebuild(LOCAL, ArchiveSource(str(tmp_path))).states.equals(states)
    assert archive(source, tmp_path).records == 0


def test_records_have_producers_and_epochs(source: TopicSource) -> None:
    table: Any = api.records(source.text, bootstrap_servers=source.bootstrap_servers)
    assert table.schema.equals(RECORDS)
    late = [row for row in table.to_pylist() if row["owner_epoch"] == 0 and row["producer_id"] == -1]
    assert [row["state_partition"] for row in late] == [1] * 5
    assert {row["partition_leader_epoch"] for row in table.to_pylist()} == {0}
    epochs = [row["owner_epoch"] for row in table.to_pylist() if row["producer_id"] >= 0]
    assert len(set(epochs)) >= 3


class PrunedTopic(TopicSource):
    """A source whose topic is written and pruned between planning and reading."""

    def read(self, log_range: LogRange) -> Iterator[Any]:
        """Before the first fetch, write to the topic and prune it once."""
        if not self._pruned:
            self._pruned.append(True)
            asyncio.run(write_without_epoch(self, 0, 300, RECORDS_EACH))
            asyncio.run(prune_topic(self, {0: 150}))
        return super().read(log_range)

    _pruned: list[bool] = []  # noqa: RUF012


async def write_without_epoch(source: TopicSource, partition: int, begin: int, end: int) -> None:
    """Write records without owner epochs, as Kafka's own coordinator does."""
    brokers = Brokers(source.bootstrap_servers, source.topic)
    await brokers.connect()
    for at in range(begin, end, 20):
        records = make_varied_records(RECORDS_EACH, seed=partition)[at : at + 20]
        batch = encode_batch(0, SystemClock().now_ms(), records)
        answers = await brokers.produce(brokers.leader(partition), "write", [(partition, batch)], 5_000)
        assert answers[partition].error_code == 0
    await brokers.close()


async def prune_topic(source: TopicSource, offsets: dict[int, int]) -> None:
    brokers = Brokers(source.bootstrap_servers, source.topic)
    await brokers.connect()
    for p, offset in offsets.items():
        assert await brokers.delete_records(brokers.leader(p), {p: offset}) == {p: 0}
    await brokers.close()


def test_topic_pruned_during_read_is_read_again_to_its_new_end(
    built_in: BuiltInRig,
) -> None:
    topic, bootstrap = new_topic("pruned"), built_in.broker.bootstrap
    plain = TopicSource(topic, bootstrap)

    async def run_test() -> None:
        async with topic_log(bootstrap, topic, PARTITIONS, own=False):
            for p in range(PARTITIONS):
                await write_without_epoch(plain, p, 0, 300)

    asyncio.run(run_test())
    run = rebuild(LOCAL, PrunedTopic(topic, bootstrap))
    assert run.manifest["pruned_during_read"] == {"0": 150}
    read = run.manifest["partitions"]["0"]
    assert (read["start"], read["read_to"]) == (150, RECORDS_EACH)
    assert plain.plan(LogCut()).starts[0] == 150
    assert state_rows(run.states) == load_expected_states(plain)
    with pytest.raises(ConfigError, match="0:149 cannot be used: it must be at or above 150"):
        rebuild(LOCAL, plain, cut=LogCut({0: 149}))


def test_missing_topic_or_cluster_is_reported_in_one_line(built_in: BuiltInRig) -> None:
    with pytest.raises(ConfigError, match="kafka=no-such-topic cannot be used"):
        TopicSource("no-such-topic", built_in.broker.bootstrap).plan(LogCut())
    with pytest.raises(LogUnavailable, match=r"No broker of 127\.0\.0\.1:1 can be reached"):
        TopicSource("topic", "127.0.0.1:1").plan(LogCut())


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_spark_reads_live_topic(source: TopicSource, spark_engine: "SparkEngine") -> None:
    theirs = rebuild(spark_engine, source)
    assert theirs.states.equals(rebuild(LOCAL, source).states)
    read = partial(api.records, source.text, bootstrap_servers=source.bootstrap_servers)
    frame: Any = read(spark=spark_engine.spark)
    order = [("state_partition", "ascending"), ("log_offset", "ascending")]
    ours: Any = read()
    assert frame.toArrow().cast(RECORDS).sort_by(order).equals(ours.sort_by(order))


def test_plan_counts_records_of_its_ranges(source: TopicSource) -> None:
    plan = source.plan(LogCut())
    assert isinstance(plan, ReadPlan)
    assert sum(each.records for each in plan.ranges) == sum(plan.ends.values())
