"""Test Kafka's tools on this project's state topic, and a state topic with unsuitable configs."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.kafka.jars import fetch_jars
from tests.kafka.log_dump import dump_share_group_state
from tests.kafka.rig import BuiltInRig
from tests.topic.logs import new_topic, topic_log
from tests.unit.log.environments import append_durably, read_all

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
