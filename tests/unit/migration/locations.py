"""Sources and targets of migrations in tests: topics of a Kafka in memory, and journals."""

from collections.abc import Iterable
from pathlib import Path

from coordinator.log.journal import Journal
from coordinator.log.kafka import KafkaLog, KafkaLogLimits, TopicConfig
from coordinator.operate.migration.fold import ComparableState, FoldedLog
from coordinator.operate.migration.log_target import OWNER, LogTarget
from coordinator.operate.migration.migrate import MigrationOptions, MigrationReport, migrate_states
from coordinator.operate.migration.plan import MigrationTarget
from coordinator.operate.migration.readers import JournalReader, LogReader, TopicReader
from coordinator.process.clock import SystemClock
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import encode_batch
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID, pack_batches
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.unit.log.kafka_logs import loop_time

LIMITS = KafkaLogLimits(request_timeout_s=1, append_timeout_s=5, start_timeout_s=5)
SOURCE, TARGET = "__share_group_state", "ours"
SOURCE_PARTITIONS, TARGET_PARTITIONS = 5, 3
EXECUTE = MigrationOptions(execute=True)


def make_key(number: int, group: str = "group") -> SharePartitionKey:
    return SharePartitionKey(group, TOPIC_ID if number % 2 else OTHER_TOPIC_ID, number)


def make_snapshot(number: int, **changes: int) -> ShareSnapshotValue:
    """Return a snapshot whose field values depend on the number."""
    value = ShareSnapshotValue(
        snapshot_epoch=2 + number,
        state_epoch=3,
        leader_epoch=4,
        start_offset=100 * number,
        create_timestamp=1_000,
        write_timestamp=2_000,
        state_batches=pack_batches(
            (100 * number, 100 * number + 4, 2, 1), (100 * number + 6, 100 * number + 7, 0, 2)
        ),
        delivery_complete_count=5,
    )
    for name, changed in changes.items():
        setattr(value, name, changed)
    return value


def make_sample_records(count: int = 20) -> list[StateRecord]:
    """Return records as Kafka's own coordinator writes them; one share-partition is deleted at the end."""
    records = [StateRecord(make_key(number), make_snapshot(number)) for number in range(count)]
    update = ShareUpdateValue(3, 6, 101, pack_batches((106, 107, 2, 3)), 7)
    # A second Initialize resets the leader epoch to 0; leader epochs below 4 stay fenced.
    anew = make_snapshot(2, snapshot_epoch=5, state_epoch=4, leader_epoch=0)
    return [
        *records,
        StateRecord(make_key(1), update),
        StateRecord(make_key(2), anew),
        StateRecord(make_key(3), None),
    ]


class MigrationLogs:
    """A Kafka in memory with a source topic; the target topic is created on demand."""

    def __init__(self, records: Iterable[StateRecord] = ()) -> None:
        self.kafka = KafkaInMemory()
        self.make_topic(SOURCE, SOURCE_PARTITIONS)
        self.append_records(SOURCE, records)

    def make_topic(self, topic: str, partitions: int) -> None:
        self.kafka.create_topic(topic, partitions)

    def append_records(self, topic: str, records: Iterable[StateRecord]) -> None:
        """Append records without owner epochs to their state partitions."""
        partitions = self.kafka.topics[topic]
        for record in records:
            partition = partitions[state_partition(record.key, len(partitions))]
            partition.append(encode_batch(0, 1, [encode_record(record)]))

    def reader(self, topic: str = SOURCE) -> TopicReader:
        return TopicReader(topic, self.kafka.new_client, timeout_s=5)

    def log(self, topic: str, partitions: int, owner: str = OWNER) -> KafkaLog:
        return KafkaLog(
            self.kafka.new_client(topic),
            TopicConfig(topic, partitions),
            owner=owner,
            clock=SystemClock(),
            limits=LIMITS,
            monotonic=loop_time,
        )

    def target(self, topic: str = TARGET) -> LogTarget:
        return LogTarget(
            self.reader(topic),
            lambda partitions: self.log(topic, partitions),
            state_partitions=TARGET_PARTITIONS,
            clock=SystemClock(),
        )

    async def migrate(
        self,
        options: MigrationOptions = EXECUTE,
        *,
        source: LogReader | None = None,
        target: MigrationTarget | None = None,
    ) -> MigrationReport:
        """Migrate, by default from the topic SOURCE to the topic TARGET."""
        return await migrate_states(
            source or self.reader(), target or self.target(), options, ignore_progress
        )

    async def read_comparable_states(self, topic: str) -> dict[SharePartitionKey, ComparableState]:
        return (await self.read_folded_log(topic)).comparable_states()

    async def read_folded_log(self, topic: str) -> FoldedLog:
        folded = await self.reader(topic).fold(ignore_progress)
        assert folded is not None
        return folded

    def count_produce_requests(self) -> int:
        return sum(api == "produce" for api, _ in self.kafka.requests)


def make_journal_target(folder: Path) -> LogTarget:
    return LogTarget(
        JournalReader(folder),
        lambda partitions: make_journal(folder, partitions),
        state_partitions=TARGET_PARTITIONS,
        clock=SystemClock(),
    )


def make_journal(folder: Path, partitions: int = TARGET_PARTITIONS) -> Journal:
    return Journal(folder, state_partitions=partitions, segment_bytes=1 << 20, sync="os")


def ignore_progress(what: str, done: int, total: int) -> None:
    pass
