"""Archive a log with Structured Streaming: executors write records, each micro-batch gets a commit file.

If the driver dies before the checkpoint is written, Spark repeats the micro-batch. The archive's last commit
file has the copied end offset of each state partition, and records below it are skipped. Therefore, the
archive has each record exactly once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from coordinator.process.clock import Clock
from coordinator.recovery.archive import (
    ArchiveResult,
    ArchiveWriter,
    CopyResult,
    copied_end_offsets,
    copy_records,
    group_by_partition,
    last_record_digests,
)
from coordinator.recovery.engines.spark import convert_spark_error
from coordinator.recovery.engines.spark_session import is_session_running
from coordinator.recovery.folders import Folder, Location
from coordinator.recovery.records import Damage, records_from_arrow
from coordinator.recovery.sources.archive import Commit, next_commit_number
from coordinator.recovery.sources.base import Source, format_offsets
from coordinator.recovery.sources.spark import FORMAT, StateLogDataSource, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT = "checkpoint"
_COPIED_SQL = "copied string"


def archive_stream(
    spark: "SparkSession",
    source: Source,
    location: Location,
    *,
    checkpoint: str = "",
    batch_records_max: int | None = None,
    clock: Clock | None = None,
) -> list[ArchiveResult]:
    """Copy the records up to the current end of the log; return the result of each micro-batch.

    All executors write to the archive at `location`.  `checkpoint` is the directory or URI of the query's
    checkpoint, by default in the archive.  Raises ConfigError and LogError.
    """
    batches = _BatchWriter(ArchiveWriter(source, location, clock))
    known = copied_end_offsets(batches.writer.read_commits())
    options = source_options(source)
    if known:
        # Start with the last copied record, to check that it is unchanged.
        options["starting_offsets"] = format_offsets({p: max(end - 1, 0) for p, end in known.items()})
    if batch_records_max is not None:
        options["max_records"] = str(batch_records_max)
    try:
        spark.dataSource.register(StateLogDataSource)
        frame = spark.readStream.format(FORMAT).options(**options).load()
        writing = frame.writeStream.foreachBatch(batches.write).trigger(availableNow=True)
        writing = writing.option("checkpointLocation", checkpoint or (batches.writer.folder / CHECKPOINT).uri)
        writing.start().awaitTermination()
    except Exception as error:
        raise batches.failure or convert_spark_error(error, spark) from None
    return batches.done


class _BatchWriter:
    """Writes micro-batches to an archive.

    `failure` is the exception of a write, which has ended the query.
    """

    def __init__(self, writer: ArchiveWriter) -> None:
        self.writer = writer
        self.done: list[ArchiveResult] = []
        self.failure: Exception | None = None

    def write(self, frame: "DataFrame", batch: int) -> None:
        """Write the records of one micro-batch, then the commit file.

        Readers ignore records that no commit file names.
        """
        try:
            commits = self.writer.read_commits()
            copied = self._copy_dataframe(frame, commits)
            if copied.is_empty:
                return
            known = copied_end_offsets(commits)
            starts = self.writer.find_copy_starts(known, copied)
            self.done.append(self.writer.commit(commits, copied, known | starts, known))
        except Exception as error:
            spark = frame.sparkSession
            is_from_spark = type(error).__module__.startswith(("py4j", "pyspark"))
            if is_from_spark or not is_session_running(spark):
                self.failure = convert_spark_error(error, spark)
            else:
                self.failure = error
            raise

    def _copy_dataframe(self, frame: "DataFrame", commits: Sequence[Commit]) -> CopyResult:
        """Write the records of a micro-batch to files.

        If the log is pruned between two tasks, records between their ranges are missing, and a second attempt
        copies the remaining records. Log offsets that are missing in the second attempt too are reported as
        damage.
        """
        missing: list[Damage] = []
        while True:
            rows = frame.mapInArrow(_make_copy_function(self.writer.folder, commits), _COPIED_SQL).collect()
            copied = _merge_copy_results(
                [msgspec.json.decode(row["copied"], type=CopyResult) for row in rows]
            )
            before, missing = missing, copied.missing_offsets(copied.starts())
            if missing == before:
                return copied


def _make_copy_function(
    folder: Folder, commits: Sequence[Commit]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a Spark task, which writes rows of `RECORDS` to files and yields JSON."""
    number = next_commit_number(commits) - 1
    last = Commit(number, "", 0, {}, copied_end_offsets(commits), (), {}, last_record_digests(commits))

    def copy_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chunks = group_by_partition(chain.from_iterable(map(records_from_arrow, batches)))
        copied = copy_records(folder, [last], chunks)
        if not copied.is_empty or copied.is_verified:
            yield pa.RecordBatch.from_pydict({"copied": [msgspec.json.encode(copied).decode()]})

    return copy_batches


def _merge_copy_results(parts: Sequence[CopyResult]) -> CopyResult:
    """Merge the copy results of several tasks, which may have copied parts of the same state partition."""
    last: dict[int, tuple[int, int]] = {}
    for part in parts:
        last |= {
            p: max(offset_and_digest, last.get(p, (-1, 0))) for p, offset_and_digest in part.last.items()
        }
    return CopyResult(
        sorted(
            (piece for part in parts for piece in part.pieces),
            key=lambda piece: (piece.state_partition, piece.start),
        ),
        last,
        [each for part in parts for each in part.damages],
        any(part.is_verified for part in parts),
        next((part.replaced for part in parts if part.replaced), None),
    )
