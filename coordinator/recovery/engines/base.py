"""The port to what does the work of a job: ranges are read, and what they amount to is joined."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from coordinator.recovery.sources.base import LogRange, Pruned, Source
from coordinator.recovery.tasks import JoinTask, Output, ReadTask

# Below this many records other processes take longer to start than the work takes.
ALONE_MAX = 300_000

# The output of a range that could not be read; see `Pruned`.
PRUNED = "pruned"
_PRUNED = pa.schema([pa.field("start", pa.int64(), nullable=False)])

# Told of so much more that is done (records, about; or state partitions), from one thread at a time.
Advance = Callable[[int], None]


class Gathered(Protocol):
    """The outputs of all ranges, wherever they are."""

    def rows(self, name: str) -> list[tuple[int, pa.RecordBatch]]:
        """Bring all outputs of a name here, with their state partitions."""
        ...

    def without(self, state_partitions: Collection[int]) -> "Gathered":
        """Return the outputs of all other state partitions."""
        ...

    def with_more(self, more: "Gathered") -> "Gathered":
        """Return these outputs and others of the same engine."""
        ...

    def joined(self, join: JoinTask, schema: pa.Schema, advance: Advance) -> pa.Table:
        """Join the outputs of each state partition, and bring the rows here; `advance` counts partitions."""
        ...

    def close(self) -> None:
        """Let go of what is held."""
        ...


class Engine(Protocol):
    """Does the work of a job."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """What it runs on, for the manifest."""
        ...

    def gather(
        self, source: Source, ranges: Sequence[LogRange], read: ReadTask, advance: Advance
    ) -> Gathered:
        """Read ranges. One that was pruned meanwhile has the output `PRUNED` and no other."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


def outputs_of(source: Source, log_range: LogRange, read: ReadTask) -> Iterable[Output]:
    """Read one range, in whatever process."""
    try:
        return list(read(source.read(log_range)))
    except Pruned as pruned:
        start = pa.RecordBatch.from_pylist([{"start": pruned.start}], _PRUNED)
        return [Output(PRUNED, pruned.state_partition, start)]


def pruned_starts(gathered: Gathered) -> dict[int, int]:
    """Return the state partitions that were pruned while they were read, and where they begin now."""
    found: dict[int, int] = {}
    for state_partition, rows in gathered.rows(PRUNED):
        found[state_partition] = max(found.get(state_partition, 0), rows.column("start")[0].as_py())
    return found


def by_partition(outputs: Iterable[Output]) -> Iterator[tuple[int, dict[str, list[pa.RecordBatch]]]]:
    """Sort outputs by state partition and name."""
    found: dict[int, dict[str, list[pa.RecordBatch]]] = {}
    for name, state_partition, rows in outputs:
        found.setdefault(state_partition, {}).setdefault(name, []).append(rows)
    yield from sorted(found.items())
