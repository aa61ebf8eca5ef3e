"""Read encoded state records with Kafka's dump tool, and compare its output with the journal dump."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from coordinator.log.journal.dump_format import kafka_lines, position_text
from coordinator.log.journal.inspect import DumpedBatch
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import decode_batches, encode_batch
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.kafka.log_dump import dump_share_group_state

pytestmark = pytest.mark.broker

KEY = SharePartitionKey("group", bytes(range(16)), 3)
RECORD_LINE = re.compile(
    r"\| offset: (?P<offset>\d+) CreateTime: (?P<time>\d+) .* headerKeys: \[(?P<headers>.*)\] "
    r"key: (?P<key>\{.*\}) payload: (?P<payload>.*)"
)


@pytest.fixture(scope="module")
def dumped_records(tmp_path_factory: pytest.TempPathFactory) -> list[re.Match[str]]:
    """Return the output of Kafka's tool for a snapshot, an update and a tombstone."""
    snapshot = ShareSnapshotValue(
        snapshot_epoch=6,
        state_epoch=1,
        leader_epoch=2,
        start_offset=100,
        create_timestamp=1_000,
        write_timestamp=1_001,
        state_batches=pack([StateBatch(100, 109, 0, 1), StateBatch(110, 119, 2, 2)]),
        delivery_complete_count=10,
        # A tagged field of this project that Kafka does not know.
        leader_epoch_max=9,
    )
    update = ShareUpdateValue(
        snapshot_epoch=6, leader_epoch=2, start_offset=105, state_batches=pack([StateBatch(105, 109, 4, 1)])
    )
    records = [encode_record(StateRecord(KEY, value)) for value in (snapshot, update, None)]
    segment = tmp_path_factory.mktemp("dump") / "00000000000000000007.log"
    segment.write_bytes(
        encode_batch(7, 5_000, records[:1], headers=(("owner_epoch", b"\0\1"),))
        + encode_batch(8, 5_001, records[1:])
    )
    printed = dump_share_group_state(segment)
    assert printed.count("isvalid: true") == 2, printed
    return list(RECORD_LINE.finditer(printed))


def decode_key(record_type: int) -> dict[str, Any]:
    # The topic id bytes(range(16)) in Kafka's notation.
    data = {"groupId": "group", "topicId": "AAECAwQFBgcICQoLDA0ODw", "partition": 3}
    return {"type": str(record_type), "data": data}


def make_batch(first: int, last: int, state: int, count: int) -> dict[str, int]:
    return {"firstOffset": first, "lastOffset": last, "deliveryState": state, "deliveryCount": count}


def test_kafka_reads_offset_time_and_headers_of_each_record(dumped_records: list[re.Match[str]]) -> None:
    places = [(line["offset"], line["time"], line["headers"]) for line in dumped_records]
    assert places == [("7", "5000", "owner_epoch"), ("8", "5001", ""), ("9", "5001", "")]


def test_kafka_reads_a_snapshot(dumped_records: list[re.Match[str]]) -> None:
    assert json.loads(dumped_records[0]["key"]) == decode_key(0)
    assert json.loads(dumped_records[0]["payload"]) == {
        "version": "0",
        "data": {
            "snapshotEpoch": 6,
            "stateEpoch": 1,
            "leaderEpoch": 2,
            "startOffset": 100,
            "deliveryCompleteCount": 10,
            "createTimestamp": 1000,
            "writeTimestamp": 1001,
            "stateBatches": [make_batch(100, 109, 0, 1), make_batch(110, 119, 2, 2)],
        },
    }


def test_kafka_reads_an_update(dumped_records: list[re.Match[str]]) -> None:
    assert json.loads(dumped_records[1]["key"]) == decode_key(1)
    assert json.loads(dumped_records[1]["payload"]) == {
        "version": "0",
        "data": {
            "snapshotEpoch": 6,
            "leaderEpoch": 2,
            "startOffset": 105,
            "stateBatches": [make_batch(105, 109, 4, 1)],
        },
    }


def test_kafka_reads_a_tombstone(dumped_records: list[re.Match[str]]) -> None:
    assert json.loads(dumped_records[2]["key"]) == decode_key(0)
    assert dumped_records[2]["payload"] == "<DELETE>"


def test_journal_dump_prints_the_lines_of_kafkas_tool(tmp_path: Path) -> None:
    """The dumps differ only in this project's tagged field, and in the journal position after each batch."""
    snapshot = ShareSnapshotValue(
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=3,
        start_offset=4,
        create_timestamp=5,
        write_timestamp=6,
        state_batches=pack([StateBatch(4, 5, 2, 1)]),
    )
    key = SharePartitionKey('gr"ü\\pp\n:e', bytes(range(16)), 3)
    snapshot_record, deleted = (encode_record(StateRecord(key, value)) for value in (snapshot, None))
    batches = [
        encode_batch(
            0, 5_000, [snapshot_record, deleted], headers=(("a", b""), ("b", b"\1")), leader_epoch=7
        ),
        encode_batch(2, 5_001, [(b"\0\x09unknown", b"type"), (snapshot_record[0], b"\0\0cut short")]),
    ]
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(b"".join(batches))
    printed = dump_share_group_state(segment)
    theirs = [line for line in printed.splitlines() if line.startswith(("baseOffset", "|"))]
    ours: list[str] = []
    position = 0
    for number, data in enumerate(batches):
        (batch,) = decode_batches(data)
        dumped = DumpedBatch("file", position, number, 0, batch)
        ours += [line.removesuffix(f" {position_text(dumped)}") for line in kafka_lines(dumped)]
        position += len(data)
    # The texts after "skipping." differ.
    assert theirs.pop().startswith(unreadable := ours.pop().partition(", skipping.")[0])
    assert "Error at offset 3" in unreadable
    assert ours == theirs
