"""The log in a topic when brokers report old leaders, and when the topic is deleted and created again."""

import asyncio

import pytest

from coordinator.errors import LogError, LogRefused
from coordinator.log.claims import is_claim, read_claim
from coordinator.log.kafka import KafkaLog
from protocol.record_batch import decode_batches
from tests.unit.log.environments import append, append_durably, read_all
from tests.unit.log.kafka_logs import ONE, TOPIC, KafkaLogs, run, served, values


@pytest.mark.parametrize("stale_node", [1, 2, 3])
def test_an_owner_finds_the_new_leader_although_one_broker_is_stale(stale_node: int) -> None:
    async def main() -> None:
        logs = KafkaLogs()
        owner = await logs.owner(0)
        logs.kafka.cut_off_from_controller(stale_node)
        for leader in (2, 3, 1, 2):
            logs.kafka.leaders[0] = leader
            if leader == stale_node:
                # It leads nothing: the controller has fenced it.
                continue
            await append_durably(owner, 0, ONE)
        assert logs.partition(0).end > 2

    run(main())


def test_a_claim_records_the_topic_id() -> None:
    async def main() -> None:
        logs = KafkaLogs()
        await logs.owner(0)
        (claim,) = [
            record
            for stored in logs.partition(0).batches
            for batch in decode_batches(stored)
            for record in batch.records
            if is_claim(record)
        ]
        assert read_claim(claim).topic_id == logs.kafka.topic_id(TOPIC) != bytes(16)

    run(main())


async def refused(log: KafkaLog) -> str:
    """Return why an append is refused for good."""
    async with asyncio.timeout(60.0):
        while True:
            _, error = await append(log, 0, ONE)
            assert isinstance(error, LogError), "an append to the new topic was acknowledged"
            if isinstance(error, LogRefused):
                return str(error)


def check_reason(reason: str) -> None:
    assert "deleted and created again" in reason
    assert "Restart this process" in reason
    assert "\n" not in reason


def test_a_topic_that_was_created_again_is_refused_and_nothing_is_written_to_it() -> None:
    async def main() -> None:
        logs = KafkaLogs()
        owner = await logs.owner(0)
        await append_durably(owner, 0, ONE)
        logs.kafka.recreate(TOPIC)
        check_reason(await refused(owner))
        assert owner.health() is not None
        check_reason(owner.health() or "")
        for attempt in (owner.own(0), read_all(owner), owner.release(0)):
            with pytest.raises(LogRefused, match="deleted and created again"):
                await attempt
        assert logs.partition(0).end == 0
        # A coordinator that starts now uses the new topic.
        restarted = await logs.owner(0)
        await append_durably(restarted, 0, ONE)
        assert await values(restarted) == [b"value"]

    run(main())


def test_a_claim_that_is_sent_before_the_new_topic_is_noticed_does_not_land_in_it() -> None:
    async def main() -> None:
        logs = KafkaLogs()
        owner = await logs.owner(0)
        logs.kafka.recreate(TOPIC)
        with pytest.raises(LogRefused, match="deleted and created again"):
            await owner.own(0)
        assert logs.partition(0).end == 0

    run(main())


def test_without_topic_ids_in_requests_the_claim_of_another_owner_tells_of_the_new_topic() -> None:
    """A broker below Kafka 4.1 looks topics up by name; one stale broker reports the old topic."""

    async def main() -> None:
        logs = KafkaLogs()
        logs.kafka.knows_topic_ids = False
        log, cluster = logs.log_and_cluster()
        await log.open()
        await log.own(0)
        logs.kafka.recreate(TOPIC)
        other = await logs.owner(0)
        # Its claim is where ours was, with the same owner epoch.
        cluster.recreated_reason = lambda: None  # type: ignore[method-assign]
        with pytest.raises(LogRefused, match="claimed state partition 0 in a topic with the id"):
            await read_all(log, range(1))
        _, error = await append(log, 0, ONE)
        assert error is not None
        await append_durably(other, 0, ONE)
        assert await values(other) == [b"value"]

    run(main())


@pytest.mark.parametrize("stale_node", [1, 2, 3])
def test_an_owner_that_starts_after_the_topic_was_created_again_is_not_misled(stale_node: int) -> None:
    async def main() -> None:
        logs = KafkaLogs()
        await logs.owner(0)
        logs.kafka.cut_off_from_controller(stale_node)
        logs.kafka.recreate(TOPIC)
        for partition in range(5):
            logs.kafka.leaders[partition] = 1 + stale_node % 3
        owner = await logs.owner(0)
        await served(owner, 0)
        await append_durably(owner, 0, ONE)
        assert owner.health() is None

    run(main())
