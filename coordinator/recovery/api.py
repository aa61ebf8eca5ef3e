"""Run the recovery jobs from Python: notebooks, scripts, spark-submit.

    from coordinator.recovery import api

    run = api.rebuild("segments:/backup/kafka")              # on this machine
    run.states                                               # an Arrow table with `to_pandas()`

    source = "kafka:__share_group_state"
    access = {"bootstrap_servers": "b1:9092"}
    api.records(source, spark=spark, **access)               # DataFrame of the stored records
    api.history(source, spark=spark, **access)               # DataFrame of the decoded records
    api.states(spark, source, to="s3a://b/states", **access) # DataFrame of the states after a load
    api.findings(spark, source, **access)                    # DataFrame of the findings of an audit

Columns are documented in docs/recovery-spark.md. These functions start processes, so a script must call them
under `if __name__ == "__main__":`. Code in a notebook does not need this condition.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coordinator.errors import ConfigError
from coordinator.recovery import rebuild as _rebuild
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.checks.findings import FINDINGS
from coordinator.recovery.engines import open_engine
from coordinator.recovery.folders import Location, open_folder
from coordinator.recovery.history import history_rows
from coordinator.recovery.manifest import STATES_FILE, parse_time
from coordinator.recovery.rebuild import RebuildResult
from coordinator.recovery.records import records_from_arrow
from coordinator.recovery.schema import HISTORY, RECORDS
from coordinator.recovery.sources import LogCut, open_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RebuildResult", "findings", "history", "rebuild", "records", "states"]


def rebuild(
    source: str,
    *,
    as_of_offsets: dict[int, int] | None = None,
    as_of_time: str | None = None,
    to: Location | None = None,
    engine: str = "auto",
    master: str = "",
    processes: int | None = None,
    **access: Any,
) -> RebuildResult:
    """Rebuild the state of every share-partition; `access` are the arguments of `open_source` for a topic.

    With Spark, `to` is required, so that no state passes through the driver.  Raises CoordinatorError.
    """
    worker = open_engine(engine, master=master, processes=processes)
    try:
        if to is None and worker.name == "spark":
            raise ConfigError("to", None, "a directory with Spark, or use `states`")
        cut = _make_cut(as_of_offsets, as_of_time)
        return _rebuild.rebuild(worker, open_source(source, **access), cut=cut, to=to)
    finally:
        worker.close()


def states(
    spark: "SparkSession",
    source: str,
    *,
    to: str,
    as_of_offsets: dict[int, int] | None = None,
    as_of_time: str | None = None,
    **access: Any,
) -> "DataFrame":
    """Rebuild all states on the executors, which write `states.parquet` in the new directory or URI `to`.

    Returns that DataFrame. The DataFrame has the columns of `STATES`. No state passes through the driver.
    Raises CoordinatorError.
    """
    from coordinator.recovery.engines.spark import SparkEngine

    cut = _make_cut(as_of_offsets, as_of_time)
    _rebuild.rebuild(SparkEngine(spark), open_source(source, **access), cut=cut, to=to)
    return spark.read.parquet(f"{open_folder(to).uri}/{STATES_FILE}")


def findings(spark: "SparkSession", source: str, **access: Any) -> "DataFrame":
    """Audit a log, and return its findings with the columns of `FINDINGS`.

    The driver collects all findings.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from coordinator.recovery.engines.spark import SparkEngine

    found = audit(SparkEngine(spark), open_source(source, **access), AuditOptions(), with_states=False)
    # Spark cannot infer the column types of a table without rows.
    rows: Any = found.findings if len(found.findings) else []
    frame: DataFrame = spark.createDataFrame(rows, from_arrow_schema(FINDINGS))
    return frame


def records(
    source: str,
    *,
    as_of_offsets: dict[int, int] | None = None,
    spark: "SparkSession | None" = None,
    **access: Any,
) -> "pa.Table | DataFrame":
    """Return the stored records of a log with the columns of `RECORDS`, as an Arrow table or DataFrame.

    Batches that cannot be read are omitted; `findings` reports them.
    """
    opened = open_source(source, **access)
    if spark is not None:
        from coordinator.recovery.sources.spark import records_frame

        return records_frame(spark, opened, as_of_offsets=as_of_offsets)
    batches = [
        chunk.to_arrow() for each in opened.plan(LogCut(as_of_offsets)).ranges for chunk in opened.read(each)
    ]
    return pa.Table.from_batches(batches, RECORDS)


def history(source: str, *, spark: "SparkSession | None" = None, **access: Any) -> "pa.Table | DataFrame":
    """Return the decoded records with the columns of `HISTORY`; `access` are the arguments of `records`."""
    found: Any = records(source, spark=spark, **access)
    if spark is None:
        return pa.Table.from_batches(list(_iterate_history(found.to_batches())), HISTORY)
    from pyspark.sql.pandas.types import from_arrow_schema

    frame: DataFrame = found.mapInArrow(_iterate_history, from_arrow_schema(HISTORY))
    return frame


def _iterate_history(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for each in records_from_arrow(batch):
            yield history_rows(each)


def _make_cut(as_of_offsets: dict[int, int] | None, as_of_time: str | None) -> LogCut:
    return LogCut(as_of_offsets, None if as_of_time is None else parse_time(as_of_time))
