"""The job `rebuild`: compute the state of every share-partition as a coordinator loads it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coordinator.process.clock import Clock, SystemClock
from coordinator.recovery.engines.base import Engine, PhaseOutputs
from coordinator.recovery.engines.counts import ResultsIncomplete, output_rows
from coordinator.recovery.final_states import STATES_OUTPUT, TOTALS_OUTPUT, join_states, owner_epochs
from coordinator.recovery.folders import Folder, Location, open_folder
from coordinator.recovery.job import LogReadResult, read_log, states_near_damage
from coordinator.recovery.manifest import (
    STATES_FILE,
    STATES_ORDER,
    StoredStates,
    check_empty_folder,
    make_manifest,
    write_results,
)
from coordinator.recovery.progress import JobPhases
from coordinator.recovery.ranges import fold_range
from coordinator.recovery.schema import RANGES, STATES
from coordinator.recovery.sources.archive import ArchiveSource
from coordinator.recovery.sources.base import RANGE_RECORDS, LogCut, Source
from coordinator.recovery.tasks import JoinTask, NamedOutput, TableTask


@dataclass(frozen=True)
class RebuildResult:
    """States, the ranges that were read, the manifest, and the totals of each state partition."""

    stored: StoredStates
    ranges: pa.Table
    manifest: dict[str, Any]
    totals: Sequence[Mapping[str, Any]] = ()

    @property
    def states(self) -> pa.Table:
        """The states (rows of `STATES`) by group, topic and partition."""
        return self.stored.table


def rebuild(
    engine: Engine,
    source: Source,
    *,
    cut: LogCut | None = None,
    to: Location | None = None,
    select: TableTask | None = None,
    phases: JobPhases | None = None,
    range_records: int = RANGE_RECORDS,
    clock: Clock | None = None,
) -> RebuildResult:
    """Rebuild all states up to a cut; if `to` is given, write them to this new directory.

    With a directory, executors of Spark write the states, and this process gets only totals.  Otherwise this
    process gets the states that `select` yields of each state partition, or all by default.  Damage is
    skipped. The manifest lists it under `damages`, and the share-partitions that may lack updates under
    `affected`.

    Raises ConfigError, LogError or OSError; no manifest is then written.
    """
    cut, phases, clock = cut or LogCut(), phases or JobPhases(), clock or SystemClock()
    folder = None if to is None else open_folder(to)
    if folder is not None:
        check_empty_folder(folder)
    source = use_checkpoints(source)
    log = read_log(engine, source, fold_range, cut=cut, phases=phases, range_records=range_records)
    joined = join_log_states(log, phases)
    totals = output_rows(joined, TOTALS_OUTPUT)
    manifest = make_manifest(
        *("rebuild", engine, source, cut, log),
        now_ms=clock.now_ms(),
        states=sum_totals(totals, "states"),
        unreadable_states=sum_totals(totals, "unreadable"),
        affected=[str(key) for key in log.affected_share_partitions(damaged_states(log, joined))],
        state_batches=sum_totals(totals, "state_batches"),
    )
    ranges = pa.Table.from_pylist(log.ranges, RANGES).sort_by(
        [("state_partition", "ascending"), ("range_start", "ascending")]
    )
    if folder is None:
        selected = [] if select is None else [each.rows for each in joined.map_outputs(STATES_OUTPUT, select)]
        stored = (
            stored_states_of_outputs(joined)
            if select is None
            else stored_states_of_table(pa.Table.from_batches(selected, STATES))
        )
        # The outputs are deleted when the engine is closed.
        _ = stored.table
    else:
        write_states(joined, totals, folder)
        stored = StoredStates.from_results(folder)
        write_results(folder, {"ranges": ranges}, manifest, {STATES_OUTPUT: manifest["states"]})
    return RebuildResult(stored, ranges, manifest, totals)


def first_states(count: int) -> TableTask:
    """Return the task that selects the first states by group, topic and partition."""
    return partial(_select_first, count, STATES_ORDER)


def oldest_states(count: int) -> TableTask:
    """Return the task that selects the states of a state partition that need the oldest records."""
    return partial(_select_first, count, ("needed_from",))


def _select_first(
    count: int, order: Sequence[str], state_partition: int, states: pa.RecordBatch
) -> Iterator[NamedOutput]:
    rows = pc.select_k_unstable(states, count, [(name, "ascending") for name in order])
    yield NamedOutput(STATES_OUTPUT, state_partition, states.take(rows))


def stored_states_of_table(table: pa.Table) -> StoredStates:
    """Return a `StoredStates` of a table in the memory of this process."""
    return StoredStates(lambda _: table)


def stored_states_of_outputs(joined: PhaseOutputs) -> StoredStates:
    """Return a `StoredStates` of the outputs of a phase; the states exist until the job ends."""
    return StoredStates(lambda _: joined.table(STATES_OUTPUT, STATES))


def use_checkpoints(source: Source) -> Source:
    """Return a source that is faster for jobs that need only states: an archive starts at a checkpoint."""
    return replace(source, use_checkpoints=True) if isinstance(source, ArchiveSource) else source


def join_log_states(
    log: LogReadResult, phases: JobPhases, extend: Callable[[JoinTask], JoinTask] | None = None
) -> PhaseOutputs:
    """Join the partial states of a log to states, and to totals of each state partition.

    `extend` returns a task with further outputs.
    """
    join: JoinTask = partial(join_states, owner_epochs(log.ranges))
    with phases.phase("join", len({row["state_partition"] for row in log.ranges}), "partitions") as advance:
        return log.gathered.join_partitions(join if extend is None else extend(join), advance)


def sum_totals(totals: Sequence[Mapping[str, Any]], name: str) -> int:
    """Return the sum of a column of `STATE_TOTALS`."""
    return sum(row[name] for row in totals)


def damaged_states(log: LogReadResult, joined: PhaseOutputs) -> pa.Table:
    """Return the states that damage of the log may concern."""
    found = joined.map_outputs(STATES_OUTPUT, states_near_damage(log)) if log.damages else ()
    return pa.Table.from_batches([output.rows for output in found], STATES)


def write_states(joined: PhaseOutputs, totals: Sequence[Mapping[str, Any]], to: Folder) -> None:
    """Write the states to `states.parquet` in a directory; compare their number with the totals.

    Raises ResultsIncomplete.
    """
    written, wanted = (
        joined.write(STATES_OUTPUT, STATES, STATES_ORDER, to, STATES_FILE),
        sum_totals(totals, "states"),
    )
    if written != wanted:
        raise ResultsIncomplete(
            f"{wanted} states were joined and {written} are in {to}/{STATES_FILE} (all "
            "executors and the driver must see the same folder)"
        )
