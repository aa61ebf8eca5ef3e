"""Archive a log with Structured Streaming: executors write the records, and each micro-batch is one commit.

If the driver dies before the checkpoint is written, Spark repeats the micro-batch. The last commit of the
archive has the end offset of each state partition, and records below this offset are skipped. Therefore, the
archive has each record exactly once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from coordinator.process.clock import Clock, SystemClock
from coordinator.recovery.archive import (
    ArchiveResult,
    CopyResult,
    RecordCopier,
    check_identity,
    commit_copied,
    copied_end_offsets,
    group_by_partition,
    missing_offsets,
)
from coordinator.recovery.compaction import compact
from coordinator.recovery.engines.spark import convert_spark_error
from coordinator.recovery.folders import Folder, Location, open_folder
from coordinator.recovery.records import Damage, records_from_arrow
from coordinator.recovery.sources.archive import Commit, next_commit_number, read_commits
from coordinator.recovery.sources.base import Source
from coordinator.recovery.sources.spark import FORMAT, StateLogDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT = "checkpoint"
_COPIED_SQL = "copied string"


def archive_stream(
    spark: "SparkSession",
    source: Source,
    location: Location,
    *,
    options: dict[str, str] | None = None,
    checkpoint: str = "",
    every_s: float | None = None,
    told: Callable[[ArchiveResult], None] = lambda done: None,
    clock: Clock | None = None,
) -> list[ArchiveResult]:
    """Copy the new records once or periodically; return the result of each micro-batch.

    `options` are the options of the Spark data source for a topic.  All executors write to the archive
    at `location`.  Raises ConfigError and LogError.
    """
    folder = open_folder(location)
    writer = _BatchWriter(source, folder, told, clock or SystemClock())
    known = writer.check()
    spark.dataSource.register(StateLogDataSource)
    reader = spark.readStream.format(FORMAT).option("from", source.text).options(**(options or {}))
    if known:
        # Start with the last copied record, to check that it is unchanged.
        reader = reader.option(
            "starting_offsets", ",".join(f"{p}:{max(end - 1, 0)}" for p, end in known.items())
        )
    writing = reader.load().writeStream.foreachBatch(writer.write)
    writing = writing.option("checkpointLocation", checkpoint or (folder / CHECKPOINT).uri)
    trigger = {"availableNow": True} if every_s is None else {"processingTime": f"{every_s} seconds"}
    try:
        writing.trigger(**trigger).start().awaitTermination()
    except Exception as error:
        raise writer.failure or convert_spark_error(error) from None
    return writer.done


class _BatchWriter:
    """Writes micro-batches to an archive.

    `failure` is the exception that this class raised and that ended the query.
    """

    def __init__(
        self, source: Source, folder: Folder, told: Callable[[ArchiveResult], None], clock: Clock
    ) -> None:
        self.done: list[ArchiveResult] = []
        self.failure: Exception | None = None
        self._source = source
        self._folder = folder
        self._told = told
        self._clock = clock
        self._identity = source.identity()

    def check(self) -> dict[int, int]:
        """Return the end offsets of the archive. Raises ConfigError if the source is not the archived log."""
        commits = read_commits(self._folder)
        if commits:
            check_identity(self._source, self._folder, commits[-1].identity, self._identity)
        return copied_end_offsets(commits)

    def write(self, frame: "DataFrame", batch: int) -> None:
        """Write the records of one micro-batch, then their commit.

        Readers ignore records without a commit.
        """
        try:
            commits = read_commits(self._folder)
            copied = self._copy_frame(frame, commits)
            if not copied.pieces and not copied.damages and not copied.replaced:
                return
            known = copied_end_offsets(commits)
            done = commit_copied(
                *(self._folder, self._source, self._identity, commits, copied),
                {**known, **copied.starts},
                known,
                self._clock,
            )
            compact(self._folder, self._clock.now_ms())
        except Exception as error:
            self.failure = convert_spark_error(error) if "pyspark" in type(error).__module__ else error
            raise
        self.done.append(done)
        self._told(done)

    def _copy_frame(self, frame: "DataFrame", commits: Sequence[Commit]) -> CopyResult:
        """Write the records of a micro-batch to files.

        If the log is pruned between two tasks, the records between their ranges are missing. A second attempt
        then copies the remaining records.  Offsets that are missing again are reported as damage.
        """
        missing: list[Damage] = []
        while True:
            rows = frame.mapInArrow(_copy_function(self._folder, commits), _COPIED_SQL).collect()
            copied = _merge_results([msgspec.json.decode(row["copied"], type=CopyResult) for row in rows])
            before, missing = missing, missing_offsets(copied)
            if missing == before:
                return copied


def _copy_function(
    folder: Folder, commits: Sequence[Commit]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a Spark task, which writes rows of `RECORDS` to files and yields JSON."""
    last = Commit(0, "", 0, {}, copied_end_offsets(commits), (), {}, commits[-1].digests if commits else {})
    number = next_commit_number(commits)

    def copy_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        copier = RecordCopier(folder, number, [last])
        try:
            for records in group_by_partition(chain.from_iterable(map(records_from_arrow, batches))):
                copier.copy_records(records)
        finally:
            copier.close()
        copied = copier.result()
        if not copied.pieces and not copied.is_verified and not copied.replaced:
            return
        yield pa.RecordBatch.from_pydict({"copied": [msgspec.json.encode(copied).decode()]})

    return copy_batches


def _merge_results(parts: Sequence[CopyResult]) -> CopyResult:
    """Merge the results of several tasks; a state partition may be in several of them."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    digests: dict[int, int] = {}
    for part in parts:
        starts |= {p: min(start, starts.get(p, start)) for p, start in part.starts.items()}
        for number, end in part.ends.items():
            if end > ends.get(number, 0):
                ends[number], digests[number] = end, part.digests[number]
    return CopyResult(
        sorted(
            (piece for part in parts for piece in part.pieces),
            key=lambda piece: (piece.state_partition, piece.start),
        ),
        starts,
        ends,
        digests,
        [each for part in parts for each in part.damages],
        any(part.is_verified for part in parts),
        next((part.replaced for part in parts if part.replaced), None),
    )
