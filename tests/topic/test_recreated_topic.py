"""Test that an owner detects that its state topic was deleted and created again, on a real broker."""

import asyncio

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from coordinator.errors import LogError, LogRefused
from coordinator.log.kafka import KafkaLog
from tests.kafka.rig import BuiltInRig
from tests.topic.logs import new_topic, topic_log
from tests.unit.log.environments import append, append_durably, read_all

pytestmark = pytest.mark.broker

DEADLINE_S = 120.0


async def recreate_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic and create it again, which fails until the deletion is complete."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topic])
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    created = await admin.create_topics([NewTopic(topic, 1, 1)])
                    if created.topic_errors[0][1] == 0:
                        return
                except KafkaError:
                    pass
                await asyncio.sleep(0.1)
    finally:
        await admin.close()


async def append_until_refused(log: KafkaLog) -> str:
    """Append until the log refuses an append permanently. Return the reason."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            _, error = await append(log, 0, [(b"k", b"of the old topic")])
            assert isinstance(error, LogError), "an append to the new topic was acknowledged"
            if isinstance(error, LogRefused):
                return str(error)


async def test_owner_refuses_a_recreated_topic(built_in: BuiltInRig) -> None:
    bootstrap, topic = built_in.broker.bootstrap, new_topic("recreated")
    async with topic_log(bootstrap, topic) as owner:
        await append_durably(owner, 0, [(b"k", b"before")])
        await recreate_topic(bootstrap, topic)
        reason = await append_until_refused(owner)
        assert reason.startswith(f"Topic {topic} was deleted and created again: its topic id was ")
        assert owner.health() == reason
        with pytest.raises(LogRefused, match="deleted and created again"):
            await owner.acquire_ownership(0)
        async with topic_log(bootstrap, topic) as other:
            offset = await append_durably(other, 0, [(b"k", b"after")])
            # The new topic has only the claim of the new owner, and no record of the old owner.
            assert offset == 1
            assert await read_all(other, range(1)) == {0: [(1, b"k", b"after")]}
