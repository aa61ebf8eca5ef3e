"""Tasks on the folded states of one state partition: count, select, write, or compare the states.

With Spark, these tasks run on the executors, and only their small results are sent to the driver.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coordinator.recovery.records import Damage, column_to_ints
from coordinator.recovery.scan import PartitionScan, ScannedRecords, StateFold
from coordinator.recovery.schema import STATE_TOTALS, STATES
from coordinator.recovery.share_partitions import Row, row_identity, row_share_partition, state_depends_on
from coordinator.recovery.tasks import NamedOutput

STATES_OUTPUT, TOTALS_OUTPUT = "states", "totals"
AFFECTED_OUTPUT = "affected"

STATES_ORDER = ("group_id", "topic_id", "partition", "state_partition")

# The number of states that a task converts to Python objects at a time; an object takes 6 KB.
_CHUNK_STATES = 20_000


@dataclass(frozen=True)
class PartitionStates:
    """The states of one state partition, as rows of `STATES`.

    In an audit, `deleted` has the last tombstone of each deleted share-partition, by record key without its
    type. `starts` and `attempt` are those of `PartitionScan`.
    """

    state_partition: int
    states: pa.Table
    deleted: Mapping[bytes, int] = field(default_factory=dict)
    damages: Sequence[Damage] = ()
    starts: Mapping[int, int] = field(default_factory=dict)
    attempt: int = 0

    @classmethod
    def from_scan(
        cls, scan: PartitionScan, states: pa.RecordBatch, deleted: Mapping[bytes, int] | None = None
    ) -> "PartitionStates":
        """Return the states at the end of a scan."""
        table, number = pa.Table.from_batches([states]), scan.state_partition
        return cls(number, table, deleted or {}, scan.damages, scan.starts, scan.attempt)

    def chunks(self, columns: Collection[str] = ()) -> Iterator[list[Row]]:
        """Yield the states as dicts, with all columns by default."""
        states = self.states.select(list(columns)) if columns else self.states
        for rows in states.to_batches(_CHUNK_STATES):
            yield rows.to_pylist()

    def rows(self, columns: Collection[str] = ()) -> Iterator[Row]:
        """Yield the states as dicts; only some of them are in memory at a time."""
        for rows in self.chunks(columns):
            yield from rows

    def match_damages_to_share_partitions(self) -> list[tuple[Damage, tuple[bytes, ...]]]:
        """Return each damage with the share-partitions whose records it destroyed, if they are known.

        The keys in damaged records may be wrong, so they are used only if there is a state for every key.
        """
        if not self.damages:
            return []
        known = {row_identity(row) for row in self.rows(STATES_ORDER)}
        return [
            (each, each.share_partitions if known.issuperset(each.share_partitions) else ())
            for each in self.damages
        ]


# The outputs of a task must be small.
StateTask = Callable[[PartitionStates], Iterable[NamedOutput]]


def empty_partition_states(state_partition: int, starts: Mapping[int, int] | None = None) -> PartitionStates:
    """Return the `PartitionStates` of a state partition that contains no state."""
    return PartitionStates(state_partition, STATES.empty_table(), starts=starts or {})


class StateObserver:
    """Folds the records of a state partition, and runs tasks on its states; this is an `Observer`."""

    def __init__(self, tasks: Sequence[StateTask], scan: PartitionScan) -> None:
        self._tasks = tasks
        self._scan = scan
        self._fold = StateFold(scan)

    def process(self, scanned: ScannedRecords) -> None:
        """Process the next records."""
        self._fold.add(scanned.decoded)

    def outputs(self) -> Iterator[NamedOutput]:
        """Yield the outputs of the tasks, and the share-partitions that damage affects."""
        inside = PartitionStates.from_scan(self._scan, self._fold.to_arrow())
        for task in (find_affected, *self._tasks):
            yield from task(inside)


def count_states(inside: PartitionStates) -> Iterator[NamedOutput]:
    """Yield the totals of the states as a row of `STATE_TOTALS`; this is a `StateTask`."""
    states, number = inside.states, inside.state_partition
    row: dict[str, Any] = dict.fromkeys(STATE_TOTALS.names, 0)
    row |= {"state_partition": number, "states": len(states), "pinned_by": ""}
    if len(states):
        pin = int(np.argmin(column_to_ints(states.column("needed_from"))))
        (oldest,) = states.slice(pin, 1).to_pylist()
        row |= {
            "unreadable": len(states) - states.column("unreadable").null_count,
            "state_batches": pc.sum(pc.list_value_length(states.column("state_batches"))).as_py(),
            "needed_from": oldest["needed_from"],
            "pinned_by": str(row_share_partition(oldest)),
            "pinned_since_ms": oldest["write_timestamp"] or oldest["last_write_ms"],
        }
    yield NamedOutput(TOTALS_OUTPUT, number, pa.RecordBatch.from_pylist([row], STATE_TOTALS))


def select_states(inside: PartitionStates) -> Iterator[NamedOutput]:
    """Yield all states of the state partition; this is a `StateTask`."""
    for rows in inside.states.to_batches():
        yield NamedOutput(STATES_OUTPUT, inside.state_partition, rows)


def first_states_task(count: int) -> StateTask:
    """Return the task that selects the first `count` states, ordered by group, topic and partition."""
    return partial(_select_first_states, count)


def _select_first_states(count: int, inside: PartitionStates) -> Iterator[NamedOutput]:
    rows = pc.select_k_unstable(inside.states, count, [(name, "ascending") for name in STATES_ORDER])
    yield from select_states(PartitionStates(inside.state_partition, inside.states.take(rows)))


def find_affected(inside: PartitionStates) -> Iterator[NamedOutput]:
    """Yield the share-partitions that may lack updates because of damage; this is a `StateTask`.

    If the latest snapshot of a share-partition is after the damage, its state is complete.
    """
    damages = inside.match_damages_to_share_partitions()
    if not damages:
        return
    affected = [
        {"share_partition": str(row_share_partition(row))}
        for row in inside.rows((*STATES_ORDER, "write_timestamp", "needed_from"))
        if any(
            state_depends_on(row, each.last) and (not names or row_identity(row) in names)
            for each, names in damages
        )
    ]
    yield NamedOutput.from_rows(AFFECTED_OUTPUT, inside.state_partition, *affected)
