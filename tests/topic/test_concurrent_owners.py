"""Test concurrent owners of a state partition in a topic of a real Kafka."""

import asyncio

import pytest

from coordinator.errors import LogFenced
from coordinator.log.kafka import KafkaLog
from tests.kafka.rig import BuiltInRig
from tests.topic.logs import new_topic, topic_log
from tests.unit.log.environments import append, append_durably, read_all
from tests.unit.log.kafka_logs import wait_for_leases

pytestmark = pytest.mark.broker


async def read_values(log: KafkaLog, partitions: int = 1) -> list[bytes | None]:
    found = await read_all(log, range(partitions))
    return [value for records in found.values() for _, _, value in records]


async def test_fenced_owner_can_neither_append_nor_read(built_in: BuiltInRig) -> None:
    bootstrap, topic = built_in.broker.bootstrap, new_topic("owners")
    async with topic_log(bootstrap, topic) as first:
        await append_durably(first, 0, [(b"k", b"first")])
        # A lease renewal is a record, so it uses an offset.
        assert await append(first, 0, []) == (3, None)
        assert first.lease_left_s(0) > 0
        async with topic_log(bootstrap, topic) as second:
            end = second.end_offset(0)
            assert first.lease_left_s(0) <= 0
            # The broker fences the first owner by its producer epoch, so it stores neither a lease renewal
            # nor a record.
            for records in ([], [(b"k", b"zombie")]):
                _, error = await append(first, 0, records)
                assert isinstance(error, LogFenced)
                assert "error 47" in str(error)
            assert await append_durably(second, 0, [(b"k", b"second")]) == end
            assert await read_values(second) == [b"first", b"second"]


async def test_exactly_one_of_several_concurrent_claimants_can_append(built_in: BuiltInRig) -> None:
    bootstrap, topic = built_in.broker.bootstrap, new_topic("owners")
    async with (
        topic_log(bootstrap, topic, own=False) as one,
        topic_log(bootstrap, topic, own=False) as two,
        topic_log(bootstrap, topic, own=False) as three,
        topic_log(bootstrap, topic, own=False) as bystander,
    ):
        logs = (one, two, three)
        for _ in range(10):
            await asyncio.gather(*(log.acquire_ownership(0) for log in logs), return_exceptions=True)
            await asyncio.gather(*(read_values(log) for log in logs), return_exceptions=True)
            await asyncio.gather(*(wait_for_leases(log, 0) for log in logs))
            # A rejected claimant detects the rejection when it reads. Every log returns only accepted
            # records.
            before = await read_values(bystander)
            results = await asyncio.gather(*(append(log, 0, [(b"k", b"%d" % id(log))]) for log in logs))
            acknowledged = [
                b"%d" % id(log) for log, (_, error) in zip(logs, results, strict=True) if error is None
            ]
            assert len(acknowledged) == 1
            assert (await read_values(bystander))[len(before) :] == acknowledged
