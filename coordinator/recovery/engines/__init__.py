"""The engines that run a job: processes of this machine, or Spark. `base` defines their interface."""

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
    work: str = "",
) -> Engine:
    """Return an engine; start Spark if that engine is selected.

    `auto` selects Spark if a session is active or a master is given, else the local engine. The local engine
    is faster if the log fits on one machine.  `work` is a directory that the driver and all executors share.

    Raises ConfigError, and LogError with a message of one line if Spark cannot be used.
    """
    if name not in ENGINES:
        raise ConfigError("--engine", name, ", ".join(ENGINES))
    if name == "local" and master:
        raise ConfigError("--master", master, "given with --engine spark")
    if name == "local" or (name == "auto" and not (master or _has_session())):
        return LocalEngine(processes)
    from coordinator.recovery.engines.spark import SparkEngine

    return SparkEngine.start(master, work=work)


def _has_session() -> bool:
    """Return whether a notebook or spark-submit has started Spark in this process."""
    # spark-submit sets this variable for its program.
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None
