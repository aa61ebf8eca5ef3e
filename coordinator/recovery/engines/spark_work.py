"""The work directory of Spark jobs: outputs of a phase as Parquet files that outlive the executors."""

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse
from uuid import uuid4  # noqa: TID251

from coordinator.errors import ConfigError, CoordinatorError, LogError
from coordinator.recovery.engines.base import Advance
from coordinator.recovery.engines.counts import ResultsIncomplete
from coordinator.recovery.engines.spark_progress import report_progress
from coordinator.recovery.engines.spark_session import format_start_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTPUTS_SQL = "name string, state_partition int, rows binary"

_CHECKPOINT_SETTING = "spark.checkpoint.dir"
_CAUSED_BY = "Caused by: "
_ABORTED = "Job aborted due to stage failure"
_URI = re.compile(r"[a-z][a-z0-9+.-]+:/.*", re.IGNORECASE)


# A row of outputs has up to 1 MB, so executors may hold only a few rows. Spark's defaults are for small rows.
_LARGE_ROWS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16",
    "spark.sql.parquet.enableVectorizedReader": "false",
}


@contextmanager
def limit_rows_in_memory(spark: "SparkSession") -> Iterator[None]:
    """Limit the rows that queries of this block hold in memory; then restore the user's settings."""
    before = {name: str(spark.conf.get(name)) for name in _LARGE_ROWS}
    try:
        for name, value in _LARGE_ROWS.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


class WorkFolder:
    """A directory of one job in `given`, which the driver and all executors must share.

    By default it is in `spark.checkpoint.dir`, or in the temporary directory if all executors are local.
    """

    def __init__(self, spark: "SparkSession", given: str = "") -> None:
        self.spark = spark
        self._files = 0
        self._folder = ""
        given = given or spark.conf.get(_CHECKPOINT_SETTING, "") or ""
        if not given:
            master = spark.conf.get("spark.master", "") or ""
            if not master.startswith("local"):
                raise ConfigError(
                    "--work", "", f"a folder that all executors of {master} share, as s3a://BUCKET/FOLDER"
                )
        elif not _URI.fullmatch(given):
            given = Path(given).absolute().as_uri()
        self._parent = given.rstrip("/")

    def store(self, frame: "DataFrame", weights: Sequence[int], advance: Advance) -> "DataFrame":
        """Compute a DataFrame of outputs once, and return it as read from its files.

        Raises LogError.
        """
        if not self._folder and self._parent:
            self._folder = f"{self._parent}/share-coordinator-{uuid4().hex}"
        elif not self._folder:
            self._folder = Path(tempfile.mkdtemp(prefix="share-coordinator-")).as_uri()
        path = f"{self._folder}/{self._files}"
        self._files += 1
        try:
            with limit_rows_in_memory(self.spark), report_progress(self.spark, list(weights), advance):
                frame.write.partitionBy("name").mode("error").parquet(path)
            return self.spark.read.schema(OUTPUTS_SQL).parquet(path)
        except Exception as error:
            raise convert_spark_error(error) from None

    def delete(self) -> None:
        """Delete the stored files; the next job has a new directory. A refused deletion is ignored."""
        if self._folder and not self._parent:
            shutil.rmtree(unquote(urlparse(self._folder).path), ignore_errors=True)
        elif self._folder:
            self._delete_remote()
        self._folder, self._files = "", 0

    def _delete_remote(self) -> None:
        try:
            jvm: Any = self.spark._jvm
            context: Any = self.spark._jsc
        except Exception:
            # Spark Connect gives no access to the file system of the cluster.
            return
        path = jvm.org.apache.hadoop.fs.Path(self._folder)
        path.getFileSystem(context.hadoopConfiguration()).delete(path, True)


def convert_spark_error(error: Exception) -> CoordinatorError:
    """Convert the exception of a task: use the last line of the traceback that Spark wraps."""
    if isinstance(error, CoordinatorError):
        return error
    lines = [line.strip() for line in str(error).splitlines()]
    for line in lines:
        name, colon, text = line.partition(": ")
        if colon and name == f"{ResultsIncomplete.__module__}.{ResultsIncomplete.__name__}":
            return LogError(text)
        if colon and name.startswith("coordinator.errors."):
            return LogError(text)
    # The first lines are about the call and the write. A later line names the lost executor or the failed
    # task.
    aborted = (line.removeprefix(_CAUSED_BY) for line in lines if _ABORTED in line)
    return LogError(f"Spark failed: {next(aborted, format_start_error(error))}")
