"""Inspect and dump a journal that is complete, torn, damaged, or open in another process."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinator.errors import LogDamaged
from coordinator.log.journal import Journal
from coordinator.log.journal.disk import RealDisk
from coordinator.log.journal.dump_format import record_objects
from coordinator.log.journal.inspect import (
    REMOVALS_MAX,
    JournalReport,
    TornTail,
    dump_journal,
    inspect_journal,
    verify_journal,
)
from coordinator.log.journal.scan import segment_name
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.unit.log.environments import (
    STATE_PARTITIONS,
    RealDiskEnvironment,
    Records,
    SimulatedEnvironment,
    append_durably,
)
from tests.unit.log.journals import FIRST_POSITION, create_journal, last_used_segment, open_damaged

KEY = SharePartitionKey("grüppe", bytes(range(16)), 3)
SNAPSHOT = ShareSnapshotValue(
    snapshot_epoch=6,
    state_epoch=1,
    leader_epoch=2,
    start_offset=100,
    create_timestamp=1_000,
    write_timestamp=1_001,
    state_batches=pack([StateBatch(100, 109, 0, 1), StateBatch(110, 119, 2, 2)]),
    delivery_complete_count=10,
    leader_epoch_max=9,
)
UPDATE = ShareUpdateValue(snapshot_epoch=6, leader_epoch=2, start_offset=105, state_batches=b"")
KEY_JSON = {"groupId": "grüppe", "topicId": "AAECAwQFBgcICQoLDA0ODw", "partition": 3}
SNAPSHOT_JSON = {
    "snapshotEpoch": 6,
    "stateEpoch": 1,
    "leaderEpoch": 2,
    "startOffset": 100,
    "deliveryCompleteCount": 10,
    "createTimestamp": 1_000,
    "writeTimestamp": 1_001,
    "leaderEpochMax": 9,
    "stateBatches": [
        {"firstOffset": 100, "lastOffset": 109, "deliveryState": 0, "deliveryCount": 1},
        {"firstOffset": 110, "lastOffset": 119, "deliveryState": 2, "deliveryCount": 2},
    ],
}


def encode_records(*values: ShareSnapshotValue | ShareUpdateValue | None) -> Records:
    return [encode_record(StateRecord(KEY, value)) for value in values]


def write_journal(
    folder: Path, *appends: tuple[int, Records], together: Sequence[tuple[int, Records]] = ()
) -> RealDiskEnvironment:
    """Create a journal with `appends`, each in its own commit, and with `together`, which share commits."""
    world = RealDiskEnvironment(folder)

    async def append_all() -> None:
        journal = world.journal()
        await journal.open()
        for state_partition, appended in appends:
            await append_durably(journal, state_partition, appended)
        await asyncio.gather(*(append_durably(journal, *append) for append in together))
        await journal.close()

    world.run(append_all())
    return world


def inspect_simulated(world: SimulatedEnvironment) -> JournalReport:
    report: JournalReport = world.run(inspect_journal(world.disk()))
    return report


def test_verify_reports_segments_and_offsets_of_a_complete_journal(tmp_path: Path) -> None:
    write_journal(
        tmp_path,
        (0, encode_records(SNAPSHOT, UPDATE)),
        (4, encode_records(None)),
        (0, [(b"key", bytes(9_000))]),
    )
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    report = verify_journal(tmp_path)
    assert (report.folder, report.state_partitions, report.damage, report.torn_tail, report.is_changing) == (
        str(tmp_path),
        STATE_PARTITIONS,
        None,
        None,
        False,
    )
    assert (report.start_offsets, report.end_offsets) == ([0, 0, 0, 0, 0], [3, 0, 0, 0, 1])
    assert [(segment.file, segment.first_commit, segment.records) for segment in report.segments] == [
        (segment_name(1), 1, 3),
        (segment_name(2), 3, 1),
    ]
    assert [segment.commits for segment in report.segments] == [2, 1]
    assert [segment.used_bytes <= segment.size_bytes for segment in report.segments] == [True, True]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_verify_of_a_folder_without_a_journal_reports_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not ours")
    report = verify_journal(tmp_path)
    assert (report.segments, report.unused_files, report.damage) == ([], [], None)
    assert list(dump_journal(tmp_path)) == []


def test_torn_tail_is_not_reported_as_damage() -> None:
    world = SimulatedEnvironment()
    create_journal(world, 5, "killed")
    name, data = last_used_segment(world)
    world.storage.write_zeros(name, len(data) - 100, 100)
    report = inspect_simulated(world)
    last_frame = data.rfind(b"\xf5shc")
    assert report.torn_tail == TornTail(name, last_frame, 0)
    assert (report.damage, report.end_offsets[0]) == (None, 4)
    assert report.segments[-1].used_bytes == last_frame


@pytest.mark.parametrize("position", [FIRST_POSITION + 700, 0])
def test_verify_reports_the_same_damage_as_a_start(position: int) -> None:
    """Damage a commit or the header of a segment. The report includes the data before the damage."""
    world = SimulatedEnvironment()
    create_journal(world, 70, "closed")
    assert len(world.storage.files) > 3
    world.storage.flip_bit(segment_name(2), position)
    found = open_damaged(world)
    report = inspect_simulated(world)
    assert report.damage is not None
    assert str(report.damage) == str(found)
    assert report.damage.position <= position
    assert report.segments[0].records > 10
    in_second = report.segments[1].records if position else 0
    assert report.end_offsets[0] == report.segments[0].records + in_second


def test_dump_yields_records_before_the_damage_and_then_raises(tmp_path: Path) -> None:
    write_journal(tmp_path, *((0, encode_records(SNAPSHOT)) for _ in range(10)))
    whole = list(dump_journal(tmp_path))
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[whole[6].position] ^= 1
    path.write_bytes(data)
    dumped = dump_journal(tmp_path)
    assert [next(dumped) for _ in range(6)] == whole[:6]
    with pytest.raises(LogDamaged) as caught:
        next(dumped)
    assert caught.value.file == str(path)
    assert whole[5].position < caught.value.position < whole[6].position


def test_commit_that_was_repeated_in_the_next_segment_is_counted_once() -> None:
    world = SimulatedEnvironment()

    async def run_test() -> JournalReport:
        journal = world.journal()
        await journal.open()
        await append_durably(journal, 0, encode_records(SNAPSHOT))
        # The write succeeds and the sync fails, so the records exist in the first and in the second segment.
        world.storage.next_faults = ["sync"]
        await append_durably(journal, 0, encode_records(UPDATE))
        world.storage.kill()
        return await inspect_journal(world.disk())

    report = world.run(run_test())
    assert [(segment.commits, segment.records) for segment in report.segments] == [(1, 1), (1, 1)]


def test_dump_can_be_limited_to_state_partitions(tmp_path: Path) -> None:
    update = encode_records(UPDATE)
    write_journal(tmp_path, *((turn % 3, update) for turn in range(9)), together=[(1, update), (2, update)])
    dumped = list(dump_journal(tmp_path, state_partitions={1, 2}))
    assert [(each.commit, each.state_partition) for each in dumped] == [
        (2, 1),
        (3, 2),
        (5, 1),
        (6, 2),
        (8, 1),
        (9, 2),
        (10, 1),
        (10, 2),
    ]
    data = (tmp_path / segment_name(1)).read_bytes()
    assert [data[each.position :][:8] for each in dumped] == [
        each.batch.base_offset.to_bytes(8) for each in dumped
    ]


def test_journal_can_be_verified_while_it_is_written(tmp_path: Path) -> None:
    world = RealDiskEnvironment(tmp_path)

    async def run_test() -> None:
        journal = world.journal()
        await journal.open()
        writing = asyncio.ensure_future(keep_writing(journal))
        for _ in range(15):
            acknowledged = journal.end_offset(0)
            report = await asyncio.to_thread(verify_journal, tmp_path)
            assert report.damage is None
            assert report.torn_tail is None
            assert report.end_offsets[0] >= acknowledged
        writing.cancel()
        await asyncio.wait({writing})
        await journal.close()

    async def keep_writing(journal: Journal) -> None:
        while True:
            end_offset = await append_durably(journal, 0, [(b"key", bytes(700))]) + 1
            journal.prune(0, end_offset - 20)

    world.run(run_test())


class DiskWithRemovals(RealDisk):
    """A disk on which the first `removals` size requests fail, as if a segment had just been removed."""

    def __init__(self, folder: Path, removals: int) -> None:
        super().__init__(folder)
        self._removals_left = removals

    def size(self, name: str) -> int:
        if self._removals_left:
            self._removals_left -= 1
            raise FileNotFoundError(name)
        return super().size(name)


def test_verify_retries_if_segments_are_removed_meanwhile(tmp_path: Path) -> None:
    write_journal(tmp_path, (0, encode_records(SNAPSHOT, UPDATE)), (4, encode_records(None)))
    report = asyncio.run(inspect_journal(DiskWithRemovals(tmp_path, REMOVALS_MAX - 1)))
    assert report == verify_journal(tmp_path)
    with pytest.raises(FileNotFoundError):
        asyncio.run(inspect_journal(DiskWithRemovals(tmp_path, REMOVALS_MAX)))


def test_dump_has_decoded_keys_and_values(tmp_path: Path) -> None:
    write_journal(tmp_path, (1, encode_records(SNAPSHOT, UPDATE, None)))
    (dumped,) = dump_journal(tmp_path)
    snapshot, update, tombstone = record_objects(dumped)
    assert snapshot["value"]["data"] == SNAPSHOT_JSON
    assert update == {
        "file": segment_name(1),
        "position": dumped.position,
        "commit": 1,
        "state_partition": 1,
        "log_offset": 1,
        "timestamp_ms": 1,
        "headers": [],
        "key": {"type": 1, "data": KEY_JSON},
        "value": {
            "version": 0,
            "data": {"snapshotEpoch": 6, "leaderEpoch": 2, "startOffset": 105, "stateBatches": []},
        },
    }
    assert (tombstone["log_offset"], tombstone["key"]["type"], tombstone["value"]) == (2, 0, None)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"\0\x09abc", b"x", "unknown record type 9"),
        (b"\0", b"x", "no key or one without a record type"),
        (encode_record(StateRecord(KEY, None))[0], b"\0\x07abc", "value version 7"),
    ],
)
def test_dump_marks_records_that_cannot_be_decoded(
    tmp_path: Path, key: bytes, value: bytes, error: str
) -> None:
    write_journal(tmp_path, (0, [(key, value)]))
    assert verify_journal(tmp_path).damage is None
    (dumped,) = dump_journal(tmp_path)
    (shown,) = record_objects(dumped)
    assert error in shown["error"]
    assert shown["value"] is None
