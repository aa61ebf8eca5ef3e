"""What does the work: processes of this machine, or Spark; `base` is the port."""

import os
import sys

from coordinator.errors import ConfigError
from coordinator.recovery.engines.base import Engine
from coordinator.recovery.engines.local import LocalEngine

ENGINES = ("auto", "local", "spark")

__all__ = ["ENGINES", "Engine", "LocalEngine", "open_engine"]


def open_engine(
    name: str = "auto",
    *,
    master: str = "",
    processes: int | None = None,
    connector: bool = False,
    work: str = "",
) -> Engine:
    """Return an engine; start Spark if it is that.

    `auto` is Spark where a session is active or a master is given, else this machine alone, which is faster
    for all that fits a machine.  With `connector`, Spark reads topics through its own Kafka connector, whose
    jar must be there.  `work` is a folder that the driver and all executors share.

    Raises ConfigError, and LogError in one line if Spark cannot be used.
    """
    if name not in ENGINES:
        raise ConfigError("--engine", name, ", ".join(ENGINES))
    if name == "local" and master:
        raise ConfigError("--master", master, "given with --engine spark")
    if name == "local" and connector:
        raise ConfigError("--kafka-connector", "", "given with --engine spark")
    if name == "local" or (name == "auto" and not (master or connector or _has_session())):
        return LocalEngine(processes)
    from coordinator.recovery.engines.spark import SparkEngine

    return SparkEngine.started(master, connector=connector, work=work)


def _has_session() -> bool:
    """Say whether somebody has started Spark in this process, as notebooks and spark-submit do."""
    # As spark-submit tells the program that it runs.
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None
