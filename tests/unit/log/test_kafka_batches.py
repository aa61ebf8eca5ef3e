"""Appends that exceed max.message.bytes of the topic, on a Kafka in memory that refuses larger batches."""

import asyncio
from typing import Any

import pytest

from coordinator.cluster.kafka.brokers import Brokers
from coordinator.errors import LogError, LogFenced, LogOutcomeUnknown, LogUnavailable
from coordinator.log.base import RECORD_BYTES_MAX
from coordinator.log.kafka import KafkaLog
from coordinator.log.kafka.batches import split_records
from coordinator.log.kafka.topic import BROKERS_BATCH_BYTES_MAX, TopicConfig, ensure_topic, required_configs
from protocol.errors import ErrorCode
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.unit.log.environments import STATE_PARTITIONS, append, append_durably, append_error
from tests.unit.log.kafka_logs import ONE, TOPIC, KafkaLogs, read_values, run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)

BATCH_BYTES_MAX = 2_000
# A batch can hold three records of MANY.
MANY = [(b"k%02d" % number, bytes([number]) * 500) for number in range(20)]
BATCHES = 7


def make_small_batch_logs() -> KafkaLogs:
    """Return logs in a topic that already exists and accepts small batches only."""
    all_of_them = KafkaLogs()
    configs = {**required_configs(2), "max.message.bytes": str(BATCH_BYTES_MAX)}
    all_of_them.kafka.create_topic(TOPIC, STATE_PARTITIONS, configs)
    return all_of_them


async def start_split_append(
    kafka_logs: KafkaLogs, log: KafkaLog
) -> asyncio.Future[tuple[int, LogError | None]]:
    """Start an append of several batches. Return after the first of these batches is in the log."""
    appending = asyncio.ensure_future(append(log, 0, MANY))
    while len(kafka_logs.partition(0).batches) < 4:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return appending


async def test_append_larger_than_a_batch_is_split_into_several() -> None:
    kafka_logs = make_small_batch_logs()
    log = await kafka_logs.open_owned_log(0)
    at = await append_durably(log, 0, ONE)
    size_bytes = log.size_bytes()
    assert await append_durably(log, 0, MANY) == at + 1
    written = kafka_logs.partition(0).batches[-BATCHES:]
    assert [len(batch) <= BATCH_BYTES_MAX for batch in written] == [True] * BATCHES
    assert log.size_bytes() - size_bytes == sum(map(len, written))
    assert await append_durably(log, 0, ONE) == at + 1 + len(MANY)
    assert await read_values(log) == [b"value", *(value for _, value in MANY), b"value"]


async def test_record_of_record_bytes_max_is_accepted() -> None:
    log = await make_small_batch_logs().open_owned_log(0)
    largest = bytes(log.record_bytes_max - len(b"key"))
    await append_durably(log, 0, [(b"key", largest)])
    assert isinstance(await append_error(log, 0, [(b"key", largest + bytes(128))]), LogUnavailable)
    assert await read_values(log) == [largest]


async def test_split_append_that_fails_has_an_unknown_outcome_and_keeps_a_prefix() -> None:
    kafka_logs = make_small_batch_logs()
    log = await kafka_logs.open_owned_log(0)
    appending = await start_split_append(kafka_logs, log)
    kafka_logs.kafka.produce_errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    _, error = await appending
    assert isinstance(error, LogOutcomeUnknown)
    assert isinstance(await append_error(log, 0, ONE), LogOutcomeUnknown), (
        "the owner must read the log before it appends again"
    )
    await log.acquire_ownership(0)
    found = await read_values(log)
    assert found == [value for _, value in MANY][: len(found)]
    assert 0 < len(found) < len(MANY)
    await append_durably(log, 0, ONE)


async def test_owner_deposed_between_two_batches_is_fenced() -> None:
    kafka_logs = make_small_batch_logs()
    log = await kafka_logs.open_owned_log(0)
    next_owner = kafka_logs.log()
    await next_owner.open()
    produce, claimed = log._cluster.produce, asyncio.Event()

    async def produce_after_the_claim(*args: Any) -> Any:
        if len(kafka_logs.partition(0).batches) >= 4:
            await claimed.wait()
        return await produce(*args)

    log._cluster.produce = produce_after_the_claim  # type: ignore[method-assign]
    appending = await start_split_append(kafka_logs, log)
    await next_owner.acquire_ownership(0)
    claimed.set()
    _, error = await appending
    assert isinstance(error, LogFenced)


async def test_record_larger_than_a_batch_is_not_written() -> None:
    log = await make_small_batch_logs().open_owned_log(0)
    assert isinstance(await append_error(log, 0, [(b"k", bytes(BATCH_BYTES_MAX))]), LogUnavailable)
    await append_durably(log, 0, ONE)


def test_split_records_fills_batches_and_loses_nothing() -> None:
    for bytes_max in (1, 700, BATCH_BYTES_MAX, 1 << 20):
        parts = list(split_records(MANY, (), bytes_max))
        assert [record for part in parts for record in part] == MANY
        assert all(parts)
    assert [len(part) for part in split_records(MANY, (), BATCH_BYTES_MAX)] == [3] * 6 + [2]
    assert [len(part) for part in split_records([(b"k", None), *ONE], (), 1 << 20)] == [2]


def test_split_records_keeps_each_atomic_unit_in_one_batch() -> None:
    units = [(1, 4), (5, 7), (7, 10), (19, 20)]
    parts = list(split_records(MANY, units, BATCH_BYTES_MAX))
    assert [record for part in parts for record in part] == MANY
    ends = [sum(map(len, parts[: number + 1])) for number in range(len(parts))]
    assert not any(begin < end < unit_end for begin, unit_end in units for end in ends)
    assert [len(part) for part in parts] == [1, 3, 3, 3, 3, 3, 3, 1]


async def test_atomic_unit_whose_batch_fails_is_not_stored_partially() -> None:
    kafka_logs = make_small_batch_logs()
    log = await kafka_logs.open_owned_log(0)
    landed = kafka_logs.partition(0).batches
    before = len(landed)
    told: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()
    units = [(0, 3), (3, 5), (5, 8)]
    log.append(0, MANY[:8], 1, lambda _, error: told.set_result(error), units)
    while len(landed) == before:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    kafka_logs.kafka.produce_errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert isinstance(await told, LogOutcomeUnknown)
    await log.acquire_ownership(0)
    assert await read_values(log) == [value for _, value in MANY[:3]]


async def test_ensure_topic_returns_the_batch_limit_of_the_topic() -> None:
    kafka = KafkaInMemory()
    topic_config = TopicConfig(TOPIC, 1)

    async def find_batch_limits(cluster: Brokers) -> tuple[int, int]:
        await cluster.connect()
        limits = await ensure_topic(cluster, topic_config, timeout_s=1)
        await cluster.close()
        return limits

    assert await find_batch_limits(kafka.new_client(TOPIC)) == (16 << 20, 16 << 20)
    for bytes_max, wanted_max in ((5000, 5000), (32 << 20, 16 << 20)):
        kafka.brokers(TOPIC).configs["max.message.bytes"] = str(bytes_max)
        assert await find_batch_limits(kafka.new_client(TOPIC)) == (wanted_max, bytes_max)
    kafka.brokers(TOPIC).configs["segment.bytes"] = "4000"
    assert await find_batch_limits(kafka.new_client(TOPIC)) == (4000, 4000)
    # If the configs are hidden, the topic may accept more than the default limit of brokers.
    hidden = kafka.new_client(TOPIC)
    hidden.topic_configs = return_no_configs  # type: ignore[method-assign]
    assert await find_batch_limits(hidden) == (BROKERS_BATCH_BYTES_MAX, RECORD_BYTES_MAX)


async def return_no_configs() -> None:
    return None
