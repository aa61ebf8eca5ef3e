"""Test topic names and lag, which the coordinator requests from a real broker."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import ShareCoordinatorClient
from coordinator.cluster.kafka.user_topics import UserTopics
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey, parse_topic_id
from tests.kafka import BuiltInRig, wait_until
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.processes import PROGRAM

pytestmark = pytest.mark.broker

RECORDS = 10


@pytest.fixture(scope="module")
def topic(built_in: BuiltInRig) -> tuple[str, str]:
    """The name and the id of a topic with two partitions, of which the second has ten records."""
    name = "watched"
    topic_id = built_in.client.create_topic(name, partitions=2)
    built_in.client.produce(name, RECORDS, partition=1)
    return name, topic_id


@pytest.fixture
def coordinator(built_in: BuiltInRig, tmp_path: Path, topic: tuple[str, str]) -> Iterator[CoordinatorProcess]:
    """A coordinator with state of the topic, and state of an unknown topic."""
    settings = {"bootstrap.servers": built_in.broker.bootstrap}
    with CoordinatorProcess(tmp_path, log="memory", settings=settings) as process:
        asyncio.run(write_states(process.port, parse_topic_id(topic[1])))
        yield process


async def write_states(port: int, topic_id: bytes) -> None:
    async with ShareCoordinatorClient(f"127.0.0.1:{port}") as client:
        key = SharePartitionKey("watchers", topic_id, 1)
        await client.initialize(key, state_epoch=1, start_offset=2)
        await client.write(
            key,
            state_epoch=1,
            leader_epoch=0,
            start_offset=2,
            delivery_complete_count=3,
            batches=[StateBatch(3, 5, 2, 1)],
        )
        await client.initialize(
            SharePartitionKey("watchers", bytes(15) + b"x", 0), state_epoch=1, start_offset=0
        )


def run_groups_describe(coordinator: CoordinatorProcess) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{coordinator.http_port}"
    done = subprocess.run(
        [PROGRAM, "groups", "describe", "watchers", "--url", url, "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    items: list[dict[str, Any]] = json.loads(done.stdout)
    return items


def test_lag_is_end_offset_minus_start_offset_minus_complete_records(
    topic: tuple[str, str], coordinator: CoordinatorProcess
) -> None:
    def list_rows() -> list[dict[str, Any]]:
        """Return both states with the lag, or [] if the coordinator does not know the lag yet."""
        items = sorted(run_groups_describe(coordinator), key=lambda item: item["topic"] is None)
        return items if items[0]["lag"] is not None else []

    known, unknown = wait_until(list_rows, seconds=120, what="the lag is known")
    assert (known["topic"], known["partition"]) == (topic[0], 1)
    assert (known["end_offset"], known["lag"]) == (RECORDS, RECORDS - 2 - 3)
    assert (unknown["topic"], unknown["end_offset"], unknown["lag"]) == (None, None, None)
    assert json.loads(coordinator.get("/healthz")[1])["cluster_error"] is None


async def test_topic_id_exists_while_topic_exists(built_in: BuiltInRig, topic: tuple[str, str]) -> None:
    topics = UserTopics(built_in.broker.bootstrap)
    topic_id = parse_topic_id(topic[1])
    try:
        assert await topics.topic_id(topic[0]) == topic_id
        assert await topics.topic_id("no-such-topic") is None
        assert await topics.names([topic_id, bytes(15) + b"x"]) == {topic_id: topic[0]}
        assert await topics.end_offsets([(topic_id, 0), (topic_id, 1), (topic_id, 9)]) == {
            (topic_id, 0): 0,
            (topic_id, 1): RECORDS,
        }
    finally:
        await topics.close()
    assert "no-such-topic" not in built_in.client.topics()
