"""Test that this release reads and continues an archive and rebuild results of an earlier release.

To record a new format, create its directory and run `python -m tests.recovery.test_golden_results DIRECTORY`.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq

from coordinator.recovery.archive import archive
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.manifest import MANIFEST
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.archive import COMMITS, FILES, ArchiveSource
from coordinator.recovery.sources.segments import SegmentSource
from tests.manual_clock import ManualClock
from tests.recovery.log_strategies import comparable_rows, sort_by_key
from tests.recovery.logs_on_disk import (
    TOPIC,
    encode_batches,
    load_expected_states,
    make_varied_records,
    read_log_offsets,
    write_segments,
)

GOLDEN = Path(__file__).parents[1] / "golden"
ARCHIVE, RESULTS = "archive-1", "rebuild-1"
RECORDS, RECORDS_LATER, COMMITTED = 60, 90, (20, 60)
LOCAL = LocalEngine(1)

CLOCK = ManualClock(1_700_000_000_000)


def write_log(folder: Path, count: int) -> SegmentSource:
    """Write the first records of the log that the earlier release archived."""
    shutil.rmtree(folder, ignore_errors=True)
    write_segments(folder / f"{TOPIC}-0", encode_batches(make_varied_records(count), size=5))
    return SegmentSource(str(folder))


def write_archive(log: Path, folder: Path) -> None:
    for count in COMMITTED:
        archive(write_log(log, count), folder, clock=CLOCK)


def read_commits(folder: Path) -> list[dict[str, object]]:
    """Return an archive's commit files, without the path of its source and the random parts of file names."""
    found = []
    for path in sorted((folder / COMMITS).iterdir()):
        commit = json.loads(path.read_text("utf-8"))
        assert commit.pop("source").startswith("segments:")
        for piece in commit["pieces"]:
            piece["file"] = remove_random_part(piece["file"])
        found.append({"file": path.name, **commit})
    return found


def remove_random_part(name: str) -> str:
    return re.sub("-[0-9a-f]{32}", "", name)


def test_archive_format_is_unchanged(tmp_path: Path) -> None:
    write_archive(tmp_path / "log", tmp_path / "archive")
    assert read_commits(tmp_path / "archive") == read_commits(GOLDEN / ARCHIVE)
    files = [sorted((folder / FILES).iterdir()) for folder in (tmp_path / "archive", GOLDEN / ARCHIVE)]
    for one, other in zip(*files, strict=True):
        assert remove_random_part(one.name) == other.name
        written, recorded = pq.read_table(one), pq.read_table(other)
        assert written.schema.equals(recorded.schema)
        assert written.equals(recorded)


def test_archive_of_earlier_release_is_read_and_continued(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    shutil.copytree(GOLDEN / ARCHIVE, folder)
    source = ArchiveSource(str(folder))
    assert read_log_offsets(source) == {0: [*range(RECORDS)]}
    states = rebuild(LOCAL, source).states
    assert comparable_rows(sort_by_key(states.to_pylist())) == load_expected_states(
        {0: encode_batches(make_varied_records(RECORDS), size=5)}
    )
    done = archive(write_log(tmp_path / "log", RECORDS_LATER), folder, clock=CLOCK)
    assert (done.commit, done.records, done.is_whole) == (len(COMMITTED) + 1, RECORDS_LATER - RECORDS, True)
    assert read_log_offsets(source) == {0: [*range(RECORDS_LATER)]}


def test_results_format_is_unchanged(tmp_path: Path) -> None:
    rebuild(
        LOCAL,
        write_log(tmp_path / "log", RECORDS),
        to=tmp_path / "results",
        clock=CLOCK,
    )
    written, recorded = (
        json.loads((folder / MANIFEST).read_text("utf-8"))
        for folder in (tmp_path / "results", GOLDEN / RESULTS)
    )
    assert list(written) == list(recorded)
    for name in ("format", "job", "at", "totals", "partitions", "files"):
        assert written[name] == recorded[name]
    for name in recorded["files"]:
        one, other = (pq.read_table(folder / name) for folder in (tmp_path / "results", GOLDEN / RESULTS))
        assert one.equals(other)


def test_results_of_earlier_release_are_a_baseline(tmp_path: Path) -> None:
    baseline = Baseline.read(GOLDEN / RESULTS)

    def lost_state_findings(count: int) -> list[dict[str, object]]:
        found = audit(
            LOCAL, write_log(tmp_path / "log", count), AuditOptions(baseline=baseline)
        ).findings.to_pylist()
        return [finding for finding in found if finding["check"] == "X3"]

    assert lost_state_findings(RECORDS) == []
    assert lost_state_findings(RECORDS // 2)


if __name__ == "__main__":
    target = GOLDEN / sys.argv[1]
    if sys.argv[1].startswith("archive"):
        write_archive(Path("log"), target)
    else:
        rebuild(LOCAL, write_log(Path("log"), RECORDS), to=target, clock=CLOCK)
    shutil.rmtree("log")
