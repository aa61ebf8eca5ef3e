"""The engine of a cluster: Spark runs the two functions of a job, each as one Python stage.

Rows of the log never cross into the JVM.  A task of phase 1 reads some ranges and returns what they amount
to, as tables in Arrow's stream format; these few go through the shuffle to phase 2, all of a state partition
to one task.  Ranges are ours and never Spark's file splits, so a share-partition with most of the records is
read by as many tasks as any other.
"""

import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import pyarrow as pa

from coordinator.errors import LogError
from coordinator.recovery.engines.base import Advance, Gathered, by_partition, outputs_of
from coordinator.recovery.engines.spark_progress import watched
from coordinator.recovery.engines.spark_session import has_active, session
from coordinator.recovery.records import records_from_arrow
from coordinator.recovery.sources.base import ALL, RANGE_RECORDS, LogRange, Source
from coordinator.recovery.sources.topic import TopicSource
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
OUTPUTS_SQL = "name string, state_partition int, rows binary"

# Several, so that all cores are at work until the end.
_TASKS_PER_CORE = 4
_PARALLELISM_UNKNOWN = 50

ArrowTask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class SparkGathered:
    """Outputs in Spark's storage, on the executors."""

    def __init__(self, spark: "SparkSession", frame: "DataFrame") -> None:
        self._spark = spark
        self.frame = frame

    def rows(self, name: str) -> list[tuple[int, pa.RecordBatch]]:
        """Bring the outputs of a name here."""
        found = self.frame.where(self.frame["name"] == name).toArrow()
        return [(output.state_partition, output.rows) for output in _unpacked(found.to_batches())]

    def without(self, state_partitions: Collection[int]) -> "SparkGathered":
        """Leave some state partitions out."""
        column = self.frame["state_partition"]
        wanted = column.isin(list(state_partitions))
        frame = self.frame.limit(0) if ALL in state_partitions else self.frame.where(~wanted)
        return SparkGathered(self._spark, frame)

    def with_more(self, more: Gathered) -> "SparkGathered":
        """Put other outputs to these."""
        assert isinstance(more, SparkGathered)
        return SparkGathered(self._spark, self.frame.unionByName(more.frame))

    def joined(self, join: JoinTask, schema: pa.Schema, advance: Advance) -> pa.Table:
        """Join all state partitions, and bring the rows here, packed as they are."""
        tasks = parallelism(self._spark)
        frame = self._shuffled(tasks).mapInArrow(_joining(join, pack=True), OUTPUTS_SQL)
        with watched(self._spark, [1] * tasks, advance):
            found = frame.toArrow()
        return pa.Table.from_batches([rows for _, _, rows in _unpacked(found.to_batches())], schema)

    def joined_frame(self, join: JoinTask, schema: pa.Schema) -> "DataFrame":
        """Join like `joined`, and leave the rows in Spark."""
        from pyspark.sql.pandas.types import from_arrow_schema

        shuffled = self._shuffled(parallelism(self._spark))
        return shuffled.mapInArrow(_joining(join, pack=False), from_arrow_schema(schema))

    def _shuffled(self, tasks: int) -> "DataFrame":
        return self.frame.repartition(tasks, "state_partition")

    def close(self) -> None:
        """Free the storage."""
        self.frame.unpersist()


class SparkEngine:
    """A Spark session; `close` leaves it alone unless it was started here."""

    name = "spark"

    def __init__(self, spark: "SparkSession", *, is_ours: bool = False, connector: bool = False) -> None:
        """Use a session; with `connector`, topics are read through Spark's own Kafka connector."""
        self.spark = spark
        self._is_ours = is_ours
        self._connector = connector

    @classmethod
    def started(cls, master: str = "", *, connector: bool = False) -> "SparkEngine":
        """Take the active session, or start one. Raises SparkMissing."""
        is_ours = not has_active()
        return cls(session(master), is_ours=is_ours, connector=connector)

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
        """Read ranges, a few in each task where they are small: a task costs as much as 50,000 records."""
        if self._connector and isinstance(source, TopicSource):
            return self._gather_through_connector(source, ranges, read, advance)
        tasks = spread(ranges, self._tasks(sum(each.records for each in ranges)))
        numbers = self.spark.range(0, len(tasks), 1, max(len(tasks), 1))
        return self.gathered_from(
            numbers.mapInArrow(_reading(source, tasks, read), OUTPUTS_SQL),
            [sum(each.records for each in task) for task in tasks],
            advance,
        )

    def _gather_through_connector(
        self, source: TopicSource, ranges: Sequence[LogRange], read: ReadTask, advance: Advance
    ) -> SparkGathered:
        from coordinator.recovery.sources.spark import connector_frame

        records = connector_frame(self.spark, source, ranges)
        return self.gathered_from(
            records.mapInArrow(reading_rows(read), OUTPUTS_SQL), [each.records for each in ranges], advance
        )

    def _tasks(self, records: int) -> int:
        return max(_TASKS_PER_CORE * parallelism(self.spark), records // RANGE_RECORDS)

    def gathered_from(self, frame: "DataFrame", weights: Sequence[int], advance: Advance) -> SparkGathered:
        """Carry out a frame of outputs once, and keep what comes."""
        from pyspark import StorageLevel

        kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with watched(self.spark, list(weights), advance):
                kept.count()
        except Exception as error:
            raise _told(error) from None
        return SparkGathered(self.spark, kept)

    def close(self) -> None:
        """Stop Spark if it was started here."""
        if self._is_ours:
            self.spark.stop()


def parallelism(spark: "SparkSession") -> int:
    """Return how many tasks Spark runs at once, as far as it tells."""
    try:
        return spark.sparkContext.defaultParallelism
    except Exception:
        return _PARALLELISM_UNKNOWN


def spread(ranges: Sequence[LogRange], count: int) -> list[list[LogRange]]:
    """Spread ranges over so many tasks of about the same size; the largest task first."""
    tasks: list[tuple[int, int, list[LogRange]]] = [(0, n, []) for n in range(min(count, len(ranges)))]
    for each in sorted(ranges, key=lambda each: -each.records):
        records, number, task = heappop(tasks)
        task.append(each)
        heappush(tasks, (records + each.records, number, task))
    return [task for _, _, task in sorted(tasks, key=lambda task: -task[0])]


def _reading(source: Source, tasks: Sequence[Sequence[LogRange]], read: ReadTask) -> ArrowTask:
    """Return the function of phase 1: numbers of tasks to outputs."""

    def reading(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for log_range in tasks[number]:
                    yield packed(outputs_of(source, log_range, read))

    return reading


def reading_rows(read: ReadTask) -> ArrowTask:
    """Return the function of phase 1 where Spark has read: rows of `RECORDS` to outputs."""

    def reading(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield packed(read(records for batch in batches for records in records_from_arrow(batch)))

    return reading


def _joining(join: JoinTask, *, pack: bool) -> ArrowTask:
    """Return the function of phase 2: outputs of some state partitions to rows, as they are or packed."""

    def joining(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for state_partition, tables in by_partition(_unpacked(batches)):
            rows = join(state_partition, tables)
            yield packed([Output("joined", state_partition, rows)]) if pack else rows

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
