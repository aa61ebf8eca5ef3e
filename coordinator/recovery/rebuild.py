"""The job `rebuild`: compute the state of every share-partition as a coordinator loads it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.errors import CoordinatorError
from coordinator.process.clock import Clock, SystemClock
from coordinator.recovery.engines import Engine
from coordinator.recovery.folders import PARQUET_OPTIONS, Folder, Location, open_folder
from coordinator.recovery.job import LogReadResult, ResultsIncomplete, read_log
from coordinator.recovery.manifest import (
    STATES_FILE,
    LazyStates,
    check_empty_folder,
    make_manifest,
    write_results,
)
from coordinator.recovery.schema import RANGES, STATES
from coordinator.recovery.sources.archive import ArchiveSource
from coordinator.recovery.sources.base import LogCut, Source
from coordinator.recovery.state_tasks import (
    AFFECTED_OUTPUT,
    STATES_ORDER,
    STATES_OUTPUT,
    TOTALS_OUTPUT,
    PartitionStates,
    StateObserver,
    StateTask,
    count_states,
    select_states,
)
from coordinator.recovery.tasks import NamedOutput


@dataclass(frozen=True)
class RebuildResult:
    """The result of a rebuild: states, ranges that were read, manifest, totals of each state partition."""

    stored: LazyStates
    ranges: pa.Table
    manifest: dict[str, Any]
    totals: Sequence[Mapping[str, Any]] = ()

    @property
    def states(self) -> pa.Table:
        """The states (rows of `STATES`), ordered by group, topic and partition."""
        return self.stored.table


def rebuild(
    engine: Engine,
    source: Source,
    *,
    cut: LogCut | None = None,
    to: Location | None = None,
    select: StateTask = select_states,
    clock: Clock | None = None,
) -> RebuildResult:
    """Rebuild all states up to a cut; if `to` is given, write them to this new directory.

    If `to` is given, the processes that read the log write the states, and this process gets only totals.
    Otherwise this process gets the states that the task `select` yields for each state partition. Damage is
    skipped. The manifest lists the damage under `damages`, and the share-partitions that may lack updates
    under `affected`.

    Raises ConfigError, LogError or OSError; no manifest is then written.
    """
    cut, clock = cut or LogCut(), clock or SystemClock()
    folder = open_result_folder(to)
    tasks = [count_states, select if folder is None else write_task(folder)]
    with delete_states_on_failure(folder):
        log = read_states(engine, source, tasks, cut=cut)
    totals = log.rows(TOTALS_OUTPUT)
    manifest = make_manifest(
        *("rebuild", engine, source, cut, log),
        now_ms=clock.now_ms(),
        states=sum_totals(totals, "states"),
        unreadable_states=sum_totals(totals, "unreadable"),
        affected=[row["share_partition"] for row in log.rows(AFFECTED_OUTPUT)],
        state_batches=sum_totals(totals, "state_batches"),
    )
    ranges = pa.Table.from_pylist(log.ranges, RANGES)
    stored = store_results(folder, log, {"ranges": ranges}, manifest)
    return RebuildResult(stored, ranges, manifest, totals)


def read_states(
    engine: Engine,
    source: Source,
    tasks: Sequence[StateTask],
    *,
    cut: LogCut | None = None,
    state_partitions: Collection[int] | None = None,
) -> LogReadResult:
    """Read a log, from a state checkpoint if it has one; run tasks on the states of each state partition."""
    if isinstance(source, ArchiveSource):
        source = replace(source, use_checkpoints=True)
    observer = partial(StateObserver, tuple(tasks))
    return read_log(engine, source, observer, cut=cut, state_partitions=state_partitions)


def write_task(to: Folder) -> StateTask:
    """Return the task that writes the states to a directory."""
    return partial(_write_states, to / STATES_FILE)


def _write_states(folder: Folder, partition: PartitionStates) -> Iterator[NamedOutput]:
    """Write the states of a state partition to a file.

    A repeated task replaces the file with an equal file. Each attempt to read the log has its own files,
    because it reads the state partition up to another log offset.
    """
    order = [(name, "ascending") for name in STATES_ORDER]
    write_states_file(folder, partition, partition.states.sort_by(order))
    yield from ()


def write_states_file(folder: Folder, partition: PartitionStates, states: pa.Table) -> None:
    """Write or replace the file with states of a state partition, for one attempt to read the log."""
    stream = pa.BufferOutputStream()
    pq.write_table(states, stream, **PARQUET_OPTIONS)
    name = f"{partition.state_partition:05d}-{partition.attempt}.parquet"
    folder.write(name, stream.getvalue().to_pybytes())


def last_state_files(folder: Folder) -> list[str]:
    """Return for each state partition the name of its states file from the last attempt to read the log."""
    return list({name.partition("-")[0]: name for name in folder.names()}.values())


@contextmanager
def delete_states_on_failure(folder: Folder | None) -> Iterator[None]:
    """Delete the states in a directory if the block fails, so that the job can be repeated."""
    try:
        yield
    except BaseException:
        if folder is not None:
            with suppress(OSError, CoordinatorError):
                (folder / STATES_FILE).delete_all()
        raise


def check_written_states(folder: Folder, totals: Sequence[Mapping[str, Any]]) -> None:
    """Delete the states files of earlier attempts; compare the number of states in the others with totals.

    Raises ResultsIncomplete.
    """
    states = folder / STATES_FILE
    last = last_state_files(states)
    for name in set(states.names()) - set(last):
        states.delete(name)
    wanted, written = sum_totals(totals, "states"), folder.count_rows(STATES_FILE)
    if not last and not wanted:
        states.write_parquet("none-0.parquet", STATES.empty_table())
    if written != wanted:
        raise ResultsIncomplete(
            f"{wanted} states were folded and {written} are in {states} (all executors and the driver must "
            "see the same folder)"
        )


def open_result_folder(to: Location | None) -> Folder | None:
    """Return the folder at `to` for the results, or None if `to` is None.

    Raises ConfigError if the folder is not empty.
    """
    if to is None:
        return None
    folder = open_folder(to)
    check_empty_folder(folder)
    return folder


def store_results(
    folder: Folder | None, log: LogReadResult, tables: Mapping[str, pa.Table], manifest: dict[str, Any]
) -> LazyStates:
    """Write tables and the manifest to the folder that has the tasks' state files, and return the states.

    Without a folder, return the states in the task outputs. Raises ResultsIncomplete.
    """
    if folder is None:
        table = log.table(STATES_OUTPUT, STATES)
        return LazyStates(lambda _: table)
    check_written_states(folder, log.rows(TOTALS_OUTPUT))
    write_results(folder, tables, manifest, {STATES_OUTPUT: manifest["states"]})
    return LazyStates.from_results(folder)


def sum_totals(totals: Sequence[Mapping[str, Any]], name: str) -> int:
    """Return the sum of a column of `STATE_TOTALS`."""
    return sum(row[name] for row in totals)
