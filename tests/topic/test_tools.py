"""Test Kafka's tools on this project's state topic, and this project's reader on Kafka's own state topic."""

import asyncio
import json
import random
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coordinator.client import ONCE, ShareCoordinatorClient
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.operate.migration.readers import TopicReader
from coordinator.shard import ShareState
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.kafka.built_in import STATE_PARTITIONS, STATE_TOPIC, BuiltInCoordinator, prepare_coordinator
from tests.kafka.fixtures import NEWEST
from tests.kafka.jars import RELEASES, fetch_jars
from tests.kafka.log_dump import dump_share_group_state
from tests.kafka.rig import BuiltInRig, built_in_rig
from tests.topic.logs import new_topic, topic_log
from tests.unit.log.environments import append_durably, read_all
from tests.unit.migration.locations import ignore_progress

pytestmark = pytest.mark.broker

KEY = SharePartitionKey("group", bytes(range(16)), 3)
SNAPSHOT = ShareSnapshotValue(6, 1, 2, 100, 1_000, 1_001, pack([StateBatch(100, 109, 0, 1)]), 10)
UPDATE = ShareUpdateValue(6, 2, 105, pack([StateBatch(105, 109, 4, 1)]))


@pytest.fixture(scope="module")
def claimed_topic(built_in: BuiltInRig) -> str:
    """Return a topic with a claim, a snapshot, an update, another claim, and a tombstone."""
    name = new_topic("tools")

    async def write_records() -> None:
        async with topic_log(built_in.broker.bootstrap, name) as log:
            await append_durably(log, 0, [encode_record(StateRecord(KEY, SNAPSHOT))])
            await append_durably(log, 0, [encode_record(StateRecord(KEY, UPDATE))])
        async with topic_log(built_in.broker.bootstrap, name) as log:
            await append_durably(log, 0, [encode_record(StateRecord(KEY, None))])

    asyncio.run(write_records())
    return name


def test_kafkas_log_dump_shows_records_and_skips_claims(built_in: BuiltInRig, claimed_topic: str) -> None:
    segment = built_in.broker.directory / "data" / f"{claimed_topic}-0" / f"{0:020}.log"
    printed = dump_share_group_state(Path(segment))
    lines = [line for line in printed.splitlines() if line.startswith("| offset")]
    assert len(lines) == 5, printed
    assert all("headerKeys: [owner-epoch]" in line for line in lines)
    assert printed.count("isvalid: true") == 5
    assert len(re.findall("Unknown record type 32000", printed)) == 2
    assert '"snapshotEpoch":6' in lines[1]
    assert '"startOffset":105' in lines[2]
    assert lines[4].endswith("payload: <DELETE>")


def parse_json_documents(text: str) -> Iterator[Any]:
    """Yield the JSON documents of a text. The formatter writes no separator between them."""
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        yield document


def test_kafkas_console_formatter_shows_the_state(built_in: BuiltInRig, claimed_topic: str) -> None:
    # The tools of 4.3.1 need the libraries of 4.3.1.
    done = fetch_jars("4.3.1").run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", built_in.broker.bootstrap),
        *("--topic", claimed_topic, "--from-beginning", "--max-messages", "5", "--timeout-ms", "60000"),
        *("--formatter", "org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter"),
    )
    shown = list(parse_json_documents(done.stdout))
    keys = [(record["key"]["type"], record["key"]["data"]) for record in shown]
    data = {"groupId": "group", "topicId": "AAECAwQFBgcICQoLDA0ODw", "partition": 3}
    assert keys == [(0, data), (1, data), (0, data)], f"{done.stdout}{done.stderr}"
    assert shown[0]["value"]["data"]["stateBatches"] == [
        {"firstOffset": 100, "lastOffset": 109, "deliveryState": 0, "deliveryCount": 1}
    ]
    assert shown[1]["value"]["data"]["startOffset"] == 105
    assert shown[2]["value"] is None


class BuiltInCluster(NamedTuple):
    """A broker, and its built-in share coordinator."""

    bootstrap: str
    coordinator: BuiltInCoordinator


@pytest.fixture(scope="module", params=RELEASES)
def builtin_coordinator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BuiltInCluster]:
    """Start Kafka's share coordinator of each release."""
    if request.param == NEWEST:
        built_in = request.getfixturevalue("built_in")
        yield BuiltInCluster(built_in.broker.bootstrap, request.getfixturevalue("built_in_coordinator"))
        return
    with built_in_rig(fetch_jars(request.param), tmp_path_factory.mktemp(request.param)) as rig:
        yield BuiltInCluster(rig.broker.bootstrap, prepare_coordinator(rig, topic="read", partitions=4))


async def write_random_change(
    client: ShareCoordinatorClient, key: SharePartitionKey, rng: random.Random
) -> None:
    """Change a share-partition at random: rising epochs, overlapping writes, and sometimes a deletion."""
    start_offset = rng.randrange(100)
    for state_epoch in range(1, rng.randint(2, 4)):
        await client.initialize(key, state_epoch, start_offset)
        leader_epoch = 3 * state_epoch + rng.randrange(3)
        await client.read(key, leader_epoch)
        for _ in range(rng.randrange(12)):
            start_offset += rng.randrange(5)
            first = start_offset + rng.randrange(20)
            batch = StateBatch(first, first + rng.randrange(10), rng.choice((0, 2, 4)), rng.randint(1, 5))
            await client.write(
                key,
                state_epoch=state_epoch,
                leader_epoch=leader_epoch,
                start_offset=start_offset,
                delivery_complete_count=rng.randrange(50),
                batches=[batch],
            )
    if rng.random() < 0.2:
        await client.delete(key)


async def read_states_of_kafka(bootstrap: str) -> dict[SharePartitionKey, ShareState]:
    reader = TopicReader(STATE_TOPIC, partial(Brokers, bootstrap), timeout_s=60)
    folded = await reader.fold(ignore_progress)
    assert folded is not None
    assert folded.state_partitions == STATE_PARTITIONS
    return dict(folded.states)


async def test_state_of_kafkas_coordinator_is_read_from_its_topic(
    builtin_coordinator: BuiltInCluster,
) -> None:
    peer, rng = builtin_coordinator.coordinator, random.Random(5)
    keys = [SharePartitionKey(f"read-from-kafka-{n}", peer.topic_id, n % 4) for n in range(40)]
    async with ShareCoordinatorClient((peer.host, peer.port), direct=True, retry=ONCE) as client:
        await asyncio.gather(*(write_random_change(client, key, rng) for key in keys))
        found = await read_states_of_kafka(builtin_coordinator.bootstrap)
        assert 0 < sum(key not in found for key in keys) < len(keys)
        for key in keys:
            summary, state = await client.summary(key), found.get(key)
            if state is None:
                assert summary.start_offset == -1
                continue
            answer = await client.read(key, state.leader_epoch)
            assert (state.state_epoch, state.start_offset) == (answer.state_epoch, answer.start_offset)
            assert state.batches == pack(answer.batches)
            # Before Kafka 4.2, the delivery complete count is not stored, and the response has -1.
            assert summary == (
                state.state_epoch,
                state.leader_epoch,
                state.start_offset,
                state.delivery_complete_count,
            )


async def test_existing_topic_is_used_and_its_unsuitable_configs_are_logged(
    built_in: BuiltInRig, caplog: pytest.LogCaptureFixture
) -> None:
    name = new_topic("made-by-hand")
    built_in.client.create_topic(name, partitions=1)
    # The records of this append exceed the broker's size limit of one batch.
    records: list[tuple[bytes, bytes | None]] = [(b"k", bytes(1_000)) for _ in range(3_000)]
    async with topic_log(built_in.broker.bootstrap, name) as log:
        at = await append_durably(log, 0, [(b"k", b"v")])
        assert await append_durably(log, 0, records) == at + 1
        found = (await read_all(log, range(1)))[0]
        assert [offset - at for offset, _, _ in found] == list(range(3_001))
    warnings = [record.getMessage() for record in caplog.records if name in record.getMessage()]
    assert len(warnings) == 3, warnings
    assert "retention.ms=604800000, not -1" in warnings[0]
    assert "message.timestamp.after.max.ms=3600000" in warnings[1]
    assert "max.message.bytes=1048588" in warnings[2]
