"""Test damaged logs: intact parts are read, and share-partitions that may lack updates are reported."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from coordinator.log.journal import layout
from coordinator.log.journal.scan import segment_number
from coordinator.recovery.archive import archive
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.records import Records
from coordinator.recovery.sources.archive import ArchiveSource
from coordinator.recovery.sources.base import LogCut, LogRange, Source
from coordinator.recovery.sources.checkpoints import CHECKPOINTS
from coordinator.recovery.sources.journal import JournalSource
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.state_checkpoints import checkpoint_states
from coordinator.recovery.verdict import RecoveryStatus
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import decode_batches
from protocol.routing import state_partition as routed_to
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, decode_record, encode_record
from tests.recovery.log_strategies import comparable_rows, sort_by_key
from tests.recovery.logs_on_disk import TOPIC, encode_batches, write_journal, write_segments
from tests.unit.cli.command_line import CommandLine

ALONE = LocalEngine(1)
PARTITIONS = 4
KEYS = [SharePartitionKey(f"group-{n % 5}", bytes([n + 1]) * 16, n) for n in range(24)]


def make_records(keys: list[SharePartitionKey], rounds: int) -> list[tuple[bytes, bytes | None]]:
    """Return `rounds` records of each share-partition: a snapshot, then updates.

    The last record is a snapshot for half of the share-partitions.
    """
    found = []
    for number in range(rounds):
        for place, key in enumerate(keys):
            batches = pack([StateBatch(number * 10, number * 10 + 3, 2, 1)])
            value: ShareSnapshotValue | ShareUpdateValue = ShareUpdateValue(0, 1, -1, batches)
            if not number:
                value = ShareSnapshotValue(0, 1, 1, 0, 5, 5, batches)
            elif number == rounds - 1 and place % 2:
                value = ShareSnapshotValue(1, 1, 1, 0, 5, 5, batches)
            found.append(encode_record(StateRecord(key, value)))
    return found


def keys_by_partition() -> dict[int, list[SharePartitionKey]]:
    return {
        number: [key for key in KEYS if routed_to(key, PARTITIONS) == number] for number in range(PARTITIONS)
    }


def write_journal_of_groups(folder: Path, rounds: int = 12) -> Path:
    write_journal(folder, {p: make_records(keys, rounds) for p, keys in keys_by_partition().items()})
    return folder


@pytest.fixture
def journal_source(tmp_path: Path) -> JournalSource:
    return JournalSource(str(write_journal_of_groups(tmp_path / "journal")))


@pytest.fixture
def segment_source(tmp_path: Path) -> SegmentSource:
    for number, keys in keys_by_partition().items():
        write_segments(
            tmp_path / "disk" / f"{TOPIC}-{number}", encode_batches(make_records(keys, 12)), batches_in_file=5
        )
    return SegmentSource(str(tmp_path / "disk"))


def rebuild_rows_and_manifest(source: Source) -> tuple[dict[str, Any], dict[str, Any]]:
    run = rebuild(ALONE, source)
    rows = {
        f"{row['group_id']}:{row['topic_id']}:{row['partition']}": row
        for row in comparable_rows(sort_by_key(run.states.to_pylist()))
    }
    return rows, run.manifest


def flip_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def written_files(folder: str, pattern: str) -> list[Path]:
    return sorted(path for path in Path(folder).rglob(pattern) if path.read_bytes().strip(b"\0"))


@pytest.mark.parametrize("kind", ["journal", "segments"])
def test_states_not_reported_as_affected_equal_states_of_undamaged_log(
    kind: str, journal_source: JournalSource, segment_source: SegmentSource
) -> None:
    source: Source = {"journal": journal_source, "segments": segment_source}[kind]
    whole, manifest = rebuild_rows_and_manifest(source)
    assert (manifest["damages"], manifest["affected"]) == ([], [])
    random = Random(7)
    files = written_files(source.folder, "*.journal" if kind == "journal" else "*.log")  # type: ignore[attr-defined]
    found_damage = 0
    for _ in range(40):
        path = random.choice(files)
        before = path.read_bytes()
        flip_byte(path, random.randrange(len(before.rstrip(b"\0"))))
        found, manifest = rebuild_rows_and_manifest(source)
        path.write_bytes(before)
        affected = set(manifest["affected"])
        found_damage += bool(manifest["damages"])
        unnamed = {key: row for key, row in found.items() if key not in affected}
        assert {key: whole[key] for key in unnamed} == unnamed
        lost = set(whole) - set(found)
        # A share-partition without any remaining record cannot be named.
        assert not lost or manifest["damages"]
    assert found_damage >= 30


def segment_frames(path: Path) -> list[tuple[int, layout.Frame]]:
    """Return the frames of a journal segment."""
    data = memoryview(path.read_bytes())
    number = segment_number(path.name)
    assert number is not None
    position, found = layout.first_position(PARTITIONS), []
    while (frame := layout.decode_frame_at(data, position, number, position)) is not None:
        found.append((position, frame))
        position = frame.end
    return found


def test_damaged_journal_names_exactly_the_affected_share_partitions(
    journal_source: JournalSource,
) -> None:
    path = written_files(journal_source.folder, "*.journal")[0]
    position, frame = segment_frames(path)[12]
    ((state_partition, batch),) = layout.decode_entries(frame)
    lost = set()
    for decoded in decode_batches(batch):
        for each in decoded.records:
            record = decode_record(each.key, each.value)
            assert record is not None
            lost.add(str(record.key))
    # Damage the last value of the batch.
    flip_byte(path, position + layout.HEAD_BYTES + 6 + len(batch) - 10)
    run = rebuild(ALONE, journal_source)
    latest = {
        f"{r['group_id']}:{r['topic_id']}:{r['partition']}": r["needed_from"] for r in run.states.to_pylist()
    }
    (damage,) = run.manifest["damages"]
    assert (damage["state_partition"], damage["last"] - damage["first"] + 1) == (state_partition, 5)
    expected = {key for key in lost if latest[key] <= damage["last"]}
    assert set(run.manifest["affected"]) == expected
    assert 0 < len(expected) < 5
    found = audit(ALONE, journal_source, AuditOptions())
    named = {
        f"{each.group_id}:{each.topic_id}:{each.partition}": each.status
        for group in found.verdict.groups
        for each in group.affected
        if "P4" in each.checks
    }
    assert named == dict.fromkeys(expected, RecoveryStatus.LOST)
    assert found.exit_code == 2
    assert found.manifest["totals"]["records"] == len(KEYS) * 12 - 5
    assert "P2" not in found.findings.column("check").to_pylist()
    for end in (damage["first"], damage["first"] + 1):
        cut = LogCut({state_partition: end})
        assert len(rebuild(ALONE, journal_source, cut=cut).manifest["damages"]) == end - damage["first"]


def test_invalid_batches_of_valid_frames_are_reported_for_each_state_partition(
    journal_source: JournalSource,
) -> None:
    path = written_files(journal_source.folder, "*.journal")[0]
    number, data = segment_number(path.name) or 0, bytearray(path.read_bytes())
    lost = {}
    for position, frame in segment_frames(path)[3::10]:
        ((state_partition, batch),) = layout.decode_entries(frame)
        entries = bytearray(frame.entries)
        entries[-10] ^= 1
        head = (number, position, frame.commit, frame.durable, frame.oldest)
        data[position : frame.end] = layout.encode_frame(*head, [entries])
        first = int.from_bytes(batch[:8])
        lost.setdefault(state_partition, []).append((first, first + 4))
    path.write_bytes(data)
    found: dict[int, list[tuple[int, int]]] = {}
    manifest = rebuild(ALONE, journal_source).manifest
    for each in manifest["damages"]:
        found.setdefault(each["state_partition"], []).append((each["first"], each["last"]))
    assert len(lost) > 1
    assert found == lost
    assert manifest["totals"]["records"] == len(KEYS) * 12 - 5 * len(manifest["damages"])


@pytest.mark.parametrize("at", ["head", "header"])
def test_frame_with_damaged_head_is_skipped(at: str, journal_source: JournalSource) -> None:
    whole, _ = rebuild_rows_and_manifest(journal_source)
    first, *_ = files = written_files(journal_source.folder, "*.journal")
    assert len(files) == 1
    position = segment_frames(first)[3][0] + 8 if at == "head" else 20
    flip_byte(first, position)
    if at == "header":
        # The number of state partitions is unknown without the header.
        from coordinator.errors import LogDamaged

        with pytest.raises(LogDamaged):
            rebuild(ALONE, journal_source)
        return
    found, manifest = rebuild_rows_and_manifest(journal_source)
    # The frame's header is lost, but its record batches are intact.
    assert (found, manifest["damages"]) == (whole, [])
    assert "damaged" in manifest["notes"][0]


def test_incomplete_last_write_is_noted(journal_source: JournalSource) -> None:
    path = written_files(journal_source.folder, "*.journal")[-1]
    position, frame = segment_frames(path)[-1]
    data = bytearray(path.read_bytes())
    middle = (position + frame.end) // 2
    data[middle : frame.end] = bytes(frame.end - middle)
    path.write_bytes(data)
    plan = journal_source.plan(LogCut())
    assert any("an interrupted write at byte" in note for note in plan.notes)


def lose_journal_frame(folder: Path) -> Source:
    """Damage a frame of a journal."""
    path = written_files(str(write_journal_of_groups(folder)), "*.journal")[0]
    position, _ = segment_frames(path)[12]
    flip_byte(path, position + 100)
    return JournalSource(str(path.parent))


def lose_journal_segment(folder: Path) -> Source:
    """Delete a segment in the middle of a journal."""
    files = written_files(str(write_journal_of_groups(folder, rounds=60)), "*.journal")
    assert len(files) > 2
    files[1].unlink()
    return JournalSource(str(files[0].parent))


def lose_topic_segment(folder: Path) -> Source:
    """Delete a segment in the middle of a state partition of a topic."""
    for number, keys in keys_by_partition().items():
        batches = encode_batches(make_records(keys, 12))
        files = write_segments(folder / f"{TOPIC}-{number}", batches, batches_in_file=3)
    files[1].unlink()
    return SegmentSource(str(folder))


def archive_of_damaged_log(folder: Path) -> Source:
    """Archive a journal that lacks a segment."""
    found = archive(lose_journal_segment(folder / "journal"), folder / "archive")
    assert not found.is_whole
    return ArchiveSource(str(folder / "archive"))


def checkpointed_archive_of_damaged_log(folder: Path) -> Source:
    """Archive a journal that lacks a segment, and store the states after the gap."""
    source = archive_of_damaged_log(folder)
    assert checkpoint_states(ALONE, folder / "archive", interval_ms=1, now_ms=1)
    return source


def archive_with_checkpoint_of_early_release(folder: Path) -> Source:
    """Archive a journal that lacks a segment; the state checkpoint does not say that it lacks records."""
    source = checkpointed_archive_of_damaged_log(folder)
    (path,) = (folder / "archive" / CHECKPOINTS).glob("*.json")
    said = json.loads(path.read_bytes())
    for part in said["parts"]:
        del part["damages"]
    path.write_text(json.dumps(said))
    return source


class JournalWithoutEnd(JournalSource):
    """A journal whose last three records of state partition 1 cannot be read."""

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Read the other records."""
        lost_from = self.plan(LogCut()).ends[1] - 3
        for records in super().read(log_range):
            if records.state_partition == 1:
                yield records.select_offsets(0, lost_from)
            else:
                yield records


def archive_without_end(folder: Path) -> Source:
    """Archive a journal without its last records, store the states, and archive the journal again."""
    write_journal_of_groups(folder / "journal")
    for _ in range(2):
        archive(JournalWithoutEnd(str(folder / "journal")), folder / "archive")
        checkpoint_states(ALONE, folder / "archive", interval_ms=1, now_ms=1)
    return ArchiveSource(str(folder / "archive"))


@pytest.mark.parametrize(
    ("lose_records", "check"),
    [
        (lose_journal_frame, "P4"),
        (lose_journal_segment, "P4"),
        (lose_topic_segment, "P2"),
        (archive_of_damaged_log, "P2"),
        (checkpointed_archive_of_damaged_log, "P2"),
        (archive_with_checkpoint_of_early_release, "P2"),
        (archive_without_end, "P2"),
    ],
)
def test_every_job_reports_lost_records_and_restores_the_rest(
    lose_records: Callable[[Path], Source], check: str, share_coordinator: CommandLine, tmp_path: Path
) -> None:
    source = lose_records(tmp_path / "lost")
    target = f"journal:{tmp_path / 'restored'}"
    command = (
        *("recovery", "rewrite", "--from", source.text, "--to", target),
        *("--execute", "--engine", "local"),
    )
    said = share_coordinator(*command[:-3], "--engine", "local")
    assert said.exit_code == 1
    said = share_coordinator(*command)
    assert said.exit_code == 1
    assert "may lack updates" in said.err
    said = share_coordinator(*command, "--incomplete")
    assert said.exit_code == 0, said.err
    assert "may lack updates: group-" in said.err + said.out
    assert (
        rebuild_rows_and_manifest(JournalSource(str(tmp_path / "restored")))[0].keys()
        == rebuild_rows_and_manifest(source)[0].keys()
    )
    said = share_coordinator("recovery", "rebuild", "--from", source.text, "--engine", "local")
    assert said.exit_code == 1
    assert "are lost" in said.err
    found = audit(ALONE, source, AuditOptions())
    assert {"P2", "P4"} & set(found.findings.column("check").to_pylist()) == {check}
    assert found.exit_code == 2
    manifest = rebuild_rows_and_manifest(source)[1]
    damages = manifest["damages"]
    assert found.manifest["damages"] == damages
    said = share_coordinator(
        "recovery", "explain", "--from", source.text, *manifest["affected"][0].split(":")
    )
    assert (said.exit_code, "are lost" in said.err) == (0, True)
    # Another archive restores the records only if it has them.
    if isinstance(source, ArchiveSource):
        copy, (lost, *_) = source.as_log_copy(), damages
        assert not copy.contains_offsets(lost["state_partition"], lost["first"], lost["last"])
        assert copy.contains_offsets(lost["state_partition"], 0, lost["first"] - 1)
