"""Start or reuse a Spark session, and explain failures in one line.

An active session (of a notebook or spark-submit) is used unchanged.
"""

import os
import sys
from typing import TYPE_CHECKING

from coordinator.errors import LogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA = "Spark requires Java 17 or later (apt-get install openjdk-17-jre-headless)"
# Settings of a session that this module starts; settings of the user take precedence.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_LOG_LEVEL = "spark.log.level"


class SparkUnavailable(LogError):
    """Raised if Spark cannot be used; the message is one line that says what to do."""


class SparkStopped(LogError):
    """Raised if the Spark session of this process has ended. No later job of this process can use Spark."""

    def __init__(self) -> None:
        super().__init__("the Spark session has ended (its JVM died or was stopped); restart this command")


def is_session_running(spark: "SparkSession") -> bool:
    """Return whether a session can run jobs; a session of Spark Connect always counts as running."""
    context = getattr(spark, "sparkContext", None)
    try:
        return context is None or not context._jsc.sc().isStopped()
    except Exception:
        # The connection to the JVM is closed, or another thread has stopped the context.
        return False


def stop_session(spark: "SparkSession") -> None:
    """Stop a session; do nothing if it has ended already."""
    if is_session_running(spark):
        spark.stop()


def active_session() -> "SparkSession | None":
    """Return the active session of this process; None without one."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def is_spark_started() -> bool:
    """Return whether a notebook or spark-submit has started Spark in this process."""
    # spark-submit sets this variable for its program.
    return "PYSPARK_GATEWAY_PORT" in os.environ or active_session() is not None


def get_or_start_session(master: str = "", options: dict[str, str] | None = None) -> "SparkSession":
    """Return the active session, or start one. Raises SparkUnavailable."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkUnavailable(
            "the Spark engine requires PySpark: pip install share-coordinator[spark]"
        ) from None
    if (active := active_session()) is not None:
        return active
    # Without this setting, workers use the first python3 in the path, which lacks the packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("share-coordinator recovery")
    if master:
        builder = builder.master(master)
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master("local[*]")
    for name, value in (options or {}).items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
        given = spark.sparkContext.getConf()
        for name, value in _SETTINGS.items():
            if not given.contains(name):
                spark.conf.set(name, value)
        if not given.contains(_LOG_LEVEL):
            spark.sparkContext.setLogLevel("ERROR")
        return spark
    except Exception as error:
        raise SparkUnavailable(
            f"Spark does not start{f' on {master}' if master else ''}: {format_start_error(error)}"
        ) from None


def format_start_error(error: Exception) -> str:
    """Return the cause of a failed Spark start in one line."""
    lines = [line.removeprefix(": ") for line in str(error).strip().splitlines()]
    if lines and lines[0].startswith("An error occurred while calling"):
        # Skip the Python part of the message, which comes before the Java part.
        lines.pop(0)
    if not lines:
        return type(error).__name__
    if "stopped SparkContext" in lines[0]:
        return "no master answers at this address, or it rejects the application"
    if "JAVA_GATEWAY_EXITED" in lines[0]:
        return f"Java exited, see its output above; {_JAVA}"
    return lines[0]
