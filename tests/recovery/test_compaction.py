"""Test the compaction of an archive: fewer commits and larger row groups with equal contents."""

import re
import shutil
from pathlib import Path

import pytest

from coordinator.process.clock import cpu_seconds
from coordinator.recovery import compaction
from coordinator.recovery.archive import archive
from coordinator.recovery.compaction import DAY_MS, compact
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.folders import Folder, open_folder
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.archive import (
    FILES,
    ArchiveSource,
    Commit,
    read_commits,
)
from coordinator.recovery.sources.base import LogCut
from tests.benchmarks.archives import SettableClock, write_commits_of_a_year
from tests.recovery.logs_on_disk import read_log_offsets
from tests.recovery.test_archive import GrowingPartition

LOCAL = LocalEngine(1)
# The times of the commits in hours, over three days.
HOURS = (0, 1, 2, 26, 27, 28, 29, 51, 52, 53)


@pytest.fixture
def archive_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An archive of three days before and after compaction; a part of the log was never copied."""
    log, clock = GrowingPartition(tmp_path / "disk"), SettableClock()
    plain, compacted = tmp_path / "plain", tmp_path / "compacted"
    with monkeypatch.context() as without:
        without.setattr("coordinator.recovery.archive.compact", lambda folder, now_ms: 0)
        for number, hour in enumerate(HOURS):
            clock.ms = hour * DAY_MS // 24
            log.append_records(40)
            if number == 4:
                log.append_records(40)
                log.prune()
            archive(log.source, plain, clock=clock)  # type: ignore[arg-type]
            log.prune()
    shutil.copytree(plain, compacted)
    assert compact(open_folder(compacted), clock.ms) == 6
    return plain, compacted


def test_compacted_archive_has_same_contents(archive_folders: tuple[Path, Path]) -> None:
    plain, compacted = (ArchiveSource(str(folder)) for folder in archive_folders)
    commits = read_commits(open_folder(compacted.folder))
    # Compaction does not merge commits across the gap in the second day.
    assert [(commit.first, commit.number) for commit in commits] == [(1, 3), (4, 4), (5, 7), *OF_TODAY]
    assert [len(commit.pieces) for commit in commits] == [1, 1, 1, 1, 1, 1]
    for end in (1, 40, 119, 120, 160, 161, 199, 200, 201, 300, 319, 320, 440):
        cut = LogCut({0: end})
        one, other = plain.plan(cut), compacted.plan(cut)
        assert (one.starts, one.ends, one.whole_from) == (other.starts, other.ends, other.whole_from), end
        assert read_log_offsets(plain, cut) == read_log_offsets(compacted, cut), end
        assert rebuild(LOCAL, plain, cut=cut).states.equals(rebuild(LOCAL, compacted, cut=cut).states)
    late = LogCut(time_ms=1_050)
    assert read_log_offsets(plain, late) == read_log_offsets(compacted, late)


OF_TODAY: list[tuple[int, int]] = [(8, 8), (9, 9), (10, 10)]


def test_replaced_files_stay_until_next_compaction(archive_folders: tuple[Path, Path]) -> None:
    plain, compacted = archive_folders
    before = ArchiveSource(str(plain)).plan(LogCut())
    (compacted / FILES / "00000002-orphan-0.parquet").touch()
    assert read_offsets(compacted, before.ranges) == read_offsets(plain, before.ranges)
    assert compact(open_folder(compacted), 3 * DAY_MS) == 3
    names = sorted(path.name for path in (compacted / FILES).iterdir())
    assert [re.sub("[0-9a-f]{32}", "ID", name) for name in names[:3]] == [
        *("00000001-00000003-ID-0.parquet", "00000004-ID-0.parquet", "00000005-00000007-ID-0.parquet")
    ]
    assert not (compacted / "commits" / "00000001.json").exists()
    assert (compacted / "commits" / "00000004.json").exists()
    assert read_log_offsets(ArchiveSource(str(compacted))) == read_log_offsets(ArchiveSource(str(plain)))
    assert compact(open_folder(compacted), 3 * DAY_MS) == 0


def read_offsets(folder: Path, ranges: object) -> list[int]:
    source = ArchiveSource(str(folder))
    return [
        offset
        for each in ranges  # type: ignore[attr-defined]
        for records in source.read(each)
        for offset in records.log_offset.tolist()
    ]


def test_failed_compaction_changes_nothing(
    archive_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = archive_folders

    def raise_error(folder: Folder, commit: Commit) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as failing:
        failing.setattr(compaction, "write_commit", raise_error)
        with pytest.raises(OSError, match="disk full"):
            compact(open_folder(plain), 3 * DAY_MS)
    found = read_log_offsets(ArchiveSource(str(plain)))
    assert len(read_commits(open_folder(plain))) == len(HOURS)
    assert compact(open_folder(plain), 3 * DAY_MS) == 9
    assert read_log_offsets(ArchiveSource(str(plain))) == found


def test_run_compacts_previous_days(tmp_path: Path) -> None:
    log, clock = GrowingPartition(tmp_path / "disk"), SettableClock()
    for hour in (0, 1, 2, 25):
        clock.ms = hour * DAY_MS // 24
        log.append_records(40)
        archive(log.source, tmp_path / "archive", clock=clock)  # type: ignore[arg-type]
    commits = read_commits(open_folder(tmp_path / "archive"))
    assert [(commit.first, commit.number) for commit in commits] == [(1, 3), (4, 4)]
    log.append_records(10)
    assert archive(log.source, tmp_path / "archive", clock=clock).commit == 5  # type: ignore[arg-type]
    assert read_log_offsets(ArchiveSource(str(tmp_path / "archive"))) == {0: list(range(170))}


def test_a_year_of_commits_is_planned_in_seconds(tmp_path: Path) -> None:
    assert write_commits_of_a_year(tmp_path) > 100_000
    begun_s = cpu_seconds()
    plan = ArchiveSource(str(tmp_path)).plan(LogCut({3: 5_000_000}))
    assert cpu_seconds() - begun_s < 5
    assert (plan.starts[3], plan.ends[3], plan.ends[4]) == (0, 5_000_000, 10_022_400)
