"""Read recorded requests, responses and records of Kafka from `vectors/`, and replay the requests."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from coordinator.client.rpcs import DELETE, INITIALIZE, READ, SUMMARY, WRITE
from coordinator.log.memory import MemoryLog
from coordinator.serve.runtime import Runtime
from coordinator.serve.service import Service
from coordinator.shard import Shard, ShareState, SnapshotPolicy
from protocol.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from protocol.state_records import SharePartitionKey, decode_record
from tests.builders import execute
from tests.static_topics import StaticTopics
from tests.unit.runtime.runtime_without_jobs import make_runtime

VECTORS = Path(__file__).parent / "vectors"
RELEASES_WITH_LOG = ("4.1.1", "4.3.1", "4.4.0")

CODECS: dict[int, Any] = {
    module.API_KEY: module
    for module in (
        initialize_share_group_state,
        read_share_group_state,
        write_share_group_state,
        delete_share_group_state,
        read_share_group_state_summary,
    )
}
RPCS = {rpc.api_key: rpc for rpc in (INITIALIZE, READ, WRITE, DELETE, SUMMARY)}


class RecordedRequest(NamedTuple):
    """A request to Kafka, and its response as bytes (`response`) or decoded (`answers`); one may be None."""

    name: str
    api_key: int
    version: int
    request: bytes
    response: bytes | None
    answers: list[dict[str, Any]] | None


class LogLine(NamedTuple):
    """A record that Kafka appended to its state topic."""

    state_partition: int
    log_offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None


def read_json_lines(name: str) -> Iterator[Any]:
    """Yield the JSON lines of a vector file."""
    with (VECTORS / name).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def recorded_rpcs() -> tuple[StaticTopics, list[RecordedRequest]]:
    """Return the topics that existed during the recording, and every request in order."""
    head, *rest = read_json_lines("kafka-4.4.0.rpc.jsonl")
    topics = StaticTopics({UUID(head["topic_id"]).bytes: head["topic_partitions"]})
    return topics, [
        RecordedRequest(
            each["name"],
            each["api"],
            each["version"],
            bytes.fromhex(each["request"]),
            bytes.fromhex(each["response"]) if "response" in each else None,
            each.get("answers"),
        )
        for each in rest
    ]


def recorded_log(release: str) -> list[LogLine]:
    """Return every record that a release of Kafka wrote for the recorded requests."""
    return [
        LogLine(
            each["partition"],
            each["offset"],
            each["timestamp"],
            bytes.fromhex(each["key"]),
            None if each["value"] is None else bytes.fromhex(each["value"]),
        )
        for each in read_json_lines(f"kafka-{release}.log.jsonl")
    ]


def replay_states(log: list[LogLine]) -> dict[SharePartitionKey, ShareState]:
    """Return the state of each share-partition after a replay of recorded records."""
    shards: dict[int, Shard] = {}
    for line in log:
        shard = shards.setdefault(line.state_partition, Shard(line.state_partition, SnapshotPolicy()))
        record = decode_record(line.key, line.value)
        assert record is not None
        shard.replay(record, line.log_offset, line.timestamp_ms)
    return {key: state for shard in shards.values() for key, state in shard.items()}


async def send_requests(topics: StaticTopics, requests: list[RecordedRequest]) -> tuple[list[Any], Runtime]:
    """Send the requests one after another to a coordinator without state. Return the responses and the
    runtime.
    """
    runtime = make_runtime(MemoryLog(50), 50, topics=topics)
    await runtime.start()
    service = Service(runtime)
    responses = []
    for recorded in requests:
        request = CODECS[recorded.api_key].decode_request(recorded.request, 0, recorded.version)
        done = asyncio.get_running_loop().create_future()
        execute(service, RPCS[recorded.api_key], request, None, done.set_result)
        responses.append(await done)
    return responses, runtime
