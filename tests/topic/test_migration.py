"""Migrate state to Kafka's own coordinator of each release and back, and compare all fields that Kafka
stores.

The test reads the stored state from Kafka's state topic, not from responses.
"""

import random
from collections.abc import Iterator

import pytest

from coordinator.client import RetryPolicy, ShareCoordinatorClient
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.log.kafka import KafkaLog, TopicConfig
from coordinator.operate.migration.coordinator_target import RETRY, CoordinatorTarget
from coordinator.operate.migration.fold import FoldedLog, MigrationRefused
from coordinator.operate.migration.locations import KAFKA_STATE_TOPIC
from coordinator.operate.migration.log_target import OWNER, LogTarget
from coordinator.operate.migration.migrate import MigrationOptions, MigrationReport, migrate_states
from coordinator.operate.migration.plan import MigrationAction
from coordinator.operate.migration.readers import TopicReader
from coordinator.process.clock import SystemClock
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record, parse_topic_id
from tests.builders import TOPIC_ID
from tests.kafka import RELEASES, BuiltInRig, fetch_jars
from tests.kafka.rig import built_in_rig
from tests.topic.logs import LIMITS, new_topic, topic_log
from tests.unit.log.environments import append_durably
from tests.unit.migration.locations import EXECUTE, ignore_progress

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PARTITIONS = 8
GROUPS = ("one", "two", "über-日本-😀")
# An unknown topic is refused only after retries.
SOON = RetryPolicy(attempts_max=4, first_s=0.2)
REPLACE = MigrationOptions(execute=True, replace=True)


@pytest.fixture(scope="module", params=RELEASES)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["KafkaCluster"]:
    """Start a broker of each release. The share coordinator of the broker has received no requests yet."""
    with built_in_rig(fetch_jars(request.param), tmp_path_factory.mktemp(request.param)) as rig:
        yield KafkaCluster(rig, request.param)


class KafkaCluster:
    """The migration sources and targets of one cluster."""

    def __init__(self, rig: BuiltInRig, release: str) -> None:
        self.release = release
        self.bootstrap = rig.broker.bootstrap
        self.topic_id = parse_topic_id(rig.client.create_topic("consumed", partitions=PARTITIONS))

    @property
    def stores_complete_count(self) -> bool:
        return self.release != "4.1.1"

    def connect(self, topic: str) -> Brokers:
        return Brokers(self.bootstrap, topic, request_timeout_s=LIMITS.request_timeout_s)

    def reader(self, topic: str) -> TopicReader:
        return TopicReader(topic, self.connect, timeout_s=60)

    async def read_folded_log(self, topic: str) -> FoldedLog:
        folded = await self.reader(topic).fold(ignore_progress)
        assert folded is not None
        return folded

    def own_target(self, topic: str, partitions: int) -> LogTarget:
        def make_log(state_partitions: int) -> KafkaLog:
            wish = TopicConfig(topic, state_partitions, replication_factor=1, min_isr=1)
            return KafkaLog(self.connect(topic), wish, owner=OWNER, clock=SystemClock(), limits=LIMITS)

        return LogTarget(self.reader(topic), make_log, state_partitions=partitions, clock=SystemClock())

    def builtin_coordinator(self, retry: RetryPolicy = RETRY) -> CoordinatorTarget:
        return CoordinatorTarget(self.bootstrap, self.reader(KAFKA_STATE_TOPIC), retry=retry)

    async def migrate(
        self, source: str, target: LogTarget | CoordinatorTarget, options: MigrationOptions
    ) -> MigrationReport:
        return await migrate_states(self.reader(source), target, options, ignore_progress)

    async def write(self, topic: str, records: list[StateRecord]) -> None:
        """Write records to a state topic of this project with one partition."""
        async with topic_log(self.bootstrap, topic) as log:
            await append_durably(log, 0, [encode_record(record) for record in records])
            await log.release(0)

    def make_random_states(self, seed: int) -> list[StateRecord]:
        chance = random.Random(seed)
        return [
            StateRecord(SharePartitionKey(group, self.topic_id, partition), make_snapshot(chance))
            for group in GROUPS
            for partition in range(PARTITIONS)
        ]


def make_snapshot(chance: random.Random) -> ShareSnapshotValue:
    start_offset = chance.choice([-1, 0, chance.randrange(1 << 40)])
    batches = []
    if start_offset >= 0:
        first = start_offset + chance.randrange(3)
        for _ in range(chance.choice([0, 1, 3, 300])):
            last = first + chance.randrange(5)
            batches.append(StateBatch(first, last, chance.choice([0, 2, 4]), chance.randrange(1, 6)))
            # The gap prevents that two adjacent batches are merged.
            first = last + 2
    leader_epoch = chance.choice([0, 0, 7])
    return ShareSnapshotValue(
        snapshot_epoch=chance.randrange(100),
        state_epoch=chance.randrange(50),
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        create_timestamp=1_000,
        write_timestamp=2_000,
        state_batches=pack(batches),
        delivery_complete_count=-1 if start_offset == -1 else chance.choice([-1, 0, 12]),
        leader_epoch_max=chance.choice([-1, 9]),
    )


async def test_state_is_unchanged_after_migration_to_kafka_and_back(cluster: KafkaCluster) -> None:
    first, last = new_topic("first"), new_topic("last")
    await cluster.write(first, cluster.make_random_states(seed=1))
    # A dry run sends no request that would make the broker create its state topic.
    dry_run = await cluster.migrate(first, cluster.builtin_coordinator(), MigrationOptions())
    assert await cluster.reader(KAFKA_STATE_TOPIC).fold(ignore_progress) is None
    assert dry_run.plan.count_actions()[MigrationAction.COPY] == len(GROUPS) * PARTITIONS

    target = cluster.builtin_coordinator()
    report = await cluster.migrate(first, target, EXECUTE)
    assert report.different == []
    assert (
        any("does not store delivery complete counts" in note for note in report.notes)
        != cluster.stores_complete_count
    )
    expected = {key: target.storable_state(state) for key, state in report.folded.states.items()}
    stored = await cluster.read_folded_log(KAFKA_STATE_TOPIC)
    assert stored.comparable_states() == expected
    ends = stored.ends
    second_run = await cluster.migrate(first, cluster.builtin_coordinator(), EXECUTE)
    assert second_run.plan.count_actions()[MigrationAction.ALREADY_PRESENT] == len(expected)
    assert (await cluster.read_folded_log(KAFKA_STATE_TOPIC)).ends == ends, "looking writes nothing"

    back = await cluster.migrate(KAFKA_STATE_TOPIC, cluster.own_target(last, 3), EXECUTE)
    assert back.different == []
    assert (await cluster.read_folded_log(last)).comparable_states() == expected


async def test_replace_overwrites_state_with_newer_and_with_older_state(cluster: KafkaCluster) -> None:
    for seed in (2, 3):
        topic = new_topic("replacing")
        # Each topic lacks some of the share-partitions, so the migration deletes them from Kafka's
        # coordinator.
        await cluster.write(topic, cluster.make_random_states(seed)[seed:])
        with pytest.raises(MigrationRefused, match="--replace"):
            await cluster.migrate(topic, cluster.builtin_coordinator(), EXECUTE)
        target = cluster.builtin_coordinator()
        report = await cluster.migrate(topic, target, REPLACE)
        assert report.different == []
        expected = {key: target.storable_state(state) for key, state in report.folded.states.items()}
        assert (await cluster.read_folded_log(KAFKA_STATE_TOPIC)).comparable_states() == expected


async def test_migration_interrupted_between_requests_is_completed_by_the_next_run(
    cluster: KafkaCluster,
) -> None:
    topic = new_topic("interrupted")
    records = cluster.make_random_states(seed=3)[3:]
    added = [SharePartitionKey("interrupted", cluster.topic_id, number) for number in range(3)]
    states = [ShareSnapshotValue(1, 5, 7, 90, 1, 2, pack([StateBatch(92, 95, 2, 1)]), 4)] * 3
    await cluster.write(topic, [*records, *map(StateRecord, added, states)])
    async with ShareCoordinatorClient(cluster.bootstrap) as client:
        await client.initialize(added[0], 5, 90)
        await client.initialize(added[1], 5, 90)
        await client.read(added[1], 7)
    report = await cluster.migrate(topic, cluster.builtin_coordinator(), EXECUTE)
    assert (report.plan.keys_with_action(MigrationAction.COPY), report.different) == (added, [])
    assert (await cluster.migrate(topic, cluster.builtin_coordinator(), EXECUTE)).plan.is_done


async def test_group_id_with_colons_is_migrated_if_the_broker_supports_it(cluster: KafkaCluster) -> None:
    topic = new_topic("colons")
    key = SharePartitionKey("with:colons", cluster.topic_id, 0)
    await cluster.write(
        topic, [*cluster.make_random_states(5), StateRecord(key, make_snapshot(random.Random(5)))]
    )
    if cluster.release == "4.1.1":
        with pytest.raises(MigrationRefused, match=f"{key}: INVALID_REQUEST"):
            await cluster.migrate(topic, cluster.builtin_coordinator(), REPLACE)
    else:
        assert (await cluster.migrate(topic, cluster.builtin_coordinator(), REPLACE)).different == []


async def test_state_of_an_unknown_topic_is_omitted_on_request(cluster: KafkaCluster) -> None:
    topic = new_topic("gone")
    gone = SharePartitionKey("gone", TOPIC_ID, 0)
    await cluster.write(
        topic, [*cluster.make_random_states(6), StateRecord(gone, make_snapshot(random.Random(6)))]
    )
    with pytest.raises(MigrationRefused, match=rf"1 share-partitions \({gone}\).*--leave-out-unknown-topics"):
        await cluster.migrate(topic, cluster.builtin_coordinator(SOON), REPLACE)
    report = await cluster.migrate(
        topic, cluster.builtin_coordinator(SOON), REPLACE._replace(leave_out_unknown_topics=True)
    )
    assert report.different == []
    assert report.plan.keys_with_action(MigrationAction.OMIT) == [gone]
