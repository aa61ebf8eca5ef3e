"""The Spark engine: one Python stage without a shuffle, in which each task reads whole log ranges.

Rows of the log never enter the JVM. A shuffle is not needed, because the log of a state partition has all
records of its share-partitions. If an executor is lost, Spark only repeats its tasks.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from coordinator.errors import CoordinatorError, LogError
from coordinator.recovery.engines.spark_session import (
    SparkStopped,
    active_session,
    format_start_error,
    get_or_start_session,
    is_session_running,
    stop_session,
)
from coordinator.recovery.sources.base import UNKNOWN_SIZE, LogRange, RangeTask
from coordinator.recovery.tasks import NamedOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OUTPUTS_SQL = "name string, state_partition int, rows binary"

# Ranges are combined until a task reads this many records. With two cores, even an empty task takes 55 ms.
_TASK_RECORDS_MIN = 250_000
# An estimate, in records, of the cost of opening a row group of an archive in an object store.
_ROW_GROUP_RECORDS = 20_000
# The maximum number of rows of an output in one row of Spark, about 1 MB of states.
_PACKED_ROWS_MAX = 2_500

_CAUSED_BY = "Caused by: "
_ABORTED = "Job aborted due to stage failure"
_OWN_ERRORS = "coordinator."


class SparkEngine:
    """A Spark session; `close` stops it only if this engine has started it."""

    name = "spark"

    def __init__(self, spark: "SparkSession", *, is_ours: bool = False) -> None:
        self.spark = spark
        self._is_ours = is_ours

    @classmethod
    def start(cls, master: str = "") -> "SparkEngine":
        """Return an engine with the active Spark session, or with a new one. Raises SparkUnavailable."""
        active = active_session()
        return cls(active or get_or_start_session(master), is_ours=active is None)

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the platform."""
        return {
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
            "spark": self.spark.version,
            "master": self.spark.conf.get("spark.master", "") or "",
        }

    def run(self, task: RangeTask, ranges: Sequence[LogRange]) -> list[NamedOutput]:
        """Run the task for each log range; one Spark task processes several small ranges."""
        ranges_by_task = divide_ranges(ranges)
        try:
            numbers = self.spark.range(0, len(ranges_by_task), 1, max(len(ranges_by_task), 1))
            frame = numbers.mapInArrow(_make_task_function(task, ranges_by_task), _OUTPUTS_SQL)
            return list(_unpack_outputs(frame.toArrow().to_batches()))
        except Exception as error:
            raise convert_spark_error(error, self.spark) from None

    def close(self) -> None:
        """Stop Spark if this engine has started it."""
        if self._is_ours:
            stop_session(self.spark)


def divide_ranges(ranges: Sequence[LogRange]) -> list[list[LogRange]]:
    """Divide ranges among tasks of Spark. A range of unknown cost counts as a whole task."""

    def estimate_cost(each: LogRange) -> int:
        is_unknown = each.records == UNKNOWN_SIZE or each.stored is not None
        return _TASK_RECORDS_MIN if is_unknown else each.records + each.row_groups * _ROW_GROUP_RECORDS

    ordered = sorted(ranges, key=estimate_cost, reverse=True)
    tasks = min(len(ordered), max(1, sum(map(estimate_cost, ordered)) // _TASK_RECORDS_MIN))
    return [ordered[number::tasks] for number in range(tasks)]


def _make_task_function(
    task: RangeTask, ranges_by_task: Sequence[Sequence[LogRange]]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that executors run: map indexes of range lists to packed task outputs."""

    def run_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for log_range in ranges_by_task[number]:
                    yield from pack_outputs(task(log_range))

    return run_tasks


def pack_outputs(outputs: Iterable[NamedOutput]) -> Iterator[pa.RecordBatch]:
    """Convert outputs to Spark rows with tables in Arrow's stream format; split large tables."""
    for name, state_partition, rows in outputs:
        for at in range(0, max(rows.num_rows, 1), _PACKED_ROWS_MAX):
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, rows.schema) as writer:
                writer.write_batch(rows.slice(at, _PACKED_ROWS_MAX))
            yield pa.RecordBatch.from_pydict(
                {
                    "name": pa.array([name]),
                    "state_partition": pa.array([state_partition], pa.int32()),
                    "rows": pa.array([stream.getvalue().to_pybytes()]),
                }
            )


def _unpack_outputs(batches: Iterable[pa.RecordBatch]) -> Iterator[NamedOutput]:
    for batch in batches:
        for row in batch.to_pylist():
            with pa.ipc.open_stream(row["rows"]) as reader:
                for rows in reader:
                    yield NamedOutput(row["name"], row["state_partition"], rows)


def convert_spark_error(error: Exception, spark: "SparkSession") -> CoordinatorError:
    """Convert the exception of a Spark job: use the last line of the traceback that Spark wraps."""
    if isinstance(error, CoordinatorError):
        return error
    if not is_session_running(spark):
        return SparkStopped()
    lines = [line.strip() for line in str(error).splitlines()]
    for line in lines:
        name, colon, text = line.partition(": ")
        if colon and name.startswith(_OWN_ERRORS) and " " not in name:
            return LogError(text)
    # The first lines of the message are about the call and the write. A later line names the lost executor or
    # the failed task.
    aborted = (line.removeprefix(_CAUSED_BY) for line in lines if _ABORTED in line)
    return LogError(f"Spark failed: {next(aborted, format_start_error(error))}")
