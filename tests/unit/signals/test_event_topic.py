"""Events as records of a topic: keys, values, order, retries, and a topic that does not exist."""

import asyncio

import msgspec
import pytest

from coordinator.config import load_config
from coordinator.errors import ConfigError
from coordinator.observe.signals.detectors import SignalEvent
from coordinator.observe.signals.event_delivery import EventQueue, EventTopic
from protocol.errors import ErrorCode
from protocol.record_batch import LogRecord, decode_batches
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.unit.log.kafka_logs import run_simulated

TOPIC = "share-group-events"


def make_event(number: int, group: str = "workers") -> SignalEvent:
    return SignalEvent(number, group, "stuck", began=True, message=f"message {number}")


def read_records(kafka: KafkaInMemory) -> list[list[LogRecord]]:
    return [
        [record for data in partition.batches for batch in decode_batches(data) for record in batch.records]
        for partition in kafka.topics[TOPIC]
    ]


def deliver_events(kafka: KafkaInMemory, *events: SignalEvent) -> list[LogRecord]:
    """Deliver events, with all retries; return the records of the topic."""

    async def send_and_wait() -> None:
        queue = EventQueue(EventTopic(kafka.new_client(TOPIC), TOPIC))
        running = asyncio.create_task(queue.run())
        for each in events:
            queue.put(each)
        # Longer than all retries; the time is virtual.
        await asyncio.sleep(600)
        running.cancel()
        await queue.close()

    run_simulated(send_and_wait())
    return [record for partition in read_records(kafka) for record in partition]


@pytest.fixture
def kafka() -> KafkaInMemory:
    kafka = KafkaInMemory()
    kafka.create_topic(TOPIC, 3)
    return kafka


def test_record_has_group_as_key_and_event_as_json(kafka: KafkaInMemory) -> None:
    (record,) = deliver_events(kafka, make_event(7))
    assert (record.key, record.timestamp_ms) == (b"workers", 7)
    assert msgspec.json.decode(record.value or b"", type=SignalEvent) == make_event(7)


def test_events_of_a_group_are_in_order_in_one_partition(kafka: KafkaInMemory) -> None:
    groups = [f"group {number}" for number in range(20)]
    deliver_events(kafka, *(make_event(number, group) for number in range(3) for group in groups))
    partitions = read_records(kafka)
    assert all(partitions)
    for group in groups:
        (times,) = (
            times
            for partition in partitions
            if (times := [record.timestamp_ms for record in partition if record.key == group.encode()])
        )
        assert times == [0, 1, 2]


def test_refused_event_is_written_again(kafka: KafkaInMemory) -> None:
    kafka.produce_errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]
    assert [record.timestamp_ms for record in deliver_events(kafka, make_event(1), make_event(2))] == [1, 2]


@pytest.mark.run_with(function=run_simulated)
async def test_topic_that_was_created_again_with_fewer_partitions_receives_events(
    kafka: KafkaInMemory,
) -> None:
    queue = EventQueue(EventTopic(kafka.new_client(TOPIC), TOPIC))
    running = asyncio.create_task(queue.run())
    for _ in range(2):
        for number in range(20):
            queue.put(make_event(number, f"group {number}"))
        await asyncio.sleep(600)
        assert sum(map(len, read_records(kafka))) == 20
        kafka.create_topic(TOPIC, 1)
    running.cancel()
    await queue.close()


def test_missing_permission_is_named(kafka: KafkaInMemory, caplog: pytest.LogCaptureFixture) -> None:
    kafka.produce_errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 4
    assert deliver_events(kafka, make_event(1)) == []
    assert f"Add the ACL: Write on topic {TOPIC}" in caplog.text


@pytest.mark.run_with(function=run_simulated)
async def test_missing_topic_is_named_and_not_created(caplog: pytest.LogCaptureFixture) -> None:
    kafka = KafkaInMemory()
    kafka.create_topic("other", 1)
    queue = EventQueue(EventTopic(kafka.new_client(TOPIC), TOPIC))
    running = asyncio.create_task(queue.run())
    queue.put(make_event(1))
    await asyncio.sleep(600)
    running.cancel()
    assert TOPIC not in kafka.topics
    assert f"topic {TOPIC} does not exist" in caplog.text


def test_topic_requires_bootstrap_servers() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        load_config(environ={"SHARE_COORDINATOR_SIGNALS_EVENTS_TOPIC": TOPIC})
