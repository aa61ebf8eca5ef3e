"""The local engine: reads a log with one process for each core; a small log, in the current process.

Processes are started by a fork server that has the modules imported, so a start takes milliseconds. The
processes inherit no threads.
"""

import multiprocessing
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from coordinator.errors import LogError
from coordinator.recovery.engines.base import ALONE_MAX, Advance, PhaseOutputs, group_by_partition
from coordinator.recovery.engines.counts import (
    COUNTS_OUTPUT,
    check_join_counts,
    join_and_count,
    read_and_count,
)
from coordinator.recovery.folders import Folder
from coordinator.recovery.sources.base import ALL, LogRange, Source
from coordinator.recovery.tasks import JoinTask, NamedOutput, ReadTask, TableTask


@dataclass
class LocalOutputs:
    """Outputs in the memory of this process."""

    outputs: list[NamedOutput]

    def rows(self, name: str) -> list[tuple[int, pa.RecordBatch]]:
        """Return all outputs of a name."""
        return [(output.state_partition, output.rows) for output in self.outputs if output.name == name]

    def without_partitions(self, state_partitions: Collection[int]) -> "LocalOutputs":
        """Return the outputs of all other state partitions."""
        if ALL in state_partitions:
            return LocalOutputs([])
        return LocalOutputs([each for each in self.outputs if each.state_partition not in state_partitions])

    def combine_with(self, more: PhaseOutputs) -> "LocalOutputs":
        """Return these outputs and others together."""
        assert isinstance(more, LocalOutputs)
        return LocalOutputs([*self.outputs, *more.outputs])

    def table(self, name: str, schema: pa.Schema) -> pa.Table:
        """Return all outputs of a name as one table."""
        return pa.Table.from_batches([rows for _, rows in self.rows(name)], schema)

    def collect(self) -> list[NamedOutput]:
        """Return all outputs but the counts."""
        return [each for each in self.outputs if each.name != COUNTS_OUTPUT]

    def join_partitions(self, join: JoinTask, advance: Advance) -> "LocalOutputs":
        """Join the outputs of each state partition one after the other, because they are small."""
        found: list[NamedOutput] = []
        for state_partition, named in group_by_partition(self.outputs):
            found += join_and_count(join, state_partition, named)
            advance(1)
        joined = LocalOutputs(found)
        check_join_counts(self, joined)
        return joined

    def map_outputs(self, name: str, task: TableTask) -> list[NamedOutput]:
        """Run a task on each table `name`."""
        return [output for state_partition, rows in self.rows(name) for output in task(state_partition, rows)]

    def write(self, name: str, schema: pa.Schema, order: Sequence[str], folder: Folder, file: str) -> int:
        """Write one file."""
        table = self.table(name, schema).sort_by([(column, "ascending") for column in order])
        folder.write_parquet(file, table)
        return len(table)


class LocalEngine:
    """Processes of this machine."""

    name = "local"

    def __init__(self, processes: int | None = None) -> None:
        """Use this number of processes; by default the number of usable cores."""
        self._processes = processes or len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the platform."""
        return {"python": platform.python_version(), "pyarrow": pa.__version__, "numpy": np.__version__}

    def gather(
        self, source: Source, ranges: Sequence[LogRange], read: ReadTask, advance: Advance
    ) -> LocalOutputs:
        """Read ranges, largest first."""
        ordered = sorted(ranges, key=lambda each: -each.records)
        found: list[NamedOutput] = []
        if self._processes == 1 or len(ordered) < 2 or sum(each.records for each in ordered) <= ALONE_MAX:
            for log_range in ordered:
                found += read_and_count(source, log_range, read)
                advance(log_range.records)
            return LocalOutputs(found)
        pool = self._start_pool()
        waiting = {pool.submit(read_and_count, source, each, read): each for each in ordered}
        try:
            for done in as_completed(waiting):
                found += done.result()
                advance(waiting[done].records)
        except BrokenProcessPool:
            raise LogError(
                "a process died while it read the log, possibly out of memory; reduce --processes"
            ) from None
        finally:
            for future in waiting:
                future.cancel()
        return LocalOutputs(found)

    def _start_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["coordinator.recovery.rebuild"])
            self._pool = ProcessPoolExecutor(self._processes, mp_context=context)
        return self._pool

    def end_job(self) -> None:
        """Do nothing: outputs are in memory."""

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
