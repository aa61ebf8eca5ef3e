"""The Spark engine: runs the two functions of a job, each as one Python stage.

Rows of the log never enter the JVM. A task of phase 1 reads some ranges and writes their outputs, tables in
Arrow's stream format, to Parquet files in the work directory. Phase 2 reads these files and shuffles them,
one state partition to one task. Phase 2 never reads the log, even if executors are lost.

The ranges are those of the plan, not Spark's file splits, so a state partition with most of the records is
read by many tasks.
"""

import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import pyarrow as pa

from coordinator.recovery.engines.base import Advance, PhaseOutputs, group_by_partition
from coordinator.recovery.engines.counts import (
    COUNTS_OUTPUT,
    PRUNED_OUTPUT,
    check_join_counts,
    join_and_count,
    read_and_count,
)
from coordinator.recovery.engines.spark_session import get_or_start_session, has_active_session
from coordinator.recovery.engines.spark_work import (
    OUTPUTS_SQL,
    WorkFolder,
    convert_spark_error,
    limit_rows_in_memory,
)
from coordinator.recovery.final_states import TOTALS_OUTPUT
from coordinator.recovery.folders import Folder
from coordinator.recovery.ranges import DAMAGES_OUTPUT, RANGES_OUTPUT
from coordinator.recovery.sources.base import ALL, RANGE_RECORDS, LogRange, Source
from coordinator.recovery.tasks import JoinTask, NamedOutput, ReadTask, TableTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTPUTS = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("state_partition", pa.int32(), nullable=False),
        pa.field("rows", pa.binary(), nullable=False),
    ]
)
_SUMMARIES = (COUNTS_OUTPUT, PRUNED_OUTPUT, RANGES_OUTPUT, DAMAGES_OUTPUT, TOTALS_OUTPUT)

# Several tasks per core keep all cores busy until the end.
_TASKS_PER_CORE = 4
_PARALLELISM_UNKNOWN = 50

# The size of a row in the JVM: about 1 MB of partial states.
_PACKED_ROWS_MAX = 2_500

_STATE_PARTITION = attrgetter("state_partition")

ArrowTask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class SparkOutputs:
    """The outputs of a phase as Parquet files in the work directory."""

    def __init__(self, stored: "WorkFolder", frame: "DataFrame") -> None:
        self._stored = stored
        self.frame = frame
        # Outputs that the driver always reads, all together, because each read is a Spark job.
        self._summaries: list[NamedOutput] | None = None

    def rows(self, name: str) -> list[tuple[int, pa.RecordBatch]]:
        """Return the outputs of a name, on the driver."""
        if name in _SUMMARIES:
            if self._summaries is None:
                self._summaries = self._collect_outputs(_SUMMARIES)
            return [(each.state_partition, each.rows) for each in self._summaries if each.name == name]
        return [(each.state_partition, each.rows) for each in self._collect_outputs((name,))]

    def _collect_outputs(self, names: Sequence[str]) -> list[NamedOutput]:
        return _fetch_outputs(self.frame.where(self.frame["name"].isin(list(names))))

    def map_outputs(self, name: str, task: TableTask) -> list[NamedOutput]:
        """Apply a task to each table of a name, on the executors and without a shuffle."""
        return _fetch_outputs(
            self.frame.where(self.frame["name"] == name).mapInArrow(_make_map_function(task), OUTPUTS_SQL)
        )

    def table(self, name: str, schema: pa.Schema) -> pa.Table:
        """Return all outputs of a name as one table, on the driver."""
        return pa.Table.from_batches([rows for _, rows in self.rows(name)], schema)

    def collect(self) -> list[NamedOutput]:
        """Return all outputs but the counts, on the driver."""
        return _fetch_outputs(self.frame.where(self.frame["name"] != COUNTS_OUTPUT))

    def without_partitions(self, state_partitions: Collection[int]) -> "SparkOutputs":
        """Drop some state partitions."""
        wanted = ~self.frame["state_partition"].isin(list(state_partitions))
        frame = self.frame.limit(0) if ALL in state_partitions else self.frame.where(wanted)
        return SparkOutputs(self._stored, frame)

    def combine_with(self, more: PhaseOutputs) -> "SparkOutputs":
        """Return these outputs and others together."""
        assert isinstance(more, SparkOutputs)
        return SparkOutputs(self._stored, self.frame.unionByName(more.frame))

    def join_partitions(self, join: JoinTask, advance: Advance) -> "SparkOutputs":
        """Join all state partitions on the executors, in one shuffle."""
        tasks = task_slots(self._stored.spark)
        shuffled = self.frame.where(self.frame["name"] != COUNTS_OUTPUT).repartition(tasks, "state_partition")
        # Sorted, so that a task has only one state partition in memory at a time.
        ordered = shuffled.sortWithinPartitions("state_partition")
        frame = ordered.mapInArrow(_join_function(join), OUTPUTS_SQL)
        joined = SparkOutputs(self._stored, self._stored.store(frame, [1] * tasks, advance))
        check_join_counts(self, joined)
        return joined

    def write(self, name: str, schema: pa.Schema, order: Sequence[str], folder: Folder, file: str) -> int:
        """Write a directory of files, on the executors."""
        from pyspark.sql.pandas.types import from_arrow_schema

        def unpack_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for output in _unpack_outputs(batches):
                yield output.rows

        uri = f"{folder.uri}/{file}"
        stored = self.frame.where(self.frame["name"] == name)
        frame = stored.mapInArrow(unpack_batches, from_arrow_schema(schema)).sortWithinPartitions(*order)
        try:
            with limit_rows_in_memory(self._stored.spark):
                frame.write.mode("error").option("compression", "zstd").parquet(uri)
            return int(self._stored.spark.read.parquet(uri).count())
        except Exception as error:
            raise convert_spark_error(error) from None


class SparkEngine:
    """A Spark session; `close` stops it only if this engine has started it."""

    name = "spark"

    def __init__(self, spark: "SparkSession", *, is_ours: bool = False, work: str = "") -> None:
        """Use a session.

        `work` is a directory for the outputs of phases, which the driver and all executors share.  Raises
        ConfigError without one if executors run on other machines.
        """
        self.spark = spark
        self._is_ours = is_ours
        self._work = WorkFolder(spark, work)

    @classmethod
    def start(cls, master: str = "", *, work: str = "") -> "SparkEngine":
        """Use the active session, or start one. Raises SparkMissing and ConfigError."""
        is_ours = not has_active_session()
        return cls(get_or_start_session(master), is_ours=is_ours, work=work)

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the platform."""
        return {
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
            "spark": self.spark.version,
            "master": self.spark.conf.get("spark.master", "") or "",
        }

    def gather(
        self, source: Source, ranges: Sequence[LogRange], read: ReadTask, advance: Advance
    ) -> SparkOutputs:
        """Read ranges, several small ones in each task, because a task costs as much as 50,000 records."""
        tasks = balance_ranges(ranges, self._count_tasks(sum(each.records for each in ranges)))
        numbers = self.spark.range(0, len(tasks), 1, max(len(tasks), 1))
        frame = numbers.mapInArrow(_read_function(source, tasks, read), OUTPUTS_SQL)
        weights = [sum(each.records for each in task) for task in tasks]
        return SparkOutputs(self._work, self._work.store(frame, weights, advance))

    def _count_tasks(self, records: int) -> int:
        return max(_TASKS_PER_CORE * task_slots(self.spark), records // RANGE_RECORDS)

    def end_job(self) -> None:
        """Delete the work directory."""
        self._work.delete()

    def close(self) -> None:
        """Delete the work directory; stop Spark if this engine has started it."""
        self.end_job()
        if self._is_ours:
            self.spark.stop()


def task_slots(spark: "SparkSession") -> int:
    """Return the number of concurrent tasks, if Spark provides it."""
    try:
        return spark.sparkContext.defaultParallelism
    except Exception:
        return _PARALLELISM_UNKNOWN


def balance_ranges(ranges: Sequence[LogRange], count: int) -> list[list[LogRange]]:
    """Distribute ranges over tasks of similar size, the largest task first."""
    tasks: list[tuple[int, int, list[LogRange]]] = [(0, n, []) for n in range(min(count, len(ranges)))]
    for each in sorted(ranges, key=lambda each: -each.records):
        records, number, task = heappop(tasks)
        task.append(each)
        heappush(tasks, (records + each.records, number, task))
    return [task for _, _, task in sorted(tasks, key=lambda task: -task[0])]


def _read_function(source: Source, tasks: Sequence[Sequence[LogRange]], read: ReadTask) -> ArrowTask:
    """Return the function of phase 1: task numbers to outputs."""

    def read_ranges(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for log_range in tasks[number]:
                    yield from pack_outputs(read_and_count(source, log_range, read))

    return read_ranges


def _join_function(join: JoinTask) -> ArrowTask:
    """Return the function of phase 2: outputs of some state partitions to outputs."""

    def join_outputs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _, outputs in groupby(_unpack_outputs(batches), key=_STATE_PARTITION):
            for state_partition, tables in group_by_partition(outputs):
                yield from pack_outputs(join_and_count(join, state_partition, tables))

    return join_outputs


def _make_map_function(task: TableTask) -> ArrowTask:
    """Return the function that applies a task to each table; a table may be in several stored rows."""

    def map_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for state_partition, outputs in groupby(_unpack_outputs(batches), key=_STATE_PARTITION):
            for rows in pa.Table.from_batches([each.rows for each in outputs]).combine_chunks().to_batches():
                yield from pack_outputs(task(state_partition, rows))

    return map_batches


def _fetch_outputs(frame: "DataFrame") -> list[NamedOutput]:
    """Compute a DataFrame of outputs, and return them on the driver."""
    try:
        with limit_rows_in_memory(frame.sparkSession):
            return list(_unpack_outputs(frame.toArrow().to_batches()))
    except Exception as error:
        raise convert_spark_error(error) from None


def pack_outputs(outputs: Iterable[NamedOutput]) -> Iterator[pa.RecordBatch]:
    """Return outputs as rows of `OUTPUTS`, a large one in several rows."""
    for name, state_partition, rows in outputs:
        for at in range(0, max(rows.num_rows, 1), _PACKED_ROWS_MAX):
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, rows.schema) as writer:
                writer.write_batch(rows.slice(at, _PACKED_ROWS_MAX))
            row = {
                "name": [name],
                "state_partition": [state_partition],
                "rows": [stream.getvalue().to_pybytes()],
            }
            yield pa.RecordBatch.from_pydict(row, schema=OUTPUTS)


def _unpack_outputs(batches: Iterable[pa.RecordBatch]) -> Iterator[NamedOutput]:
    for batch in batches:
        for row in batch.to_pylist():
            with pa.ipc.open_stream(row["rows"]) as reader:
                for rows in reader:
                    yield NamedOutput(row["name"], row["state_partition"], rows)
