"""Read encoded state records with Kafka's dump tool, and compare its output with the journal dump.

`tests/unit/log/test_inspect.py` has the expected text of the journal dump.
"""

from pathlib import Path

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


def test_journal_dump_prints_the_lines_of_kafkas_tool(tmp_path: Path) -> None:
    """The dumps differ only in this project's tagged field, and in the journal position after each batch."""
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
    printed = dump_share_group_state(segment)
    theirs = [line for line in printed.splitlines() if line.startswith(("baseOffset", "|"))]
    ours: list[str] = []
    position = 0
    for number, data in enumerate(batches):
        (batch,) = decode_batches(data)
        dumped = DumpedBatch("file", position, number, 0, batch)
        ours += [line.removesuffix(f" {position_text(dumped)}") for line in kafka_lines(dumped)]
        position += len(data)
    assert '"leaderEpochMax":9,' in ours[1]
    ours[1] = ours[1].replace('"leaderEpochMax":9,', "")
    # The texts after "skipping." differ.
    assert theirs.pop().startswith(unreadable := ours.pop().partition(", skipping.")[0])
    assert "Error at offset 4" in unreadable
    assert ours == theirs
    assert len(ours) == 6
