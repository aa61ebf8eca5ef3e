"""Test the log as a Spark stream: filters are pushed down, and a streamed archive has each record once."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, IsNotNull, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from coordinator.errors import ConfigError
from coordinator.recovery.archive import ArchiveWriter
from coordinator.recovery.archive_stream import CHECKPOINT, archive_stream
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.folders import open_folder
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.records import Records
from coordinator.recovery.sources.archive import FILES, ArchiveSource, Commit, read_commits
from coordinator.recovery.sources.base import LogCut, LogRange, PrunedError
from coordinator.recovery.sources.journal import JournalSource
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.sources.spark import (
    PUSHDOWN_SETTING,
    FilteringReader,
    StateLogReader,
    StateLogStreamReader,
    records_frame,
)
from tests.recovery.logs_on_disk import (
    TOPIC,
    encode_batches,
    make_varied_records,
    open_journal,
    read_log_offsets,
    write_journal,
    write_segments,
)
from tests.unit.log.environments import append_durably

if TYPE_CHECKING:
    from coordinator.recovery.engines.spark import SparkEngine

LOCAL = LocalEngine(1)
BATCH_RECORDS_MAX = 100


@pytest.fixture
def journal_source(tmp_path: Path) -> JournalSource:
    write_journal(
        tmp_path / "journal", {0: make_varied_records(200, seed=1), 2: make_varied_records(100, seed=2)}
    )
    return JournalSource(str(tmp_path / "journal"))


def append_records(journal: JournalSource, state_partition: int, count: int) -> None:
    async def append_to_journal() -> None:
        log = open_journal(Path(journal.folder))
        await log.open()
        await append_durably(log, state_partition, make_varied_records(count, seed=5))
        await log.close()

    asyncio.run(append_to_journal())


@pytest.fixture
def segment_source(tmp_path: Path) -> SegmentSource:
    for p in range(3):
        write_segments(
            tmp_path / "disk" / f"{TOPIC}-{p}", encode_batches(make_varied_records(400)), batches_in_file=10
        )
    return SegmentSource(str(tmp_path / "disk"))


def count_read_rows(
    reader: StateLogReader | StateLogStreamReader, partitions: list[object]
) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for each in partitions:
        for batch in reader.read(each):  # type: ignore[arg-type]
            for row in batch.to_pylist():
                found.setdefault(row["state_partition"], []).append(row["log_offset"])
    return found


@pytest.mark.parametrize(
    ("filters", "expected", "read_at_most"),
    [
        ([EqualTo(("state_partition",), 1)], {1: range(400)}, 1),
        ([In(("state_partition",), (0, 2)), IsNotNull(("log_offset",))], {0: range(400), 2: range(400)}, 2),
        (
            [
                GreaterThanOrEqual(("log_offset",), 100),
                LessThan(("log_offset",), 120),
                EqualTo(("state_partition",), 2),
            ],
            {2: range(100, 120)},
            1,
        ),
        ([LessThan(("timestamp_ms",), 1_002)], {p: range(14) for p in range(3)}, 3),
        ([EqualTo(("key",), b"x")], {p: range(400) for p in range(3)}, 3),
        ([EqualTo(("state_partition",), 9)], {}, 1),
    ],
)
def test_filters_skip_ranges_and_rows(
    filters: list[object], expected: dict[int, range], read_at_most: int, segment_source: SegmentSource
) -> None:
    reader = FilteringReader({"from": segment_source.text})
    # All filters are returned, so Spark applies them again.
    assert list(reader.pushFilters(filters)) == filters  # type: ignore[arg-type]
    partitions = reader.partitions()
    assert len(partitions) <= read_at_most
    assert count_read_rows(reader, partitions) == {p: list(offsets) for p, offsets in expected.items()}  # type: ignore[arg-type]


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_filters_of_query_reach_source(spark_engine: "SparkEngine", segment_source: SegmentSource) -> None:
    spark = spark_engine.spark
    frames = []
    for setting in ("true", "false"):
        spark.conf.set(PUSHDOWN_SETTING, setting)
        frames.append(records_frame(spark, segment_source).where("state_partition = 1"))
        assert [row.log_offset for row in frames[-1].orderBy("log_offset").collect()] == list(range(400))
        tasks = frames[-1].rdd.getNumPartitions()
        assert tasks == (1 if setting == "true" else 3)
    spark.conf.set(PUSHDOWN_SETTING, "true")


def test_stream_returns_records_between_two_offsets(journal_source: JournalSource) -> None:
    reader = StateLogStreamReader({"from": journal_source.text, "max_records": "30"})
    start = reader.initialOffset()
    assert start == {"0": 0, "1": 0, "2": 0, "3": 0}
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    first = reader.latestOffset(start, limit)
    assert first == {"0": 20, "1": 0, "2": 10, "3": 0}
    read = count_read_rows(reader, reader.partitions(start, first))  # type: ignore[arg-type]
    assert read == {0: list(range(20)), 2: list(range(10))}
    last = reader.latestOffset(first, ReadAllAvailable())
    assert last == {"0": 200, "1": 0, "2": 100, "3": 0}
    assert reader.latestOffset(last, limit) == last
    assert reader.partitions(last, last) == []
    reader.prepareForTriggerAvailableNow()
    append_records(journal_source, 0, 50)
    assert reader.latestOffset(last, ReadAllAvailable()) == last


def test_stream_of_segments_is_refused(segment_source: SegmentSource) -> None:
    with pytest.raises(ConfigError, match="for a stream"):
        StateLogStreamReader({"from": segment_source.text}).latestOffset({}, ReadAllAvailable())


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_streamed_archive_has_each_record_once(
    spark_engine: "SparkEngine", journal_source: JournalSource, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    source = ArchiveSource(str(folder))
    (done,) = archive_stream(spark_engine.spark, journal_source, folder)
    assert (done.commit, done.records, done.is_whole) == (1, 300, True)
    assert read_log_offsets(source) == {0: list(range(200)), 2: list(range(100))}
    append_records(journal_source, 0, 50)
    # Simulate a driver failure before its checkpoint: Spark repeats the micro-batch.
    shutil.rmtree(folder / CHECKPOINT)
    (done,) = archive_stream(spark_engine.spark, journal_source, folder)
    assert (done.commit, done.records, done.is_whole) == (2, 50, True)
    assert archive_stream(spark_engine.spark, journal_source, folder) == []
    assert read_log_offsets(source) == {0: list(range(250)), 2: list(range(100))}
    assert (
        rebuild(LOCAL, source)
        .states.select(["group_id", "start_offset", "state_batches"])
        .equals(rebuild(LOCAL, journal_source).states.select(["group_id", "start_offset", "state_batches"]))
    )
    shutil.rmtree(journal_source.folder)
    write_journal(Path(journal_source.folder), {0: make_varied_records(300, seed=8)})
    shutil.rmtree(folder / CHECKPOINT)
    with pytest.raises(ConfigError, match="is another record"):
        archive_stream(spark_engine.spark, journal_source, folder)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_driver_that_ends_around_commit_loses_and_repeats_nothing(
    spark_engine: "SparkEngine",
    journal_source: JournalSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each record is stored exactly once, in the archive and in the files that its commits name.

    First, the driver is killed when all record files are written, but the commit file is not. The next query
    repeats the micro-batch. That query fails after it has written the commit file, so Spark's checkpoint
    lacks the micro-batch.
    """
    folder = tmp_path / "archive"
    command = [sys.executable, "-m", "tests.recovery.test_archive_stream", journal_source.folder, str(folder)]
    options = "--conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1 pyspark-shell"
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_SUBMIT_ARGS": options}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=500, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-4_000:]
    assert list((folder / CHECKPOINT / "offsets").glob("[0-9]*"))
    assert not list((folder / CHECKPOINT / "commits").glob("[0-9]*"))
    assert read_commits(open_folder(folder)) == []
    assert list((folder / FILES).iterdir())

    commit = ArchiveWriter.commit

    def commit_and_fail(*arguments: Any) -> None:
        commit(*arguments)
        raise OSError("no space left")

    monkeypatch.setattr(ArchiveWriter, "commit", commit_and_fail)
    with pytest.raises(OSError, match="no space left"):
        archive_stream(spark_engine.spark, journal_source, folder, batch_records_max=BATCH_RECORDS_MAX)
    monkeypatch.undo()
    assert not list((folder / CHECKPOINT / "commits").glob("[0-9]*"))
    commits = read_commits(open_folder(folder))
    copied = read_records(commits)
    assert (len(commits), copied > 0) == (1, True)
    append_records(journal_source, 2, 30)
    found = archive_stream(spark_engine.spark, journal_source, folder, batch_records_max=BATCH_RECORDS_MAX)
    assert all(each.is_whole for each in found)
    assert sum(each.records for each in found) == 330 - copied
    commits = read_commits(open_folder(folder))
    assert len(commits) > 2
    assert read_records(commits) == 330
    assert read_log_offsets(ArchiveSource(str(folder))) == {0: list(range(200)), 2: list(range(130))}


# With 150 of the 300 records, the second micro-batch begins with the damaged records.
@pytest.mark.parametrize("batch_records_max", [None, 150])
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_streamed_archive_reports_damage(
    spark_engine: "SparkEngine",
    journal_source: JournalSource,
    tmp_path: Path,
    batch_records_max: int | None,
) -> None:
    damage_a_commit(Path(journal_source.folder))
    folder = tmp_path / "archive"
    done = archive_stream(spark_engine.spark, journal_source, folder, batch_records_max=batch_records_max)
    (damage,) = [damage for each in done for damage in each.damages]
    assert damage.state_partition == 0
    assert (damage.first, damage.last, damage.check) == (100, 104, "P2")
    assert not any(each.gaps for each in done)
    # The records before the damage belong to the same copy.
    plan = ArchiveSource(str(folder)).plan(LogCut())
    assert (plan.starts[0], plan.ends[0]) == (0, 200)


def read_records(commits: list[Commit]) -> int:
    return sum(piece.records for commit in commits for piece in commit.pieces)


def damage_a_commit(folder: Path) -> None:
    """Change a byte of a record in the middle of state partition 0."""
    value = max((value for _, value in make_varied_records(200, seed=1)[100:105] if value), key=len)
    (path,) = (each for each in folder.iterdir() if each.is_file() and value in each.read_bytes())
    data = bytearray(path.read_bytes())
    data[data.index(value)] ^= 1
    path.write_bytes(data)


def test_records_pruned_after_planning_are_skipped(
    journal_source: JournalSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the log is pruned during a read, the reader continues at the new log start."""
    reader = StateLogStreamReader({"from": journal_source.text})
    (partition, *_) = reader.partitions({}, {"0": 200})
    log_range = LogRange(0, 0, 200, 200)
    whole = next(records for records in JournalSource(journal_source.folder).read(partition.value))

    def read_pruned(self: JournalSource, wanted: LogRange) -> Iterator[Records]:
        if wanted.start < 120:
            yield whole.select_offsets(wanted.start, 60)
            raise PrunedError(0, 120)
        yield whole.select_offsets(wanted.start, wanted.end)

    monkeypatch.setattr(JournalSource, "read", read_pruned)
    partition.value = log_range
    found = count_read_rows(reader, [partition])
    assert found == {0: [*range(60), *range(120, 200)]}


def archive_and_kill_driver(journal: str, folder: str) -> None:
    """Archive a journal; kill this process when all record files are written, but the commit file is not."""
    from coordinator.recovery import archive
    from coordinator.recovery.engines.spark_session import get_or_start_session

    archive.write_commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    archive_stream(
        get_or_start_session("local[2]"),
        JournalSource(journal),
        Path(folder),
        batch_records_max=BATCH_RECORDS_MAX,
    )


if __name__ == "__main__":
    archive_and_kill_driver(*sys.argv[1:])
