"""The follower of a state log, with a Kafka in memory."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from coordinator.cluster.kafka.broker_results import FetchResult
from coordinator.observe import LogFollower
from coordinator.shard import ShareState
from protocol.errors import ErrorCode
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import encode_batch
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.builders import ACKNOWLEDGED, KEY, pack_batches
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.simulation.kafka.partition import SimPartition
from tests.unit.coroutine_tests import wait_until
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)

TOPIC = "__share_group_state"
PARTITIONS = 3
NUMBER = state_partition(KEY, PARTITIONS)


def make_snapshot(start_offset: int, snapshot_epoch: int = 0) -> StateRecord:
    return StateRecord(KEY, ShareSnapshotValue(snapshot_epoch, 1, 2, start_offset, 5, 5, b"", 0))


def make_update(start_offset: int) -> StateRecord:
    batches = pack_batches((start_offset, start_offset + 9, ACKNOWLEDGED, 1))
    return StateRecord(KEY, ShareUpdateValue(0, 2, start_offset, batches, 10))


class FollowedTopic:
    """A cluster with the state topic of Kafka's own coordinator, and a follower of this topic."""

    def __init__(self) -> None:
        self.fake = KafkaInMemory()
        self.fake.create_topic(TOPIC, PARTITIONS)
        self.followed: list[tuple[ShareState | None, StateRecord]] = []
        self.brokers = self.fake.new_client(TOPIC)
        self.follower = LogFollower(self.brokers, TOPIC)
        self.follower.on_record_followed = self._record_change

    def _record_change(self, key: SharePartitionKey, before: ShareState | None, record: StateRecord) -> None:
        assert key == KEY
        self.followed.append((before, record))

    @property
    def log(self) -> SimPartition:
        return self.fake.topics[TOPIC][NUMBER]

    def write(self, *records: StateRecord) -> None:
        self.log.append(encode_batch(0, 5, [encode_record(record) for record in records]))

    def start_offset(self) -> int | None:
        state = self.follower.share_partition(KEY)
        return None if state is None else state.start_offset


@asynccontextmanager
async def follow_topic() -> AsyncIterator[FollowedTopic]:
    """Follow a topic with one snapshot until the end of the block."""
    topic = FollowedTopic()
    topic.write(make_snapshot(100))
    running = asyncio.create_task(topic.follower.run())
    try:
        yield topic
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_follower_replays_the_log_and_follows_its_end() -> None:
    async with follow_topic() as topic:
        await wait_until(lambda: topic.follower.health() == [] and topic.follower.initial_load_done)
        assert topic.start_offset() == 100
        assert topic.followed == []
        record = make_update(110)
        topic.write(record)
        await wait_until(lambda: topic.start_offset() == 110)
        ((before, followed),) = topic.followed
        assert before is not None
        assert (before.start_offset, followed) == (100, record)
        statuses = {view.state_partition: view.status for view in topic.follower.shard_views()}
        assert statuses == dict.fromkeys(range(PARTITIONS), "ACTIVE")


async def test_other_callbacks_run_while_large_batches_are_followed() -> None:
    async with follow_topic() as topic:
        await wait_until(lambda: topic.start_offset() == 100)
        batches, records = 16, 1_000
        for number in range(batches):
            topic.write(*(make_update(110 + number) for _ in range(records)))
        largest = followed = 0
        while followed < batches * records:
            await asyncio.sleep(0)
            largest, followed = max(largest, len(topic.followed) - followed), len(topic.followed)
        assert largest == records


async def test_log_pruned_past_the_position_is_replayed_again() -> None:
    async with follow_topic() as topic:
        await wait_until(lambda: topic.start_offset() == 100)
        topic.fake.set_down(1, 2, 3)
        topic.write(
            make_update(110), make_snapshot(500, snapshot_epoch=1), make_snapshot(500, snapshot_epoch=2)
        )
        topic.write(make_snapshot(600, snapshot_epoch=3))
        topic.log.batches = topic.log.batches[-1:]
        topic.log.start = topic.log.end - 1
        topic.fake.set_down()
        await wait_until(lambda: topic.start_offset() == 600 and topic.follower.health() == [])


async def test_state_is_outdated_while_no_broker_answers() -> None:
    async with follow_topic() as topic:
        await wait_until(
            lambda: topic.follower.initial_load_done and not topic.follower.outdated_partitions()
        )
        topic.fake.set_down(1, 2, 3)
        await wait_until(lambda: topic.follower.outdated_partitions() == set(range(PARTITIONS)))
        assert any("3 of 3 state partitions for 5 s" in reason for reason in topic.follower.health())
        topic.fake.set_down()
        await wait_until(lambda: topic.follower.outdated_partitions() == set())


async def test_leader_change_is_followed() -> None:
    async with follow_topic() as topic:
        await wait_until(lambda: topic.start_offset() == 100)
        topic.fake.set_leader(NUMBER, 1 + topic.log.leader % 3)
        topic.write(make_update(110))
        await wait_until(lambda: topic.start_offset() == 110)


async def test_late_response_of_the_former_leader_is_dropped() -> None:
    async with follow_topic() as topic:
        await wait_until(lambda: topic.start_offset() == 100)
        former, fetch = topic.log.leader, topic.brokers.fetch
        delivered = asyncio.Event()
        late: list[Mapping[int, FetchResult]] = []

        async def fetch_with_delay(node: int, *rest: object, **options: int) -> Mapping[int, FetchResult]:
            fetched = await fetch(node, *rest, **options)  # type: ignore[arg-type]
            if node == former and fetched[NUMBER].data:
                late.append(fetched)
                await delivered.wait()
            return fetched

        topic.brokers.fetch = fetch_with_delay  # type: ignore[method-assign]
        await asyncio.sleep(1)
        topic.write(make_update(110))
        await wait_until(lambda: late)
        topic.fake.set_leader(NUMBER, 1 + former % 3)
        topic.brokers.refresh_soon()
        topic.write(make_update(120))
        await wait_until(lambda: topic.start_offset() == 120)
        delivered.set()
        topic.write(make_update(130))
        await wait_until(lambda: topic.start_offset() == 130)
        assert [record for _, record in topic.followed] == list(map(make_update, (110, 120, 130)))


async def test_damaged_partition_is_read_again_with_pauses(caplog: pytest.LogCaptureFixture) -> None:
    async with follow_topic() as topic:
        await wait_until(lambda: topic.start_offset() == 100)
        topic.write(make_update(110))
        batch = topic.log.batches.pop()
        topic.log.batches.append(batch[:-1] + b"?")
        topic.fake.requests.clear()
        await asyncio.sleep(60)
        assert any("cannot be read at log offset 1" in reason for reason in topic.follower.health())
        assert caplog.text.count("cannot be read at log offset 1") == 1
        # Each attempt needs two fetch requests. The other partitions cause two fetch requests a second to
        # each of two brokers.
        assert len([name for name, _ in topic.fake.requests if name == "fetch"]) < 260
        topic.log.batches[-1] = batch
        await wait_until(lambda: topic.follower.health() == [] and topic.start_offset() == 110)


async def test_exception_in_a_callback_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with follow_topic() as topic:
        await wait_until(lambda: topic.start_offset() == 100)
        topic.follower.on_record_followed = lambda key, before, record: 1 // 0  # type: ignore[assignment]
        topic.write(make_update(110))
        await wait_until(lambda: topic.start_offset() == 110 and topic.follower.health() == [])
        assert "ZeroDivisionError" in caplog.text


async def test_missing_read_permission_is_reported_and_other_partitions_continue() -> None:
    async with follow_topic() as topic:
        topic.fake.fetch_errors[NUMBER] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await wait_until(lambda: any("ACL: Read on topic" in reason for reason in topic.follower.health()))
        others = [view.status for view in topic.follower.shard_views() if view.state_partition != NUMBER]
        assert others == ["ACTIVE", "ACTIVE"]
        topic.fake.fetch_errors.clear()
        await wait_until(lambda: topic.follower.health() == [] and topic.start_offset() == 100)


async def test_recreated_topic_is_not_mixed_with_the_old_topic() -> None:
    async with follow_topic() as topic:
        await wait_until(lambda: topic.start_offset() == 100)
        topic.fake.recreate_topic(TOPIC)
        # The new log is longer than the old one, so the fetch offset of the follower is valid in the new log.
        topic.write(make_snapshot(200), make_update(201), make_update(202))
        await wait_until(
            lambda: any("deleted and created again" in reason for reason in topic.follower.health())
        )
        assert topic.start_offset() == 100


async def test_missing_topic_shows_no_shards_until_it_is_created() -> None:
    topic = FollowedTopic()
    topic.fake.brokers(TOPIC).delete_topic()
    running = asyncio.create_task(topic.follower.run())
    await wait_until(lambda: topic.follower.health() == [])
    assert topic.follower.shard_views() == []
    assert topic.follower.share_partition(KEY) is None
    topic.fake.create_topic(TOPIC, PARTITIONS)
    topic.write(make_snapshot(100))
    await wait_until(lambda: topic.start_offset() == 100)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
