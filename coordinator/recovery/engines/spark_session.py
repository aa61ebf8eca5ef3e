"""Start or reuse a Spark session, and explain failures in one line.

An active session (of a notebook or spark-submit) is used unchanged.
"""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.errors import ConfigError, LogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_PACKAGE = "openjdk-17-jre-headless"
# Settings of a session that this module starts, unless the user has set them.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_LOG_LEVEL = "spark.log.level"

# The forms that Spark's launcher accepts.
_MASTER = re.compile(r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|spark://.+|k8s://.+|yarn")


class SparkMissing(LogError):
    """Spark cannot be used; the text is one line that says what to do."""


def get_or_start_session(master: str = "", options: dict[str, str] | None = None) -> "SparkSession":
    """Return the active session, or start one. Raises SparkMissing, and ConfigError for an invalid master."""
    _check_pyspark()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    check_master(master)
    # Workers would use the first python3 in the path, which lacks the packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _check_java()
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
        raise SparkMissing(
            f"Spark does not start{f' on {master}' if master else ''}: {format_start_error(error)}"
        ) from None


def check_master(master: str) -> None:
    """Refuse an invalid master, because Spark would report it with a long Java stack trace.

    Raises ConfigError.
    """
    if master and not _MASTER.fullmatch(master):
        raise ConfigError("--master", master, "local[N], spark://HOST:PORT, k8s://URL or yarn")


def _check_pyspark() -> None:
    try:
        import pyspark
    except ImportError:
        raise SparkMissing(
            "the Spark engine requires PySpark: pip install share-coordinator[spark]"
        ) from None
    try:
        import pandas
    except ImportError:
        raise SparkMissing("PySpark requires pandas: pip install share-coordinator[spark]") from None
    if int(pandas.__version__.split(".")[0]) >= 3:
        raise SparkMissing(
            f"PySpark {pyspark.__version__} does not support pandas {pandas.__version__}: "
            f"pip install 'pandas<3'"
        )


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else None
    if java is not None and java.is_file():
        return
    if java is not None:
        raise SparkMissing(f"JAVA_HOME is {home}, which has no Java; Spark requires Java 17 or later")
    if shutil.which("java") is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        raise SparkMissing(
            f"Spark requires Java 17 or later, and none is installed: apt-get install {_JAVA_PACKAGE}"
        )


def format_start_error(error: Exception) -> str:
    """Return the cause of a failed Spark start in one line."""
    lines = [line.removeprefix(": ") for line in str(error).strip().splitlines()]
    if lines and lines[0].startswith("An error occurred while calling"):
        # Skip Python's part of the message, which comes before Java's.
        lines.pop(0)
    if not lines:
        return type(error).__name__
    if "stopped SparkContext" in lines[0]:
        return "no master answers at this address, or it rejects the application"
    if "JAVA_GATEWAY_EXITED" in lines[0]:
        return f"Java exited, see its output above; Spark requires Java 17 or later ({lines[0]})"
    return lines[0]


def has_active_session() -> bool:
    """Return whether a session is active in this process."""
    _check_pyspark()
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None
