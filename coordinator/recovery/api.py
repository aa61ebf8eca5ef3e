"""The recovery jobs from Python: notebooks, scripts, spark-submit.

    from coordinator.recovery import api

    run = api.rebuild("segments:/backup/kafka")            # on this machine
    run.states                                             # an Arrow table; .to_pandas() if you like
    api.rebuild("kafka:__share_group_state", bootstrap_servers="b1:9092", engine="spark").states
    api.records("archive:/archive", spark=spark)           # the log itself, as a DataFrame

A script calls these under `if __name__ == "__main__":`, as any that starts processes; a notebook need not.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coordinator.client import ClientSecurity
from coordinator.recovery import rebuild as _rebuild
from coordinator.recovery.engines import open_engine
from coordinator.recovery.manifest import parse_time
from coordinator.recovery.progress import shown
from coordinator.recovery.rebuild import Rebuilt
from coordinator.recovery.schema import RECORDS
from coordinator.recovery.sources import Cut, open_source
from coordinator.recovery.sources.base import RANGE_RECORDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Rebuilt", "rebuild", "records", "states_frame"]


def rebuild(
    source: str,
    *,
    as_of_offsets: dict[int, int] | None = None,
    as_of_time: str | None = None,
    to: str | Path | None = None,
    engine: str = "auto",
    master: str = "",
    processes: int | None = None,
    range_records: int = RANGE_RECORDS,
    **access: Any,
) -> Rebuilt:
    """Rebuild the state of every share-partition; `access` is what `open_source` takes for a topic.

    Raises what `coordinator.errors` has, in one line each.
    """
    cut = Cut(as_of_offsets, None if as_of_time is None else parse_time(as_of_time))
    worker = open_engine(engine, master=master, processes=processes)
    try:
        with shown() as phases:
            return _rebuild.rebuild(
                worker,
                open_source(source, **access),
                cut=cut,
                to=None if to is None else Path(to),
                phases=phases,
                range_records=range_records,
            )
    finally:
        worker.close()


def records(
    source: str,
    *,
    as_of_offsets: dict[int, int] | None = None,
    spark: "SparkSession | None" = None,
    bootstrap_servers: str = "",
    security: ClientSecurity | None = None,
) -> "pa.Table | DataFrame":
    """Return the records of a log as they stand on it, rows of `RECORDS`: in Arrow, or in Spark if given."""
    if spark is not None:
        from coordinator.recovery.sources.spark import records_frame

        return records_frame(
            spark, source, as_of_offsets=as_of_offsets, bootstrap_servers=bootstrap_servers, security=security
        )
    opened = open_source(source, bootstrap_servers=bootstrap_servers, security=security)
    batches = [
        chunk.to_arrow() for each in opened.plan(Cut(as_of_offsets)).ranges for chunk in opened.read(each)
    ]
    return pa.Table.from_batches(batches, RECORDS)


def states_frame(spark: "SparkSession", run: Rebuilt) -> "DataFrame":
    """Return the states of a run as a DataFrame."""
    frame: DataFrame = spark.createDataFrame(run.states)
    return frame
