"""Define the interface of an engine: read ranges to outputs, and join the outputs of each state partition.

The outputs of a phase are durable before the next phase uses them. Both phases count the rows of the outputs,
so that a loss is detected (`counts`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from coordinator.recovery.engines.counts import COUNTS_OUTPUT
from coordinator.recovery.folders import Folder
from coordinator.recovery.sources.base import LogRange, Source
from coordinator.recovery.tasks import JoinTask, NamedOutput, ReadTask, TableTask

# Up to this number of records, starting other processes takes longer than reading the log in this process.
ALONE_MAX = 300_000

# Called with the number of further records (approximate) or state partitions that are done, by one thread at
# a time.
Advance = Callable[[int], None]


class PhaseOutputs(Protocol):
    """The outputs of a phase, in memory or in files."""

    def rows(self, name: str) -> list[tuple[int, pa.RecordBatch]]:
        """Return all outputs of a name with their state partitions, in this process."""
        ...

    def table(self, name: str, schema: pa.Schema) -> pa.Table:
        """Return all outputs of a name as one table, in this process."""
        ...

    def collect(self) -> list[NamedOutput]:
        """Return all outputs but the counts, in this process; they must be small."""
        ...

    def without_partitions(self, state_partitions: Collection[int]) -> "PhaseOutputs":
        """Return the outputs of all other state partitions."""
        ...

    def combine_with(self, more: "PhaseOutputs") -> "PhaseOutputs":
        """Return these outputs and others of the same engine."""
        ...

    def join_partitions(self, join: JoinTask, advance: Advance) -> "PhaseOutputs":
        """Join the outputs of each state partition; `advance` counts state partitions.

        Raises ResultsIncomplete if not all of them were read.
        """
        ...

    def map_outputs(self, name: str, task: TableTask) -> list[NamedOutput]:
        """Run a task on each table `name`, in the process that stores the table; return the outputs here."""
        ...

    def write(self, name: str, schema: pa.Schema, order: Sequence[str], folder: Folder, file: str) -> int:
        """Write all outputs of a name as Parquet; return the number of rows that can be read there.

        The local engine writes one file with all rows in this order; the executors of Spark write a directory
        of files, each in this order.
        """
        ...


class Engine(Protocol):
    """Runs the phases of a job."""

    @property
    def name(self) -> str:
        """The engine's name on the command line."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions that the engine runs on, for the manifest."""
        ...

    def gather(
        self, source: Source, ranges: Sequence[LogRange], read: ReadTask, advance: Advance
    ) -> PhaseOutputs:
        """Read ranges. A range that was pruned has the output `PRUNED_OUTPUT` and its counts."""
        ...

    def end_job(self) -> None:
        """Delete the outputs of all phases; the next job does not need them."""
        ...

    def close(self) -> None:
        """Stop the processes or the Spark session that this engine has started."""
        ...


def group_by_partition(
    outputs: Iterable[NamedOutput],
) -> Iterator[tuple[int, dict[str, list[pa.RecordBatch]]]]:
    """Group outputs by state partition and name, without the counts."""
    found: dict[int, dict[str, list[pa.RecordBatch]]] = {}
    for name, state_partition, rows in outputs:
        if name != COUNTS_OUTPUT:
            found.setdefault(state_partition, {}).setdefault(name, []).append(rows)
    yield from sorted(found.items())
