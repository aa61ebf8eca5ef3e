"""The engine of a cluster: Spark runs the two functions of a job, each as one Python stage.

Rows of the log never cross into the JVM.  A task of phase 1 reads one range and returns what it amounts to,
as tables in Arrow's stream format; these few go through the shuffle to phase 2, a task for each state
partition.  Ranges are ours and never Spark's file splits, so a share-partition with most of the records is
read by as many tasks as any other.
"""

import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from coordinator.errors import LogError
from coordinator.recovery.engines.base import Advance, Gathered, by_partition, outputs_of
from coordinator.recovery.engines.spark_progress import watched
from coordinator.recovery.engines.spark_session import session
from coordinator.recovery.sources.base import ALL, LogRange, Source
from coordinator.recovery.tasks import JoinTask, Output, ReadTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTPUTS = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("state_partition", pa.int32(), nullable=False),
        pa.field("rows", pa.binary(), nullable=False),
    ]
)
_OUTPUTS_SQL = "name string, state_partition int, rows binary"

ArrowTask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class SparkGathered:
    """Outputs in Spark's storage, on the executors."""

    def __init__(self, spark: "SparkSession", frame: "DataFrame", state_partitions: int) -> None:
        self._spark = spark
        self.frame = frame
        self._state_partitions = state_partitions

    def rows(self, name: str) -> list[tuple[int, pa.RecordBatch]]:
        """Bring the outputs of a name here."""
        found = self.frame.where(self.frame["name"] == name).toArrow()
        return [(output.state_partition, output.rows) for output in _unpacked(found.to_batches())]

    def without(self, state_partitions: Collection[int]) -> "SparkGathered":
        """Leave some state partitions out."""
        column = self.frame["state_partition"]
        wanted = column.isin(list(state_partitions))
        frame = self.frame.limit(0) if ALL in state_partitions else self.frame.where(~wanted)
        return SparkGathered(self._spark, frame, self._state_partitions)

    def with_more(self, more: Gathered) -> "SparkGathered":
        """Put other outputs to these."""
        assert isinstance(more, SparkGathered)
        count = max(self._state_partitions, more._state_partitions)
        return SparkGathered(self._spark, self.frame.unionByName(more.frame), count)

    def joined(self, join: JoinTask, schema: pa.Schema, advance: Advance) -> pa.Table:
        """Join each state partition in a task of its own, and bring the rows here."""
        with watched(self._spark, [1] * self._state_partitions, advance):
            return self.joined_frame(join, schema).toArrow().cast(schema)

    def joined_frame(self, join: JoinTask, schema: pa.Schema) -> "DataFrame":
        """Join like `joined`, and leave the rows in Spark."""
        from pyspark.sql.pandas.types import from_arrow_schema

        tasks = max(self._state_partitions, 1)
        shuffled = self.frame.repartition(tasks, "state_partition")
        return shuffled.mapInArrow(_joining(join), from_arrow_schema(schema))

    def close(self) -> None:
        """Free the storage."""
        self.frame.unpersist()


class SparkEngine:
    """A Spark session; `close` leaves it alone unless it was started here."""

    name = "spark"

    def __init__(self, spark: "SparkSession", *, is_ours: bool = False) -> None:
        self.spark = spark
        self._is_ours = is_ours

    @classmethod
    def started(cls, master: str = "") -> "SparkEngine":
        """Take the active session, or start one. Raises SparkMissing."""
        from coordinator.recovery.engines.spark_session import has_active

        is_ours = not has_active()
        return cls(session(master), is_ours=is_ours)

    @property
    def versions(self) -> Mapping[str, str]:
        """What it runs on."""
        return {
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
            "spark": self.spark.version,
            "master": self.spark.conf.get("spark.master", "") or "",
        }

    def gather(
        self, source: Source, ranges: Sequence[LogRange], read: ReadTask, advance: Advance
    ) -> SparkGathered:
        """Read ranges, a task for each, the largest first."""
        ordered = sorted(ranges, key=lambda each: -each.records)
        ids = self.spark.range(0, len(ordered), 1, max(len(ordered), 1))
        state_partitions = len({each.state_partition for each in ordered})
        return self.gathered_from(
            ids.mapInArrow(_reading(source, ordered, read), _OUTPUTS_SQL),
            [each.records for each in ordered],
            advance,
            _PARTITIONS_UNKNOWN if ALL in {each.state_partition for each in ordered} else state_partitions,
        )

    def gathered_from(
        self, frame: "DataFrame", weights: Sequence[int], advance: Advance, state_partitions: int
    ) -> SparkGathered:
        """Carry out a frame of outputs once, and keep what comes."""
        from pyspark import StorageLevel

        kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with watched(self.spark, list(weights), advance):
                kept.count()
        except Exception as error:
            raise _told(error) from None
        return SparkGathered(self.spark, kept, state_partitions)

    def close(self) -> None:
        """Stop Spark if it was started here."""
        if self._is_ours:
            self.spark.stop()


# As many tasks join the ranges of a source whose ranges have all state partitions.
_PARTITIONS_UNKNOWN = 50


def _reading(source: Source, ranges: Sequence[LogRange], read: ReadTask) -> ArrowTask:
    """Return the function of phase 1: numbers of ranges to outputs."""

    def reading(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield packed(outputs_of(source, ranges[number], read))

    return reading


def _joining(join: JoinTask) -> ArrowTask:
    """Return the function of phase 2: outputs of some state partitions to rows."""

    def joining(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for state_partition, tables in by_partition(_unpacked(batches)):
            yield join(state_partition, tables)

    return joining


def packed(outputs: Iterable[Output]) -> pa.RecordBatch:
    """Return outputs as rows of `OUTPUTS`."""
    names, partitions, streams = [], [], []
    for output in outputs:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, output.rows.schema) as writer:
            writer.write_batch(output.rows)
        names.append(output.name)
        partitions.append(output.state_partition)
        streams.append(stream.getvalue().to_pybytes())
    return pa.RecordBatch.from_pydict(
        {"name": names, "state_partition": partitions, "rows": streams}, schema=OUTPUTS
    )


def _unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[Output]:
    for batch in batches:
        for row in batch.to_pylist():
            with pa.ipc.open_stream(row["rows"]) as reader:
                for rows in reader:
                    yield Output(row["name"], row["state_partition"], rows)


def _told(error: Exception) -> Exception:
    """Return the exception of a worker as ours: the last line of the traceback that Spark wraps."""
    lines = [line.strip() for line in str(error).splitlines()]
    for line in lines:
        name, colon, text = line.partition(": ")
        if colon and name.startswith("coordinator.errors."):
            return LogError(text)
    return LogError(f"Spark failed: {lines[0] if lines else type(error).__name__}")
