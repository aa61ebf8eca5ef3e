"""Start or reuse a Spark session, and explain failures in one line.

An active session (of a notebook or spark-submit) is used unchanged.
"""

import os
import re
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.errors import ConfigError, LogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_PACKAGE = "openjdk-17-jre-headless"
_OPTIONS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.python.filterPushdown.enabled": "true",
}

# The forms that Spark's launcher accepts.
_MASTER = re.compile(r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|spark://.+|k8s://.+|yarn")


# A line of a properties file: name, then white space, "=" or ":", then the value.
_PROPERTY = re.compile(r"\s*(spark\.[^\s=:]+)\s*[\s=:]\s*(.*)")


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
    for name, value in {**_OPTIONS, **user_settings(), **(options or {})}.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise SparkMissing(
            f"Spark does not start{f' on {master}' if master else ''}: {format_start_error(error)}"
        ) from None


def user_settings() -> dict[str, str]:
    """Return the user's settings that the session builder would override; they take precedence.

    The settings come from spark-submit or `PYSPARK_SUBMIT_ARGS`, and from the properties file.
    """
    given: dict[str, str] = {}
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        given, arguments = dict(SparkConf().getAll()), []
    file = _default_properties()
    for name, value in pairwise([*arguments, ""]):
        if name == "--properties-file":
            file = Path(value)
    if file is not None and file.is_file():
        for line in file.read_text("utf-8").splitlines():
            matched = _PROPERTY.match(line)
            if matched:
                given[matched[1]] = matched[2].strip()
    for name, value in pairwise([*arguments, ""]):
        setting = value if name in ("--conf", "-c") else name.removeprefix("--conf=")
        if (name in ("--conf", "-c") or name.startswith("--conf=")) and "=" in setting:
            key, _, given[key] = setting.partition("=")
    return {name: value for name, value in given.items() if name in _OPTIONS}


def _default_properties() -> Path | None:
    folder = os.environ.get("SPARK_CONF_DIR")
    home = os.environ.get("SPARK_HOME")
    if folder is None and home is None:
        return None
    return Path(folder or f"{home}/conf") / "spark-defaults.conf"


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
