"""The log in a topic when brokers report old leaders, and when the topic is deleted and created again."""

import asyncio

import pytest

from coordinator.errors import LogError, LogRefused
from coordinator.log.claims import is_claim, read_claim
from coordinator.log.kafka import KafkaLog
from protocol.record_batch import decode_batches
from tests.unit.log.environments import append, append_durably, append_error, read_all
from tests.unit.log.kafka_logs import ONE, TOPIC, KafkaLogs, read_values, run_simulated, wait_for_leases

pytestmark = pytest.mark.run_with(function=run_simulated)


@pytest.mark.parametrize("stale_node", [1, 2, 3])
async def test_owner_finds_the_new_leader_although_one_broker_is_stale(
    kafka_logs: KafkaLogs, stale_node: int
) -> None:
    owner = await kafka_logs.open_owned_log(0)
    kafka_logs.kafka.cut_off_from_controller(stale_node)
    for leader in (2, 3, 1, 2):
        kafka_logs.kafka.set_leader(0, leader)
        if leader == stale_node:
            # The stale broker leads no partition, because the controller has fenced it.
            continue
        await append_durably(owner, 0, ONE)
    assert kafka_logs.partition(0).end > 2


async def test_claim_records_the_topic_id(kafka_logs: KafkaLogs) -> None:
    await kafka_logs.open_owned_log(0)
    (claim,) = [
        record
        for stored in kafka_logs.partition(0).batches
        for batch in decode_batches(stored)
        for record in batch.records
        if is_claim(record)
    ]
    assert read_claim(claim).topic_id == kafka_logs.kafka.brokers(TOPIC).topic_id != bytes(16)


async def append_until_refused(log: KafkaLog) -> str:
    async with asyncio.timeout(60.0):
        while True:
            _, error = await append(log, 0, ONE)
            assert isinstance(error, LogError), "an append to the new topic was acknowledged"
            if isinstance(error, LogRefused):
                return str(error)


def check_recreation_reason(reason: str) -> None:
    assert "deleted and created again" in reason
    assert "Restart this process" in reason
    assert "\n" not in reason


async def test_recreated_topic_is_refused_and_receives_no_records(kafka_logs: KafkaLogs) -> None:
    owner = await kafka_logs.open_owned_log(0)
    await append_durably(owner, 0, ONE)
    kafka_logs.kafka.recreate_topic(TOPIC)
    check_recreation_reason(await append_until_refused(owner))
    assert owner.health() is not None
    check_recreation_reason(owner.health() or "")
    for attempt in (owner.acquire_ownership(0), read_all(owner), owner.release(0)):
        with pytest.raises(LogRefused, match="deleted and created again"):
            await attempt
    assert kafka_logs.partition(0).end == 0
    # A coordinator that starts now uses the new topic.
    restarted = await kafka_logs.open_owned_log(0)
    await append_durably(restarted, 0, ONE)
    assert await read_values(restarted) == [b"value"]


async def test_claim_sent_before_the_recreation_is_detected_is_not_stored(kafka_logs: KafkaLogs) -> None:
    owner = await kafka_logs.open_owned_log(0)
    kafka_logs.kafka.recreate_topic(TOPIC)
    with pytest.raises(LogRefused, match="deleted and created again"):
        await owner.acquire_ownership(0)
    assert kafka_logs.partition(0).end == 0


async def test_claim_of_another_owner_reveals_the_recreated_topic(kafka_logs: KafkaLogs) -> None:
    """The broker does not check the topic ids of requests, and a stale broker reports the old topic."""
    kafka_logs.kafka.checks_topic_ids = False
    log, cluster = kafka_logs.make_log_and_cluster()
    await log.open()
    await log.acquire_ownership(0)
    kafka_logs.kafka.recreate_topic(TOPIC)
    other = await kafka_logs.open_owned_log(0)
    # The claim of the other owner has the offset and owner epoch of the first claim.
    cluster.recreated_reason = lambda: None  # type: ignore[method-assign]
    with pytest.raises(LogRefused, match="claimed state partition 0 in a topic with the id"):
        await read_all(log, range(1))
    assert await append_error(log, 0, ONE) is not None
    await append_durably(other, 0, ONE)
    assert await read_values(other) == [b"value"]


@pytest.mark.parametrize("stale_node", [1, 2, 3])
async def test_owner_that_starts_after_a_recreation_uses_the_new_topic(
    kafka_logs: KafkaLogs, stale_node: int
) -> None:
    await kafka_logs.open_owned_log(0)
    kafka_logs.kafka.cut_off_from_controller(stale_node)
    kafka_logs.kafka.recreate_topic(TOPIC)
    for partition in range(5):
        kafka_logs.kafka.set_leader(partition, 1 + stale_node % 3)
    owner = await kafka_logs.open_owned_log(0)
    await wait_for_leases(owner, 0)
    await append_durably(owner, 0, ONE)
    assert owner.health() is None
