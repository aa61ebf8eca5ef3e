"""A standalone Spark cluster on loopback: a master and two worker processes from the jars of pyspark."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.kafka.processes import ChildProcess
from tests.recovery.spark_jvm import spark_jvm_options

_START_TIMEOUT_S = 120.0
_EXECUTOR = b"CoarseGrainedExecutorBackend"
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster: the master's URL and the process ids of the workers."""

    master: str
    workers: tuple[int, ...]

    def environment(self, **settings: str) -> dict[str, str]:
        """Return the environment of a driver whose executors import this checkout."""
        options = {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.extraJavaOptions": spark_jvm_options(),
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
            "spark.sql.shuffle.partitions": "4",
            **settings,
        }
        given = " ".join(f"--conf '{name}={value}'" for name, value in options.items())
        return {
            **os.environ,
            "SPARK_SUBMIT_OPTS": spark_jvm_options(),
            "PYTHONPATH": str(REPOSITORY),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"{given} pyspark-shell",
        }


def list_executors(workers: tuple[int, ...]) -> list[int]:
    """Return the process ids of the executors that the workers have started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            is_executor, parent = _executor_and_parent(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if is_executor and parent in workers:
            found.append(int(entry.name))
    return sorted(found)


def executor_of_this_task() -> int:
    """Return the process id of the executor whose Python worker this process is."""
    pid = os.getpid()
    while True:
        is_executor, parent = _executor_and_parent(pid)
        if is_executor:
            return pid
        assert parent > 1, "this process is not a Python worker of Spark"
        pid = parent


def _executor_and_parent(pid: int) -> tuple[bool, int]:
    """Return whether a process is an executor, and the process id of its parent."""
    process = Path("/proc") / str(pid)
    parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return _EXECUTOR in (process / "cmdline").read_bytes(), parent


def kill_executors(workers: tuple[int, ...]) -> int:
    """Kill all executors of the workers, as in a machine failure; return their number."""
    pids = list_executors(workers)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """Start a master and two workers with one core each; stop them at the end."""
    with ExitStack() as started:
        master = _start_daemon(started, folder, "master", ["Master", "--host", "127.0.0.1", "--port", "0"])
        url = _wait_for_log_match(master, r"Starting Spark master at (spark://\S+)")
        workers = []
        for number in range(2):
            worker = [
                *("Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(folder / f"worker-{number}"), url),
            ]
            workers.append(_start_daemon(started, folder, f"worker-{number}", worker))
        for each in workers:
            _wait_for_log_match(each, r"(Successfully registered with master)")
        yield SparkCluster(url, tuple(each.process.pid for each in workers))


class _Daemon(NamedTuple):
    process: ChildProcess
    log: Path


def _start_daemon(started: ExitStack, folder: Path, name: str, command: list[str]) -> _Daemon:
    """Start a Spark daemon in the foreground."""
    import pyspark

    home = Path(pyspark.__file__).parent
    log = folder / f"{name}.log"
    daemon, *arguments = command
    process = ChildProcess(
        name,
        [
            *(str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon.lower()}.{daemon}"),
            *("--webui-port", "0", *arguments),
        ],
        log,
        environment={
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": spark_jvm_options(),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        },
    )
    process.start()
    # Kill the whole process group: an executor that outlives its worker would write to a deleted directory.
    started.callback(process.kill)
    return _Daemon(process, log)


def _wait_for_log_match(daemon: _Daemon, ready: str) -> str:
    """Wait for a match of the pattern `ready` in the log of a daemon; return the matched group."""
    daemon.process.wait_ready(lambda: re.search(ready, daemon.log.read_text()), seconds=_START_TIMEOUT_S)
    found = re.search(ready, daemon.log.read_text())
    assert found is not None
    return found[1]
