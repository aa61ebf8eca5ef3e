"""Test that an archive keeps copied records, ignores files without a commit, and records gaps."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import ConfigError, LogDamaged, LogError
from coordinator.log.claims import encode_claim
from coordinator.recovery.archive import archive
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.archive import ArchiveSource
from coordinator.recovery.sources.base import LogCut
from coordinator.recovery.sources.journal import JournalSource
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.state_checkpoints import checkpoint_states
from tests.recovery.log_strategies import (
    LogEntry,
    comparable_rows,
    encode_log,
    fold_with_shard_core,
    shard_core_rows,
    sort_by_key,
)
from tests.recovery.logs_on_disk import (
    TOPIC,
    encode_batches,
    load_expected_states,
    make_varied_records,
    read_log_offsets,
    write_journal,
    write_segments,
)
from tests.unit.cli.command_line import CommandLine

LOCAL = LocalEngine(1)


class GrowingPartition:
    """A partition on disk, which grows and is pruned."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = SegmentSource(str(folder))
        self.records = make_varied_records(900)
        self.end = 0

    def append_records(self, count: int) -> None:
        write_segments(
            self.folder / f"{TOPIC}-0",
            encode_batches(self.records[self.end : self.end + count], base_offset=self.end, size=5),
        )
        self.end += count

    def prune(self) -> None:
        """Drop all but the last segment."""
        for path in sorted((self.folder / f"{TOPIC}-0").glob("*.log"))[:-1]:
            path.unlink()


@pytest.fixture
def growing_log(tmp_path: Path) -> GrowingPartition:
    return GrowingPartition(tmp_path / "disk")


def rebuild_state_rows(folder: Path, cut: LogCut | None = None) -> list[dict[str, object]]:
    run = rebuild(LOCAL, ArchiveSource(str(folder)), cut=cut)
    return comparable_rows(sort_by_key(run.states.to_pylist()))


def test_each_run_copies_new_records_and_pruning_does_not_affect_copies(
    growing_log: GrowingPartition, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    for number in (1, 2, 3):
        growing_log.append_records(300)
        run = archive(growing_log.source, folder)
        assert (run.commit, run.records, run.ends, run.gaps) == (number, 300, {0: 300 * number}, {})
        growing_log.prune()
    assert archive(growing_log.source, folder).records == 0
    assert read_log_offsets(ArchiveSource(str(folder))) == {0: list(range(900))}
    whole = {0: encode_batches(growing_log.records, size=5)}
    assert rebuild_state_rows(folder) == load_expected_states(whole)
    for end in (0, 1, 250, 300, 777):
        assert rebuild_state_rows(folder, LogCut({0: end})) == load_expected_states(whole, before={0: end})
    assert rebuild_state_rows(folder, LogCut(time_ms=1_039)) == load_expected_states(whole, before={0: 200})


def test_files_of_killed_run_are_ignored(growing_log: GrowingPartition, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    growing_log.append_records(100)
    archive(growing_log.source, folder)
    growing_log.append_records(100)
    archive(growing_log.source, folder)
    # Simulate a machine failure before the commit, during the write of a file.
    (folder / "commits" / "00000002.json").unlink()
    (torn,) = (folder / "records").glob("00000002-*")
    torn.write_bytes(torn.read_bytes()[:100])
    abandoned, in_progress = (
        folder / "commits" / f".00000002.json.{number:032x}.unfinished" for number in range(2)
    )
    for path in (abandoned, in_progress):
        path.write_text("{")
    os.utime(abandoned, (0, path.stat().st_mtime - 7_200))
    assert read_log_offsets(ArchiveSource(str(folder))) == {0: list(range(100))}
    assert archive(growing_log.source, folder).records == 100
    assert (abandoned.exists(), in_progress.exists()) == (False, True)
    assert read_log_offsets(ArchiveSource(str(folder))) == {0: list(range(200))}


def test_archive_with_a_gap_is_read_from_the_end_of_the_gap(
    growing_log: GrowingPartition, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    growing_log.append_records(100)
    archive(growing_log.source, folder)
    growing_log.append_records(100)
    growing_log.append_records(100)
    growing_log.prune()
    assert archive(growing_log.source, folder).gaps == {0: (100, 200)}
    growing_log.append_records(100)
    assert archive(growing_log.source, folder).gaps == {}
    source = ArchiveSource(str(folder))
    assert read_log_offsets(source) == {0: list(range(200, 400))}
    assert read_log_offsets(source, LogCut({0: 90})) == {0: list(range(90))}
    # For a cut within the gap, the last known state is the state before the gap.
    assert read_log_offsets(source, LogCut({0: 150})) == {0: list(range(100))}
    assert "pruned" in rebuild(LOCAL, source, cut=LogCut({0: 250})).manifest["notes"][0]
    assert rebuild(LOCAL, source, cut=LogCut({0: 300})).manifest["notes"] == []


def test_archive_job_refuses_different_log(growing_log: GrowingPartition, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    write_journal(tmp_path / "journal", {0: make_varied_records(50)})
    archive(JournalSource(str(tmp_path / "journal")), folder)
    growing_log.append_records(10)
    with pytest.raises(ConfigError, match="neither a record nor an id of it is in both"):
        archive(growing_log.source, folder)
    shutil.rmtree(tmp_path / "journal")
    write_journal(tmp_path / "journal", {0: make_varied_records(20)})
    with pytest.raises(LogError, match="ends at 20, and records up to 50 were copied"):
        archive(JournalSource(str(tmp_path / "journal")), folder)
    # Create another log with the same name and length.
    shutil.rmtree(tmp_path / "journal")
    write_journal(tmp_path / "journal", {0: make_varied_records(60, seed=9)})
    with pytest.raises(ConfigError, match="log offset 49 of state partition 0 is another record"):
        archive(JournalSource(str(tmp_path / "journal")), folder)
    assert read_log_offsets(ArchiveSource(str(folder))) == {0: list(range(50))}


def test_same_log_under_other_name_is_accepted(growing_log: GrowingPartition, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    growing_log.append_records(100)
    archive(growing_log.source, folder)
    growing_log.append_records(100)
    (tmp_path / "moved").symlink_to(growing_log.folder)
    for text in (f"{growing_log.folder}/", str(tmp_path / "moved")):
        growing_log.append_records(100)
        assert archive(SegmentSource(text), folder).is_whole
    assert read_log_offsets(ArchiveSource(str(folder))) == {0: list(range(400))}


def test_log_with_other_ids_or_unrecognizable_log_is_refused(
    growing_log: GrowingPartition, tmp_path: Path
) -> None:
    def write_identity(folder: Path, topic_id: str) -> None:
        (folder / "meta.properties").write_text("version=1\ncluster.id=cluster-1\n")
        (folder / f"{TOPIC}-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")

    folder = tmp_path / "archive"
    growing_log.append_records(100)
    write_identity(growing_log.folder, "first")
    archive(growing_log.source, folder)
    assert ArchiveSource(str(folder)).identity() == {"cluster_id": "cluster-1", "topic_id": "first"}
    write_identity(growing_log.folder, "second")
    with pytest.raises(ConfigError, match="its topic_id is first, not second"):
        archive(growing_log.source, folder)
    # The log has no ids, and is pruned beyond the copied records.
    (growing_log.folder / "meta.properties").unlink()
    (growing_log.folder / f"{TOPIC}-0" / "partition.metadata").unlink()
    growing_log.append_records(100)
    growing_log.append_records(100)
    growing_log.prune()
    growing_log.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="neither a record nor an id of it is in both"):
        archive(SegmentSource(str(tmp_path / "elsewhere")), folder)


def test_gap_and_damage_change_exit_code(
    share_coordinator: CommandLine, growing_log: GrowingPartition, tmp_path: Path
) -> None:
    command = ("recovery", "archive", "--from", growing_log.source.text, "--to", str(tmp_path / "archive"))
    growing_log.append_records(100)
    assert share_coordinator(*command).exit_code == 0
    growing_log.append_records(100)
    growing_log.append_records(100)
    growing_log.prune()
    result = share_coordinator(*command)
    assert (result.exit_code, "records 100 to 199 of state partition 0 were pruned" in result.err) == (
        1,
        True,
    )
    assert share_coordinator(*command).exit_code == 0
    growing_log.append_records(100)
    path = max((growing_log.folder / f"{TOPIC}-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    result = share_coordinator(*command)
    assert (result.exit_code, "log offsets 300 to 304" in result.err) == (1, True)


class OvertakenSource:
    """A source whose records another archive job copies while this job plans."""

    def __init__(self, source: SegmentSource, folder: Path | str) -> None:
        self._source = source
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        if name == "plan":
            archive(self._source, self._folder)
        return getattr(self._source, name)


def test_one_of_two_concurrent_runs_fails_and_each_record_is_copied_once(
    growing_log: GrowingPartition, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    for end in (10, 20):
        growing_log.append_records(10)
        with pytest.raises(LogError, match="another run is writing to"):
            archive(OvertakenSource(growing_log.source, folder), folder)  # type: ignore[arg-type]
        assert read_log_offsets(ArchiveSource(str(folder))) == {0: list(range(end))}


def test_damaged_archive_is_refused(growing_log: GrowingPartition, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    with pytest.raises(ConfigError, match="it has none"):
        ArchiveSource(str(folder)).plan(LogCut())
    for _ in range(2):
        growing_log.append_records(100)
        archive(growing_log.source, folder)
    (data,) = (folder / "records").glob("00000001-*")
    data.rename(folder / "aside")
    with pytest.raises(LogDamaged, match="parquet is damaged"):
        rebuild_state_rows(folder)
    (folder / "aside").rename(data)
    stored, states = data.read_bytes(), rebuild_state_rows(folder)
    # Without page checksums, some of these changed bytes would decode to other values.
    for at in range(4, len(stored) // 2, 29):
        data.write_bytes(stored[:at] + bytes([stored[at] ^ 4]) + stored[at + 1 :])
        with suppress(LogDamaged):
            assert rebuild_state_rows(folder) == states
    data.write_bytes(stored)
    (folder / "records" / "README").touch()
    archive(growing_log.source, folder)
    first = folder / "commits" / "00000001.json"
    first.write_text(first.read_text()[:-5])
    with pytest.raises(LogDamaged, match="it is no commit"):
        rebuild_state_rows(folder)
    first.unlink()
    with pytest.raises(LogDamaged, match="the commit is missing"):
        rebuild_state_rows(folder)


def test_old_state_is_read_from_previous_checkpoint(growing_log: GrowingPartition, tmp_path: Path) -> None:
    folder, day_ms = tmp_path / "archive", 86_400_000
    plain = tmp_path / "plain"
    for day in range(30):
        growing_log.append_records(30)
        archive(growing_log.source, folder)
        archive(growing_log.source, plain)
        assert checkpoint_states(LOCAL, folder, interval_ms=day_ms, now_ms=day * day_ms) == day + 1
        assert checkpoint_states(LOCAL, folder, interval_ms=day_ms, now_ms=day * day_ms + 1) is None
        growing_log.prune()
    source = ArchiveSource(str(folder), use_checkpoints=True)
    for end in (5, 30, 31, 455, 870, 899, 900):
        cut = LogCut({0: end})
        assert rebuild_state_rows(folder, cut) == rebuild_state_rows(plain, cut), end
        read = sum(each.records for each in source.plan(cut).ranges)
        assert read <= 30, end
        found, wanted = (rebuild(LOCAL, ArchiveSource(str(each)), cut=cut).states for each in (folder, plain))
        assert found.equals(wanted)
    # A cut by time uses the record times that the commits store for their files.
    assert rebuild_state_rows(folder, LogCut(time_ms=1_039)) == rebuild_state_rows(
        plain, LogCut(time_ms=1_039)
    )
    # An audit reads the records instead of checkpoints.
    assert sum(each.records for each in ArchiveSource(str(folder)).plan(LogCut()).ranges) == 900


def test_checkpoint_applies_fencing_of_several_owners(tmp_path: Path) -> None:
    entries = [LogEntry(*encode_claim(0, "one"), 1, 1)]
    entries += [LogEntry(key, value, 1, 2) for key, value in make_varied_records(40, seed=1)]
    entries.append(LogEntry(*encode_claim(0, "two"), 2, 3))
    entries += [
        LogEntry(key, value, 1 + n % 2, 4) for n, (key, value) in enumerate(make_varied_records(40, seed=2))
    ]
    entries += [
        LogEntry(key, value, 1 + n % 2, 5) for n, (key, value) in enumerate(make_varied_records(40, seed=3))
    ]
    batches = encode_log(entries)
    for count in (30, 60, 90, len(batches)):
        write_segments(tmp_path / "disk" / f"{TOPIC}-7", batches[:count])
        archive(SegmentSource(str(tmp_path / "disk")), tmp_path / "archive")
        checkpoint_states(LOCAL, tmp_path / "archive", interval_ms=1, now_ms=count)
    assert rebuild_state_rows(tmp_path / "archive") == shard_core_rows(fold_with_shard_core(batches))
