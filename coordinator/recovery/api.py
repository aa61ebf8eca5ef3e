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
under `if __name__ == "__main__":`. A notebook needs no such condition.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coordinator.client import ClientSecurity
from coordinator.errors import ConfigError
from coordinator.recovery import rebuild as _rebuild
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.decoded import history_rows
from coordinator.recovery.engines import open_engine
from coordinator.recovery.engines.counts import output_rows
from coordinator.recovery.final_states import TOTALS_OUTPUT
from coordinator.recovery.folders import Location, open_folder
from coordinator.recovery.job import read_log
from coordinator.recovery.manifest import STATES_FILE, check_empty_folder, parse_time
from coordinator.recovery.progress import JobPhases, progress_display
from coordinator.recovery.ranges import fold_range
from coordinator.recovery.rebuild import RebuildResult
from coordinator.recovery.records import records_from_arrow
from coordinator.recovery.schema import HISTORY, RECORDS
from coordinator.recovery.sources import LogCut, open_source
from coordinator.recovery.sources.base import RANGE_RECORDS

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
    work: str = "",
    range_records: int = RANGE_RECORDS,
    **access: Any,
) -> RebuildResult:
    """Rebuild the state of every share-partition; `access` are the arguments of `open_source` for a topic.

    With Spark, `to` is required, so that no state passes through the driver. `work` is a directory that all
    executors of a cluster share.  Raises CoordinatorError.
    """
    worker = open_engine(engine, master=master, processes=processes, work=work)
    try:
        if to is None and worker.name == "spark":
            raise ConfigError("to", None, "a directory with Spark, or use `states`")
        with progress_display() as phases:
            return _rebuild.rebuild(
                worker,
                open_source(source, **access),
                cut=_make_cut(as_of_offsets, as_of_time),
                to=to,
                phases=phases,
                range_records=range_records,
            )
    finally:
        worker.close()


def states(
    spark: "SparkSession",
    source: str,
    *,
    to: str,
    as_of_offsets: dict[int, int] | None = None,
    as_of_time: str | None = None,
    work: str = "",
    **access: Any,
) -> "DataFrame":
    """Rebuild all states on the executors, which write `states.parquet` in the new directory or URI `to`.

    Returns that DataFrame.  The columns are those of `STATES`.  No state passes through the driver.  Raises
    CoordinatorError.
    """
    from coordinator.recovery.engines.spark import SparkEngine

    folder, engine = open_folder(to), SparkEngine(spark, work=work)
    check_empty_folder(folder)
    try:
        opened = _rebuild.use_checkpoints(open_source(source, **access))
        log = read_log(engine, opened, fold_range, cut=_make_cut(as_of_offsets, as_of_time))
        joined = _rebuild.join_log_states(log, JobPhases())
        _rebuild.write_states(joined, output_rows(joined, TOTALS_OUTPUT), folder)
    finally:
        engine.close()
    return spark.read.parquet(f"{folder.uri}/{STATES_FILE}")


def findings(spark: "SparkSession", source: str, *, work: str = "", **access: Any) -> "DataFrame":
    """Audit a log, and return its findings with the columns of `FINDINGS`.

    The driver collects all findings.
    """
    from coordinator.recovery.engines.spark import SparkEngine

    engine = SparkEngine(spark, work=work)
    try:
        found = audit(engine, open_source(source, **access), AuditOptions())
    finally:
        engine.close()
    frame: DataFrame = spark.createDataFrame(found.findings)
    return frame


def records(
    source: str,
    *,
    as_of_offsets: dict[int, int] | None = None,
    spark: "SparkSession | None" = None,
    bootstrap_servers: str = "",
    security: ClientSecurity | None = None,
) -> "pa.Table | DataFrame":
    """Return the stored records of a log with the columns of `RECORDS`, as an Arrow table or DataFrame."""
    if spark is not None:
        from coordinator.recovery.sources.spark import records_frame

        return records_frame(
            spark, source, as_of_offsets=as_of_offsets, bootstrap_servers=bootstrap_servers, security=security
        )
    opened = open_source(source, bootstrap_servers=bootstrap_servers, security=security)
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
