"""The local engine: read a log with one process for each core, or a small log in the current process.

A fork server that has imported the modules starts the processes, so a start takes milliseconds. The processes
inherit no threads.
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
    """An engine that runs tasks in processes of this machine.

    If stderr is a terminal, the engine shows the progress there.
    """

    name = "local"

    def __init__(self, processes: int | None = None) -> None:
        """Use `processes` processes; by default, as many as there are usable cores."""
        self._processes = processes or len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of Python and of the libraries."""
        return {"python": platform.python_version(), "pyarrow": pa.__version__, "numpy": np.__version__}

    def run(self, task: RangeTask, ranges: Sequence[LogRange]) -> list[NamedOutput]:
        """Run the task for each log range, starting with the largest range."""
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
