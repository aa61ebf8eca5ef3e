"""The engines that run the tasks of a job: processes of this machine, or Spark."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from coordinator.errors import ConfigError
from coordinator.recovery.engines.local import LocalEngine
from coordinator.recovery.engines.spark_session import is_spark_started
from coordinator.recovery.sources.base import LogRange, RangeTask
from coordinator.recovery.tasks import NamedOutput

ENGINES = ("auto", "local", "spark")

__all__ = ["ENGINES", "Engine", "LocalEngine", "open_engine"]


class Engine(Protocol):
    """Runs a task for each log range, in any order and on any machine."""

    @property
    def name(self) -> str:
        """The engine's name on the command line."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of Python, libraries and Spark that the engine uses, for the manifest."""
        ...

    def run(self, task: RangeTask, ranges: Sequence[LogRange]) -> list[NamedOutput]:
        """Run the task for each log range, and return all task outputs. Raises LogError."""
        ...

    def close(self) -> None:
        """Stop the processes or the Spark session that this engine has started."""
        ...


def open_engine(name: str = "auto", *, master: str = "", processes: int | None = None) -> Engine:
    """Return the engine with this name; for `spark`, start a Spark session unless one is active.

    `auto` selects Spark if a session is active or a master is given, else the local engine. The local engine
    is faster if the log fits on one machine.

    Raises ConfigError for an unknown name, and LogError with a one-line message if Spark cannot be used.
    """
    if name not in ENGINES:
        raise ConfigError("--engine", name, ", ".join(ENGINES))
    if name == "local" and master:
        raise ConfigError("--master", master, "given with --engine spark")
    if name == "local" or (name == "auto" and not (master or is_spark_started())):
        return LocalEngine(processes)
    from coordinator.recovery.engines.spark import SparkEngine

    return SparkEngine.start(master)
