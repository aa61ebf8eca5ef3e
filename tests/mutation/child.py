"""Run a function in a forked process, with limits of CPU time, elapsed time and memory."""

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_MEMORY_MAX = 8 << 30


class Child:
    """A forked process that calls a function, and exits with the status that the function returns."""

    def __init__(self, run: Callable[[], int], folder: Path, cpu_s: float) -> None:
        """Start the process, with limits of `cpu_s` seconds of CPU time and 5 * `cpu_s` elapsed."""
        folder.mkdir(parents=True, exist_ok=True)
        self._output = folder / "output.txt"
        self._ends_s = time.monotonic() + 5 * cpu_s
        self.pid = os.fork()
        if not self.pid:
            _run_and_exit(run, self._output, round(cpu_s))

    def output(self) -> str:
        """Return what the process has printed."""
        return self._output.read_text(errors="replace")

    def poll(self) -> int | None:
        """Return the exit status if the process has ended, else None.

        The status is negative after a timeout.
        """
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if ended:
            self._kill_group()
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() < self._ends_s:
            return None
        self.stop()
        return -signal.SIGKILL

    def stop(self) -> None:
        """Kill the process."""
        self._kill_group()
        os.waitpid(self.pid, 0)

    def _kill_group(self) -> None:
        """Kill the process, and the processes that its tests have started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def run_children(
    starts: Iterable[tuple[Any, Callable[[Path], Child]]], workers: int, folder: Path
) -> Iterator[tuple[Any, int, str]]:
    """Run child processes, `workers` at a time; yield name, status and output of each one when it ends."""
    waiting = iter(starts)
    running: dict[int, tuple[Any, Child]] = {}
    try:
        while True:
            for worker in set(range(workers)) - set(running):
                if following := next(waiting, None):
                    name, start = following
                    running[worker] = (name, start(folder / f"worker-{worker}"))
            if not running:
                return
            time.sleep(0.005)
            for worker, (name, child) in list(running.items()):
                if (status := child.poll()) is not None:
                    del running[worker]
                    yield name, status, child.output()
    finally:
        for _, child in running.values():
            child.stop()


def _run_and_exit(run: Callable[[], int], output: Path, cpu_s: int) -> None:
    status = 70
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        status = run()
    except BaseException:
        traceback.print_exc()
    finally:
        # A test may have closed the output streams.
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
