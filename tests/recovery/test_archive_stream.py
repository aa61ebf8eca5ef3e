"""The log as a stream: filters reach the source, and a streamed archive has each record once."""

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, IsNotNull, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from coordinator.errors import ConfigError
from coordinator.recovery.archive_stream import CHECKPOINT, archive_stream
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.archive import ArchiveSource
from coordinator.recovery.sources.journal import JournalSource
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.sources.spark import StateLogReader, StateLogStreamReader
from tests.recovery.logs_on_disk import (
    TOPIC,
    batches_of,
    offsets_read,
    open_journal,
    some_records,
    write_journal,
    write_segments,
)
from tests.unit.log.worlds import append_durably

if TYPE_CHECKING:
    from coordinator.recovery.engines.spark import SparkEngine

ALONE = LocalEngine(1)


@pytest.fixture
def journal(tmp_path: Path) -> JournalSource:
    write_journal(tmp_path / "journal", {0: some_records(200, seed=1), 2: some_records(100, seed=2)})
    return JournalSource(str(tmp_path / "journal"))


def grow(journal: JournalSource, state_partition: int, count: int) -> None:
    async def main() -> None:
        log = open_journal(Path(journal.folder))
        await log.open()
        await append_durably(log, state_partition, some_records(count, seed=5))
        await log.close()

    asyncio.run(main())


@pytest.fixture
def disk(tmp_path: Path) -> SegmentSource:
    for p in range(3):
        write_segments(tmp_path / "disk" / f"{TOPIC}-{p}", batches_of(some_records(400)), batches_in_file=10)
    return SegmentSource(str(tmp_path / "disk"))


def rows_read(
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
        ([EqualTo(("state_partition",), 1)], {1: range(400)}, 6),
        ([In(("state_partition",), (0, 2)), IsNotNull(("log_offset",))], {0: range(400), 2: range(400)}, 12),
        (
            [
                GreaterThanOrEqual(("log_offset",), 100),
                LessThan(("log_offset",), 120),
                EqualTo(("state_partition",), 2),
            ],
            {2: range(100, 120)},
            1,
        ),
        ([LessThan(("timestamp_ms",), 1_002)], {p: range(14) for p in range(3)}, 18),
        ([EqualTo(("key",), b"x")], {p: range(400) for p in range(3)}, 18),
        ([EqualTo(("state_partition",), 9)], {}, 1),
    ],
)
def test_filters_leave_out_ranges_and_rows(
    filters: list[object], expected: dict[int, range], read_at_most: int, disk: SegmentSource
) -> None:
    reader = StateLogReader({"from": disk.text, "range_records": "60"})
    # All are given back: Spark applies them once more.
    assert list(reader.pushFilters(filters)) == filters  # type: ignore[arg-type]
    partitions = reader.partitions()
    assert len(partitions) <= read_at_most
    assert rows_read(reader, partitions) == {p: list(offsets) for p, offsets in expected.items()}  # type: ignore[arg-type]


def test_a_stream_gives_the_records_between_two_offsets(journal: JournalSource) -> None:
    reader = StateLogStreamReader({"from": journal.text, "max_records": "30"})
    start = reader.initialOffset()
    assert start == {"0": 0, "1": 0, "2": 0, "3": 0}
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    first = reader.latestOffset(start, limit)
    assert first == {"0": 20, "1": 0, "2": 10, "3": 0}
    read = rows_read(reader, reader.partitions(start, first))  # type: ignore[arg-type]
    assert read == {0: list(range(20)), 2: list(range(10))}
    last = reader.latestOffset(first, ReadAllAvailable())
    assert last == {"0": 200, "1": 0, "2": 100, "3": 0}
    assert reader.latestOffset(last, limit) == last
    assert reader.partitions(last, last) == []
    reader.prepareForTriggerAvailableNow()
    grow(journal, 0, 50)
    assert reader.latestOffset(last, ReadAllAvailable()) == last


def test_segments_have_no_end_that_a_stream_could_follow(disk: SegmentSource) -> None:
    with pytest.raises(ConfigError, match="for a stream"):
        StateLogStreamReader({"from": disk.text}).latestOffset({}, ReadAllAvailable())


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_a_streamed_archive_has_each_record_once(
    spark_engine: "SparkEngine", journal: JournalSource, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    source = ArchiveSource(str(folder))
    (done,) = archive_stream(spark_engine.spark, journal, folder)
    assert (done.commit, done.records, done.is_whole) == (1, 300, True)
    assert offsets_read(source) == {0: list(range(200)), 2: list(range(100))}
    grow(journal, 0, 50)
    # As if the driver had died before it wrote its checkpoint: Spark repeats the micro-batch.
    shutil.rmtree(folder / CHECKPOINT)
    (done,) = archive_stream(spark_engine.spark, journal, folder)
    assert (done.commit, done.records, done.is_whole) == (2, 50, True)
    assert archive_stream(spark_engine.spark, journal, folder) == []
    assert offsets_read(source) == {0: list(range(250)), 2: list(range(100))}
    assert (
        rebuild(ALONE, source)
        .states.select(["group_id", "start_offset", "state_batches"])
        .equals(rebuild(ALONE, journal).states.select(["group_id", "start_offset", "state_batches"]))
    )
    shutil.rmtree(journal.folder)
    write_journal(Path(journal.folder), {0: some_records(300, seed=8)})
    shutil.rmtree(folder / CHECKPOINT)
    with pytest.raises(ConfigError, match="is another record"):
        archive_stream(spark_engine.spark, journal, folder)
