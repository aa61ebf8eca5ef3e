"""Test that a state above max.message.bytes of the topic is refused with Kafka's error code."""

import asyncio
from pathlib import Path

import pytest

from coordinator.client import (
    RetryPolicy,
    ShareCoordinatorClient,
    ShareCoordinatorError,
    SharePartitionKey,
    StateBatch,
)
from protocol.errors import ErrorCode
from protocol.state_records import parse_topic_id
from tests.builders import ACKNOWLEDGED, AVAILABLE
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.rig import BuiltInRig
from tests.topic.groups import SINGLE_REPLICA
from tests.topic.logs import new_topic

pytestmark = pytest.mark.broker

# Retry often, because Kafka creates and loads its state topic after the first FindCoordinator.
SOON = RetryPolicy(attempts_max=60, first_s=0.5, wait_max_s=2.0)
# State batches have 20 bytes each, so 60,000 exceed the default max.message.bytes of a topic, 1,048,588.
TOO_MANY = [StateBatch(offset, offset, (ACKNOWLEDGED, AVAILABLE)[offset % 2], 1) for offset in range(60_000)]


async def write_too_large_state(addresses: str, topic_id: bytes) -> ErrorCode:
    """Write a state that is too large. Check that the earlier state remains, and return the error code."""
    async with ShareCoordinatorClient(addresses, retry=SOON) as client:
        key = SharePartitionKey("large", topic_id, 0)
        await client.initialize(key, 1, 0)
        before = StateBatch(0, 4, ACKNOWLEDGED, 1)
        await client.write(key, state_epoch=1, leader_epoch=0, start_offset=0, batches=[before])
        with pytest.raises(ShareCoordinatorError) as refused:
            await client.write(key, state_epoch=1, leader_epoch=0, start_offset=0, batches=TOO_MANY)
        assert list((await client.read(key, 0)).batches) == [before]
        after = StateBatch(5, 5, ACKNOWLEDGED, 1)
        await client.write(key, state_epoch=1, leader_epoch=0, start_offset=0, batches=[after])
        return refused.value.error_code


def test_state_too_large_for_the_topic_is_refused_as_by_kafka(built_in: BuiltInRig, tmp_path: Path) -> None:
    consumed = parse_topic_id(built_in.client.create_topic("large"))
    state_topic = new_topic("large-state")
    # The topic is created in advance, with the default max.message.bytes of brokers.
    built_in.client.create_topic(state_topic)
    settings = {
        "bootstrap.servers": built_in.broker.bootstrap,
        # The coordinator's own limits must be above the limit of the topic.
        "share.partition.write.max.batches": "100000",
        "request.max.elements": "200000",
        "share.coordinator.state.topic.name": state_topic,
        "share.coordinator.state.topic.num.partitions": "1",
        **SINGLE_REPLICA,
    }
    with CoordinatorProcess(tmp_path, log="kafka", settings=settings) as ours:
        kafkas_answer = asyncio.run(write_too_large_state(built_in.broker.bootstrap, consumed))
        assert kafkas_answer is ErrorCode.UNKNOWN_SERVER_ERROR
        assert asyncio.run(write_too_large_state(f"127.0.0.1:{ours.port}", consumed)) is kafkas_answer
        # The refusal did not cause a reload of the shard.
        assert "is loaded again" not in ours.process.log.read_text()
