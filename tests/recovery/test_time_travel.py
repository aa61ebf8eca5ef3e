"""Test an archive of months: old states are read from the nearest checkpoint, old records can be removed."""

import shutil
from pathlib import Path

import pytest

from coordinator.recovery.archive import archive
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.compaction import DAY_MS, remove_old_records
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.folders import open_folder
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.archive import FILES, ArchiveSource, read_commits
from coordinator.recovery.sources.base import LogCut
from coordinator.recovery.sources.checkpoints import CHECKPOINTS
from tests.benchmarks.archives import (
    BATCH_RECORDS,
    BEGAN_MS,
    RECORDS_A_DAY,
    SettableClock,
    measure_bytes_read,
    sum_file_sizes,
    write_archive_of_a_year,
    write_day,
)
from tests.recovery.logs_on_disk import read_log_offsets

LOCAL = LocalEngine(1)
# The time for writing an archive grows with the square of its days. The benchmark of the recovery jobs reads
# less than 2 % of an archive of a year, which is as many bytes.
DAYS = 150
TRAVEL_PART_MAX = 0.02 * 365 / DAYS


@pytest.fixture(scope="module")
def archive_of_months(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_archive_of_a_year(tmp_path_factory.mktemp("days"), DAYS)


def copy_without_checkpoints(folder: Path, copy: Path) -> ArchiveSource:
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / CHECKPOINTS, ignore_errors=True)
    return ArchiveSource(str(copy))


@pytest.mark.slow
@pytest.mark.parametrize("days_ago", [1, 60])
def test_old_state_is_read_from_few_days_of_150(
    archive_of_months: Path, days_ago: int, tmp_path: Path
) -> None:
    """The states are read as of noon of a day.

    The test compares the number of bytes that the kernel counts for this process.
    """
    source = ArchiveSource(str(archive_of_months))
    cut = LogCut(time_ms=BEGAN_MS + (DAYS - days_ago) * DAY_MS - DAY_MS // 2)
    found = rebuild(LOCAL, source, cut=cut)
    used = measure_bytes_read(lambda: rebuild(LOCAL, source, cut=cut))
    assert 0 < used <= TRAVEL_PART_MAX * sum_file_sizes(archive_of_months)
    assert (
        found.manifest["totals"]["records"]
        == (DAYS - days_ago) * RECORDS_A_DAY - RECORDS_A_DAY // 2 + BATCH_RECORDS
    )
    plain = copy_without_checkpoints(archive_of_months, tmp_path / "plain")
    assert found.states.equals(rebuild(LOCAL, plain, cut=cut).states)
    assert measure_bytes_read(lambda: rebuild(LOCAL, plain, cut=cut)) > 10 * used


@pytest.mark.slow
def test_retention_keeps_the_states_of_its_time_and_removes_older_records(
    archive_of_months: Path, tmp_path: Path
) -> None:
    kept_days, folder = 12, tmp_path / "archive"
    shutil.copytree(archive_of_months, folder)
    plain, source = (
        copy_without_checkpoints(archive_of_months, tmp_path / "plain"),
        ArchiveSource(str(folder)),
    )
    now_ms = BEGAN_MS + DAYS * DAY_MS
    before = sum_file_sizes(folder)
    removed = remove_old_records(folder, keep_ms=kept_days * DAY_MS, now_ms=now_ms)
    # One more day remains, because the states at the beginning of the first kept day need its snapshots.
    assert removed == (DAYS - kept_days - 1) * RECORDS_A_DAY
    assert remove_old_records(folder, keep_ms=kept_days * DAY_MS, now_ms=now_ms) == 0
    assert sum_file_sizes(folder) < 0.12 * before
    assert len(list((folder / FILES).iterdir())) == kept_days + 1
    assert len(read_commits(open_folder(folder))) == kept_days + 1
    first = (DAYS - kept_days) * RECORDS_A_DAY
    for end in (first, first + 700, DAYS * RECORDS_A_DAY):
        cut = LogCut({0: end})
        kept = rebuild(LOCAL, source, cut=cut)
        assert kept.states.equals(rebuild(LOCAL, plain, cut=cut).states), end
        assert kept.manifest["doubtful_partitions"] == []
    assert rebuild(LOCAL, source, cut=LogCut({0: first - 1})).manifest["doubtful_partitions"] == [0]
    # The audit has the same findings as for a log that was pruned to the same log offset.
    checks = set(audit(LOCAL, source, AuditOptions()).findings.column("check").to_pylist())
    assert checks <= set(audit(LOCAL, plain, AuditOptions()).findings.column("check").to_pylist()) | {"K1b"}
    # The archive is continued.
    clock = SettableClock()
    clock.ms = now_ms + DAY_MS
    done = archive(write_day(archive_of_months.parent / "log", DAYS), folder, clock=clock)  # type: ignore[arg-type]
    assert (done.records, done.is_whole) == (RECORDS_A_DAY, True)
    assert read_log_offsets(source)[0][-1] == (DAYS + 1) * RECORDS_A_DAY - 1


def test_nothing_is_removed_without_state_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    for day in range(2):
        archive(write_day(tmp_path / "log", day), folder)
    assert remove_old_records(folder, keep_ms=1, now_ms=BEGAN_MS * 2) == 0
    assert len(read_log_offsets(ArchiveSource(str(folder)))[0]) == 2 * RECORDS_A_DAY
