"""The local engine: reads a log with one process for each core; a small log, in the current process.

Processes are started by a fork server that has the modules imported, so a start takes milliseconds. The
processes inherit no threads.
"""

import multiprocessing
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import track

from coordinator.errors import LogError
from coordinator.recovery.sources.base import LogRange, RangeTask
from coordinator.recovery.tasks import NamedOutput

# Up to this number of records, starting other processes takes longer than reading the log in this process.
ALONE_MAX = 300_000


class LocalEngine:
    """Processes of this machine. If stderr is a terminal, it shows the progress."""

    name = "local"

    def __init__(self, processes: int | None = None) -> None:
        """Use this number of processes; by default the number of usable cores."""
        self._processes = processes or len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the platform."""
        return {"python": platform.python_version(), "pyarrow": pa.__version__, "numpy": np.__version__}

    def run(self, task: RangeTask, ranges: Sequence[LogRange]) -> list[NamedOutput]:
        """Run the task for each range, largest first."""
        ordered = sorted(ranges, key=lambda each: -each.records)
        is_small = sum(each.records for each in ordered) <= ALONE_MAX
        runs_in_this_process = self._processes == 1 or len(ordered) < 2 or is_small
        results = map(task, ordered) if runs_in_this_process else self._run_in_processes(task, ordered)
        shown = track(
            results,
            "state partitions",
            total=len(ordered),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        return [output for outputs in shown for output in outputs]

    def _run_in_processes(self, task: RangeTask, ranges: Sequence[LogRange]) -> Iterator[list[NamedOutput]]:
        if self._pool is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["coordinator.recovery.rebuild"])
            self._pool = ProcessPoolExecutor(self._processes, mp_context=context)
        waiting = [self._pool.submit(_run_task, task, each) for each in ranges]
        try:
            for done in as_completed(waiting):
                yield done.result()
        except BrokenProcessPool:
            raise LogError(
                "a process died while it read the log, possibly out of memory; reduce --processes"
            ) from None
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _run_task(task: RangeTask, log_range: LogRange) -> list[NamedOutput]:
    return list(task(log_range))
