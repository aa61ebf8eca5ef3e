"""Phase 3: compare the states of each state partition with another system.

The comparisons run where the states are, on the executors of Spark. Only small results reach the driver.
A state that is in the wrong state partition is also sent to the state partition that its hash selects. So all
states of a share-partition are compared together, however many state partitions have one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from coordinator.recovery.checks.range_audit import DELETED_OUTPUT
from coordinator.recovery.deduplication import Row, row_share_partition
from coordinator.recovery.engines.base import PhaseOutputs
from coordinator.recovery.final_states import STATES_OUTPUT
from coordinator.recovery.progress import JobPhases
from coordinator.recovery.schema import STATES
from coordinator.recovery.tasks import JoinTask, NamedOutput, Tables
from protocol.routing import state_partition as routed_to
from protocol.state_records import SharePartitionKey

MISPLACED_OUTPUT = "misplaced"
_KEY = ("group_id", "topic_id", "partition")

# The number of states that a task converts to Python objects at a time; an object takes 6 KB.
_CHUNK_STATES = 20_000

# The number of state partitions that is assumed if the actual number is not known.
_STATE_PARTITIONS = 50


@dataclass(frozen=True)
class PartitionStates:
    """The states of one state partition.

    `deleted` are the last tombstones by record key without its type. `misplaced` are states that the hash
    assigns to this state partition, but that are in other state partitions.
    """

    state_partition: int
    states: pa.Table
    misplaced: pa.Table
    deleted: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def from_tables(cls, state_partition: int, tables: Tables) -> "PartitionStates":
        """Return the states in the outputs of phase 2."""
        deleted = [row for rows in tables.get(DELETED_OUTPUT, ()) for row in rows.to_pylist()]
        return cls(
            state_partition,
            pa.Table.from_batches(tables.get(STATES_OUTPUT, ()), STATES),
            pa.Table.from_batches(tables.get(MISPLACED_OUTPUT, ()), STATES),
            {row["share_partition"]: row["log_offset"] for row in deleted},
        )

    def chunks(self, columns: Collection[str] = ()) -> Iterator[list[Row]]:
        """Yield the states as dicts, with all columns by default."""
        states = self.states.select(list(columns)) if columns else self.states
        for rows in states.to_batches(_CHUNK_STATES):
            yield rows.to_pylist()


# Compares the states of one state partition; its outputs must be small.
StateTask = Callable[[PartitionStates], Iterable[NamedOutput]]


def hash_to_partition(key: SharePartitionKey, state_partitions: int | None) -> int:
    """Return the state partition that the hash selects; `state_partitions` is None if it is not known."""
    return routed_to(key, state_partitions or _STATE_PARTITIONS)


def join_with_misplaced_states(
    state_partitions: int | None, join: JoinTask, state_partition: int, tables: Tables
) -> Iterator[NamedOutput]:
    """Join, and send misplaced states to the state partition of their hash; this is a `JoinTask`.

    If the number of state partitions is not known, all states are sent.
    """
    for output in join(state_partition, tables):
        yield output
        if output.name == STATES_OUTPUT:
            rows = output.rows.select(list(_KEY)).to_pylist()
            homes = np.array(
                [hash_to_partition(row_share_partition(row), state_partitions) for row in rows], np.int64
            )
            for home in np.unique(homes).tolist():
                if state_partitions is None or home != state_partition:
                    yield NamedOutput(MISPLACED_OUTPUT, home, output.rows.filter(pa.array(homes == home)))


def check_states(tasks: Sequence[StateTask], state_partition: int, tables: Tables) -> Iterator[NamedOutput]:
    """Yield the outputs of all tasks; with `tasks` bound, this is a `JoinTask`."""
    inside = PartitionStates.from_tables(state_partition, tables)
    for task in tasks:
        yield from task(inside)


def compare_states(
    joined: PhaseOutputs,
    tasks: Sequence[StateTask],
    phases: JobPhases,
    *,
    present: Collection[int],
    wanted: Iterable[int],
) -> list[NamedOutput]:
    """Run tasks on the states of the `present` state partitions; return their outputs in this process.

    State partitions that are `wanted` and not present have no states; for these, the tasks run in this
    process.
    """
    with phases.phase("compare", len(present), "partitions") as advance:
        outputs = joined.join_partitions(partial(check_states, tasks), advance).collect()
    known = {*present, *(output.state_partition for output in outputs)}
    for number in sorted(set(wanted) - known):
        outputs += check_states(tasks, number, {})
    return outputs
