"""Tasks of Spark jobs that kill their own executor once in a phase, and change the log at that moment.

Spark pickles these objects by reference, so executors import this module.
"""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from coordinator.operate.migration import log_target
from coordinator.recovery.archive import CopyResult, copy_records
from coordinator.recovery.records import Records
from coordinator.recovery.sources.base import LogCut, LogRange, RangeTask, ReadPlan, Source
from coordinator.recovery.sources.spark import StateLogDataSource, StateLogStreamReader
from coordinator.recovery.tasks import NamedOutput
from tests.recovery.logs_on_disk import open_journal
from tests.recovery.spark_cluster import executor_of_this_task
from tests.unit.log.environments import prune_log


@dataclass(frozen=True)
class ExecutorKill:
    """Kills the executor of the first task that calls this object; with `repeats`, of every task that does.

    `marker` is a file that is created before the executor is killed. The journal in `pruned` is pruned before
    the kill, to the log offset `prune_before` of each state partition. With `worker_survives`, the task's
    Python worker continues after its executor is killed, as after a network partition.
    """

    marker: str
    pruned: str = ""
    prune_before: int = 0
    repeats: bool = False
    is_off: bool = False
    worker_survives: bool = False

    def __call__(self) -> bool:
        """Kill the executor; return whether this call has killed it, and this process survives."""
        if self.is_off:
            return False
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            if not self.repeats:
                return False
        if self.pruned:
            prune_journal(Path(self.pruned), self.prune_before)
        executor = executor_of_this_task()
        if self.worker_survives:
            # The daemon of Spark's Python workers ends with the executor and sends SIGHUP to the workers.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.kill(executor, signal.SIGKILL)
            return True
        os.kill(executor, signal.SIGKILL)
        os._exit(1)


STATE_PARTITIONS = 8
# The appends are small, so that a state partition of a topic is written with several appends.
_APPEND_BYTES = 300
_SURVIVING_APPEND_S = 1.0


def prune_journal(folder: Path, before: int) -> None:
    """Prune a journal as a coordinator does: segments without needed records are removed."""

    async def prune_state_partitions() -> None:
        journal = open_journal(folder, STATE_PARTITIONS)
        await journal.open()
        for state_partition in range(STATE_PARTITIONS):
            await prune_log(journal, state_partition, before)
        await journal.close()

    asyncio.run(prune_state_partitions())


@dataclass(frozen=True)
class InterruptedSource:
    """A source that kills its executor when the records of one range were read but not yet used."""

    inner: Source
    number: int
    kill: ExecutorKill

    @property
    def text(self) -> str:
        """The source as the value of the option --from."""
        return self.inner.text

    def identity(self) -> dict[str, str]:
        """Return the ids of the log."""
        return self.inner.identity()

    def plan(self, cut: LogCut) -> ReadPlan:
        """Return the plan of the inner source."""
        return self.inner.plan(cut)

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Read a range, and kill the executor in the middle of it."""
        for records in self.inner.read(log_range):
            if log_range.number == self.number:
                self.kill()
            yield records


def run_and_kill_executor(kill: ExecutorKill, task: RangeTask, log_range: LogRange) -> list[NamedOutput]:
    """Run a task, and kill its executor when the task has written its files and made its results."""
    outputs = list(task(log_range))
    context = TaskContext.get()
    # Never kill a second attempt: the job would fail, because each task may fail only once.
    if context is not None and not context.attemptNumber():
        kill()
    return outputs


def write_topic_and_kill_executor(
    kills: Sequence[ExecutorKill], task: RangeTask, log_range: LogRange
) -> list[NamedOutput]:
    """Run a task that writes a topic with several appends; kill its executor after the first append.

    Each of `kills` kills the executor of a different task. A surviving worker continues to append, so slowly
    that Spark repeats its task meanwhile.
    """
    append, bytes_max = log_target._append_and_wait, log_target.APPEND_BYTES_MAX
    has_survived = False

    async def append_and_kill(*arguments: Any) -> None:
        nonlocal has_survived
        if has_survived:
            await asyncio.sleep(_SURVIVING_APPEND_S)
        await append(*arguments)
        context = TaskContext.get()
        # Never kill a second attempt: the job would fail, because each task may fail only once.
        if not has_survived and context is not None and not context.attemptNumber():
            has_survived = any(kill() for kill in kills)

    log_target._append_and_wait, log_target.APPEND_BYTES_MAX = append_and_kill, _APPEND_BYTES
    try:
        return list(task(log_range))
    finally:
        log_target._append_and_wait, log_target.APPEND_BYTES_MAX = append, bytes_max


class InterruptedStreamReader(StateLogStreamReader):
    """A stream reader whose executor is killed after the first records of the second range."""

    def __init__(self, options: Mapping[str, str], kill: ExecutorKill) -> None:
        super().__init__(options)
        self._kill = kill

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the ranges of the product's reader, and mark the second range."""
        found = super().partitions(start, end)
        for number, each in enumerate(found):
            each.is_interrupted = number == 1  # type: ignore[attr-defined]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range, and kill the executor in the middle of it."""
        for batch in super().read(partition):
            if partition.is_interrupted:  # type: ignore[attr-defined]
                self._kill()
            yield batch


def interrupted_data_source(kill: ExecutorKill) -> type[StateLogDataSource]:
    """Return the data source of the product with an interrupted stream reader."""

    class InterruptedDataSource(StateLogDataSource):
        def streamReader(self, schema: StructType) -> InterruptedStreamReader:
            return InterruptedStreamReader(dict(self.options), kill)

    return InterruptedDataSource


def copy_records_and_kill_executor(kill: ExecutorKill, *arguments: Any) -> CopyResult:
    """Copy records as `copy_records` does, and kill the executor when the files of an archive are written."""
    copied = copy_records(*arguments)
    kill()
    return copied
