"""Show the progress of a job: a bar for each phase, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class JobPhases:
    """The phases of a job; this class shows nothing."""

    @contextmanager
    def phase(self, what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Begin a phase; the caller passes each amount of progress to the yielded function."""
        yield lambda more: None


class ProgressBars(JobPhases):
    """Shows each phase as a progress bar with its rate."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def phase(self, what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Show a bar, which stays on the screen after the phase."""
        task = self._progress.add_task(what, total=total, unit=unit, rate="")

        def advance(more: int) -> None:
            self._progress.advance(task, more)
            self._show_rate(task, unit)

        yield advance
        self._progress.update(task, completed=total)

    def _show_rate(self, task: TaskID, unit: str) -> None:
        found = self._progress.tasks[self._progress.task_ids.index(task)]
        if found.elapsed:
            self._progress.update(task, rate=f"{found.completed / found.elapsed:,.0f} {unit}/s")


@contextmanager
def progress_display(stream: TextIO | None = None) -> Iterator[JobPhases]:
    """Show phases on a stream, stderr by default, if it is a terminal."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield JobPhases()
        return
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=Console(file=stream)) as progress:
        yield ProgressBars(progress)
