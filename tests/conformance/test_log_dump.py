"""Read encoded state records with Kafka's dump tool, and compare its output with the journal dump."""

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.log.journal.dump_format import record_objects
from coordinator.log.journal.inspect import DumpedBatch
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import decode_batches, encode_batch
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.kafka.log_dump import dump_share_group_state

pytestmark = pytest.mark.broker


def decode_dump_lines(printed: str) -> list[dict[str, Any]]:
    """Return the records that Kafka's tool printed; a record that the tool cannot decode has no key."""
    found = []
    for line in printed.splitlines():
        if not line.startswith("|"):
            continue
        head, _, content = line.partition(" key: ")
        words = head.split()
        headers = head.partition("headerKeys: [")[2].rstrip("]").split(",")
        record: dict[str, Any] = {
            "log_offset": int(words[2]),
            "timestamp_ms": int(words[4]),
            "headers": [name for name in headers if name],
            "key": None,
            "value": None,
        }
        if content.startswith("{"):
            key, _, payload = content.partition(" payload: ")
            record["key"] = json.loads(key)
            record["value"] = None if payload == "<DELETE>" else json.loads(payload)
        found.append(record)
    return found


def test_journal_dump_decodes_records_as_kafkas_tool_does(tmp_path: Path) -> None:
    """The dumps differ only in this project's tagged field, and in the type of two numbers."""
    snapshot = ShareSnapshotValue(
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=3,
        start_offset=4,
        create_timestamp=5,
        write_timestamp=6,
        state_batches=pack([StateBatch(4, 5, 2, 1), StateBatch(6, 9, 0, 2)]),
        delivery_complete_count=2,
        # A tagged field of this project that Kafka does not know.
        leader_epoch_max=9,
    )
    update = ShareUpdateValue(
        snapshot_epoch=6, leader_epoch=2, start_offset=105, state_batches=pack([StateBatch(105, 109, 4, 1)])
    )
    key = SharePartitionKey('gr"ü\\pp\n:e', bytes(range(16)), 3)
    snapshot_record, update_record, deleted = (
        encode_record(StateRecord(key, value)) for value in (snapshot, update, None)
    )
    batches = [
        encode_batch(
            0,
            5_000,
            [snapshot_record, update_record, deleted],
            headers=(("a", b""), ("b", b"\1")),
            leader_epoch=7,
        ),
        encode_batch(3, 5_001, [(b"\0\x09unknown", b"type"), (snapshot_record[0], b"\0\0cut short")]),
    ]
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(b"".join(batches))
    theirs = decode_dump_lines(dump_share_group_state(segment))
    ours: list[dict[str, Any]] = []
    for data in batches:
        (batch,) = decode_batches(data)
        ours += record_objects(DumpedBatch("file", 0, 1, 0, batch))
    assert ours[0]["value"]["data"].pop("leaderEpochMax") == 9
    for shown in ours:
        if shown["key"] is not None:
            shown["key"]["type"] = str(shown["key"]["type"])
        if shown["value"] is not None:
            shown["value"]["version"] = str(shown["value"]["version"])
    # Kafka's tool prints no key for a value that it cannot decode.
    assert "does not parse" in ours[4]["error"]
    ours[4]["key"] = None
    names = ("log_offset", "timestamp_ms", "headers", "key", "value")
    assert [{name: shown[name] for name in names} for shown in ours] == [
        {name: shown[name] for name in names} for shown in theirs
    ]
    assert len(ours) == 5
