"""Run `share-coordinator`, and append the CPU time between ticks of its event loop to a file.

Run as `python -m tests.limits.observed FILE ARGUMENTS`. A timer fires every millisecond. If one iteration of
the event loop takes long, the CPU time between two ticks is high. Unlike latency, CPU time does not depend on
other processes.
"""

import asyncio
import os
import sys
import time
from array import array
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from coordinator.process import event_loop
from tests.kafka.jars import REPOSITORY
from tests.kafka.served_process import ProgramBuild

TICK_S = 0.001


class LoopTime(NamedTuple):
    """An event loop's CPU time during an attack: in total (seconds), and between two ticks (ms)."""

    cpu_s: float
    p999_ms: float
    max_ms: float


class LoopTimes:
    """Reads the CPU times that an observed process has written to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begin = 0

    @property
    def build(self) -> ProgramBuild:
        """The command that runs the coordinator as an observed process."""
        command = (sys.executable, "-m", "tests.limits.observed", str(self._file))
        return ProgramBuild(command, {"PYTHONPATH": str(REPOSITORY)})

    def start_measurement(self) -> None:
        """Begin a measurement."""
        self._begin = self._file.stat().st_size

    def finish_measurement(self) -> LoopTime:
        """Return the CPU times since `start_measurement`."""
        ticks = array("d", self._file.read_bytes()[self._begin :])
        ordered = sorted(ticks)
        return LoopTime(sum(ticks), ordered[int(len(ticks) * 0.999)] * 1000, ordered[-1] * 1000)


async def _run_with_ticks(main: Coroutine[None, None, Any], file: int) -> Any:
    loop = asyncio.get_running_loop()
    before_s = time.thread_time()

    def measure_tick() -> None:
        nonlocal before_s
        now_s = time.thread_time()
        os.write(file, array("d", [now_s - before_s]).tobytes())
        before_s = now_s
        loop.call_later(TICK_S, measure_tick)

    measure_tick()
    return await main


def _run_observed(path: str, arguments: list[str]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    run = event_loop.run

    def run_with_ticks(main: Coroutine[None, None, Any]) -> Any:
        return run(_run_with_ticks(main, file))

    event_loop.run = run_with_ticks  # type: ignore[assignment]
    from coordinator.cli import main as command

    sys.argv = ["share-coordinator", *arguments]
    command()


if __name__ == "__main__":
    _run_observed(sys.argv[1], sys.argv[2:])
