"""The job `rewrite`: write the states of a log to a new log, from a backup or with another partition count.

First, one task for each state partition of the source writes its states to files, one for each state
partition of the target. Then, one task for each state partition of the target plans the changes. With
`--execute`, the task also writes them, reads the target again, and compares the states. The target is a
journal or a topic of this project. Each of these tasks is a migration (`coordinator.operate.migration`) to
one state partition, which refuses a target that a coordinator owns or that has other state. This process
writes a journal, because it can have only one writer; with the local engine, it also writes a topic.
Source and target are compared twice (check X4): by the migration, and in columns by this job.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from coordinator.config import Config
from coordinator.config.server import STATE_PARTITIONS_MAX
from coordinator.errors import ConfigError
from coordinator.operate.migration import (
    ComparableState,
    FoldedLog,
    MigrationLocation,
    MigrationOptions,
    MigrationRefused,
    make_target,
    migrate_states,
    parse_target,
)
from coordinator.operate.migration.locations import LocationKind
from coordinator.operate.migration.readers import LogReader, Progress
from coordinator.recovery.engines import Engine, LocalEngine
from coordinator.recovery.folders import Folder, Location, open_folder
from coordinator.recovery.job import LogReadResult, ResultsIncomplete, output_rows
from coordinator.recovery.manifest import check_empty_folder
from coordinator.recovery.rebuild import last_state_files, read_states, sum_totals, write_states_file
from coordinator.recovery.schema import STATES
from coordinator.recovery.share_partitions import (
    count_state_partitions,
    deduplicate,
    is_in_hash_partition,
    make_share_state,
    row_share_partition,
)
from coordinator.recovery.sources import open_source
from coordinator.recovery.sources.base import END, LogCut, LogRange, Source, run_coroutine_on_thread
from coordinator.recovery.sources.topic_access import make_topic_options
from coordinator.recovery.state_tasks import (
    AFFECTED_OUTPUT,
    STATES_OUTPUT,
    TOTALS_OUTPUT,
    PartitionStates,
    StateTask,
    count_states,
    select_states,
)
from coordinator.recovery.tasks import NamedOutput
from coordinator.shard import ShareState
from protocol.routing import state_partition as routed_to
from protocol.state_records import SharePartitionKey

_KEY_COLUMNS = ("group_id", "topic_id", "partition")

# Maximum number of share-partitions of each state partition that are sent to the driver, and in a note.
_NAMED_MAX = 10

# An output with rows of kind, name and number: totals, actions, counts of share groups, first differences.
_REPORT_OUTPUT = "report"
_Report = Counter[tuple[str, str]]


@dataclass(frozen=True)
class RewriteResult:
    """The result of a rewrite, or its plan.

    `groups` maps each share group to its numbers of share-partitions and state batches; `actions` maps each
    `MigrationAction` to its number of share-partitions. `different` describes the first differences between
    source and target; `differences` is their total number.
    """

    target: MigrationLocation
    state_partitions: int
    executed: bool
    groups: Mapping[str, tuple[int, int]]
    actions: Mapping[str, int]
    notes: Sequence[str]
    different: Sequence[str]
    differences: int

    @property
    def share_partitions(self) -> int:
        """The number of share-partitions with state."""
        return sum(count for count, _ in self.groups.values())

    @property
    def is_successful(self) -> bool:
        """True if source and target are equal, or if only a plan was made."""
        return not self.differences


def rewrite(
    engine: Engine,
    source: Source,
    target: str,
    config: Config,
    *,
    state_partitions: int,
    cut: LogCut | None = None,
    options: MigrationOptions | None = None,
    incomplete: bool = False,
    work: Location | None = None,
) -> RewriteResult:
    """Write the states of a log to a journal or a topic with `state_partitions` state partitions.

    If records are missing (pruned or damaged), the states are written only if `incomplete` is true. The
    states are written to the new folder `work`, which is deleted afterwards. With Spark, all executors must
    see the same folder. Raises MigrationRefused if state could be lost, ConfigError, LogError, OSError.
    """
    options, cut = options or MigrationOptions(), cut or LogCut()
    place = parse_rewrite_target(target, source)
    if state_partitions > STATE_PARTITIONS_MAX:
        raise ConfigError("--state-partitions", state_partitions, f"at most {STATE_PARTITIONS_MAX}")
    existing = _existing_partition_count(place, config)
    if existing not in (None, state_partitions):
        raise ConfigError("--state-partitions", state_partitions, f"{existing}, which {target} has already")
    config = config.model_copy(update={"state_partitions": state_partitions})
    with _work_folder(engine, work) as folder:
        tasks: list[StateTask] = [count_states, partial(_write_states_by_target, folder, state_partitions)]
        log = read_states(engine, source, tasks, cut=cut)
        if not incomplete:
            _check_source_complete(log)
        numbers = tuple(range(state_partitions))
        parts = [numbers]
        if engine.name == "spark" and place.kind is LocationKind.TOPIC:
            parts = [(number,) for number in numbers]
        else:
            engine = LocalEngine(1)
        states = sum_totals(log.rows(TOTALS_OUTPUT), "states")
        source_partitions = count_state_partitions(log.plan.starts)
        writer = TargetWriter(folder, place, config, options._replace(execute=False), source_partitions)
        # The plan for all state partitions is checked before any of them is written.
        report = _run_writer(engine, writer, parts, states)
        if options.execute:
            _verify_source_unchanged(source, cut, log, "Nothing was written.")
            report = _run_writer(engine, replace(writer, options=options), parts, states)
            _verify_source_unchanged(source, cut, log, "The target has its states before these changes.")
    return _make_result(place, state_partitions, log, report, executed=options.execute)


def parse_rewrite_target(target: str, source: Source) -> MigrationLocation:
    """Parse the text of `--to`. Raises ConfigError unless it names a journal or a topic of this project."""
    kind, _, where = source.text.partition(":")
    known = (
        MigrationLocation(LocationKind(kind), where)
        if kind in set(LocationKind)
        else MigrationLocation(LocationKind.JOURNAL, "")
    )
    place = parse_target(target, known)
    if place.kind is LocationKind.COORDINATOR or place.is_kafka_state_topic:
        raise ConfigError(
            "--to", target, "a journal or a topic of this project; use migrate to write to a coordinator"
        )
    return place


def _existing_partition_count(place: MigrationLocation, config: Config) -> int | None:
    """Return the number of state partitions of the target; None if it does not exist yet."""
    try:
        plan = open_source(str(place), **make_topic_options(config)).plan(LogCut())
    except ConfigError:
        return None
    # A journal whose creation was interrupted has files, but no state partitions.
    return len(plan.starts) or None


@contextmanager
def _work_folder(engine: Engine, work: Location | None) -> Iterator[Folder]:
    if work is None:
        if engine.name == "spark":
            raise ConfigError("--work", None, "a new folder or URI that all executors see, with Spark")
        with TemporaryDirectory(prefix="share-coordinator-rewrite-") as temporary:
            yield open_folder(Path(temporary))
        return
    folder, existed = open_folder(work), Path(work).exists()
    check_empty_folder(folder)
    try:
        yield folder
    finally:
        # A folder that existed may have hidden files of the user; this job creates only folders in it.
        for name in folder.folder_names():
            (folder / name).delete_all()
        if not existed:
            with suppress(OSError):
                Path(work).rmdir()


def _write_states_by_target(
    folder: Folder, state_partitions: int, partition: PartitionStates
) -> Iterator[NamedOutput]:
    """Write the states to a file for each state partition of the target."""
    keys = map(row_share_partition, partition.rows(_KEY_COLUMNS))
    number = np.fromiter((routed_to(key, state_partitions) for key in keys), np.int64)
    for target in np.unique(number).tolist():
        states = partition.states.take(np.flatnonzero(number == target))
        write_states_file(folder / f"{target:05d}", partition, states)
    yield from ()


def _check_source_complete(log: LogReadResult) -> None:
    """Raise MigrationRefused if records of the source may be missing."""
    if log.plan.doubtful:
        named = ", ".join(map(str, log.plan.doubtful))
        raise MigrationRefused(
            f"the beginning of state partition {named} was pruned, perhaps after the cut, so states may "
            "be missing or incomplete. Use an archive or a later cut, or write the remaining states with "
            "--incomplete"
        )
    if damages := log.damages:
        raise MigrationRefused(
            f"the log is damaged in {len(damages)} places, and {len(log.rows(AFFECTED_OUTPUT))} "
            "share-partitions may lack updates (recovery audit names them). Use an archive or another "
            "copy of the log, or write the rest with --incomplete"
        )


def _verify_source_unchanged(source: Source, cut: LogCut, log: LogReadResult, consequence: str) -> None:
    """Raise MigrationRefused if the source has new records since it was read, unless the read has a cut."""
    if not cut.is_log_end or END in log.plan.ends.values():
        return
    now = source.plan(LogCut()).ends
    changed = [number for number, end in log.plan.ends.items() if now.get(number, end) != end]
    if changed:
        raise MigrationRefused(
            f"state partition {', '.join(map(str, changed))} of the source was written while it was read. "
            "Stop the coordinator that writes it, or select what is copied with --as-of-time or "
            f"--as-of-offset. {consequence}"
        )


class _FoldedStates(LogReader):
    """The source of a migration, with states that were folded before the migration."""

    def __init__(self, states: Mapping[SharePartitionKey, ShareState]) -> None:
        self._states = states

    async def fold(self, progress: Progress) -> FoldedLog:
        """Return the states."""
        return FoldedLog(self._states, ())

    async def end_offsets(self) -> tuple[int, ...]:
        """Return the same end offsets as `fold`, because the folded states do not change."""
        return ()


@dataclass(frozen=True)
class TargetWriter:
    """Plans or writes some state partitions of the target; this is a `RangeTask`.

    The field `place` of its log range has the numbers of these state partitions. `source_partitions` is the
    number of state partitions of the source, None if it is not known.
    """

    folder: Folder
    target: MigrationLocation
    config: Config
    options: MigrationOptions
    source_partitions: int | None

    def __call__(self, log_range: LogRange) -> Iterator[NamedOutput]:
        """Yield the report."""
        numbers: Sequence[int] = log_range.place
        tables = [self._read_states(number) for number in numbers]
        found = chain.from_iterable(PartitionStates(numbers[0], table).rows() for table in tables)
        states, not_copied = deduplicate(found, self.source_partitions, make_share_state)
        target = make_target(self.target, self.config, only=numbers)
        migration = run_coroutine_on_thread(
            migrate_states(_FoldedStates(states), target, self.options, _discard_progress)
        )
        different = [f"{each.key}: {each.what}" for each in migration.different]
        if migration.executed and not different:
            different = list(find_different_states(states, self._rebuild_target(numbers)))
        report: _Report = Counter()
        report["total", "rows"] = sum(map(len, tables))
        report["total", "not_copied"], report["total", "different"] = len(not_copied), len(different)
        report.update(
            {("action", action.value): count for action, count in migration.plan.count_actions().items()}
        )
        for key, state in states.items():
            report["states", key.group_id] += 1
            report["batches", key.group_id] += state.batch_count
        report.update(
            ("not_copied", f"{key} in state partition {number}") for key, number in not_copied[:_NAMED_MAX]
        )
        report.update(("different", each) for each in different[:_NAMED_MAX])
        rows = [{"kind": kind, "name": name, "count": count} for (kind, name), count in report.items()]
        yield NamedOutput.from_rows(_REPORT_OUTPUT, numbers[0], *rows)

    def _read_states(self, number: int) -> pa.Table:
        states = self.folder / f"{number:05d}"
        return pa.concat_tables(
            [STATES.empty_table(), *(states.read_parquet(name) for name in last_state_files(states))]
        )

    def _rebuild_target(self, numbers: Sequence[int]) -> dict[SharePartitionKey, ShareState]:
        """Return the states that a coordinator would load from the target."""
        source = open_source(str(self.target), **make_topic_options(self.config))
        log = read_states(LocalEngine(1), source, [select_states], state_partitions=numbers)
        return {
            row_share_partition(row): make_share_state(row)
            for row in PartitionStates(numbers[0], log.table(STATES_OUTPUT, STATES)).rows()
            if is_in_hash_partition(row, self.config.state_partitions)
        }


def _comparable_values(state: ShareState) -> tuple[object, ...]:
    """Return the fields that a migration compares, and the fields that only a rewrite keeps."""
    return ComparableState.from_state(state), state.batches, state.create_timestamp


def find_different_states(
    wanted: Mapping[SharePartitionKey, ShareState], found: Mapping[SharePartitionKey, ShareState]
) -> Iterator[str]:
    """Yield the share-partitions whose states in source and target differ or are missing in one."""
    for key in sorted({*wanted, *found}):
        if (
            key not in wanted
            or key not in found
            or _comparable_values(wanted[key]) != _comparable_values(found[key])
        ):
            yield f"{key}: the second comparison differs"


def _discard_progress(what: str, done: int, total: int) -> None:
    """Do nothing; a migration requires a progress callback."""


def _run_writer(engine: Engine, writer: TargetWriter, parts: Sequence[Sequence[int]], states: int) -> _Report:
    """Run the writer for each set of state partitions. Raises ResultsIncomplete if states are missing."""
    ranges = [LogRange(part[0], 0, 0, place=part, number=number) for number, part in enumerate(parts)]
    outputs = engine.run(writer, ranges)
    report: _Report = Counter()
    for row in output_rows(outputs, _REPORT_OUTPUT):
        report[row["kind"], row["name"]] += row["count"]
    read = report["total", "rows"]
    if len(outputs) != len(parts) or read != states:
        raise ResultsIncomplete(
            f"{states} states were folded and {read} were read from {writer.folder} (all executors and the "
            "driver must see the same folder)"
        )
    return report


def _make_result(
    place: MigrationLocation, state_partitions: int, log: LogReadResult, report: _Report, *, executed: bool
) -> RewriteResult:
    def names_of_kind(wanted: str) -> list[str]:
        return [name for kind, name in report if kind == wanted]

    notes = list(log.plan.notes)
    if affected := [row["share_partition"] for row in log.rows(AFFECTED_OUTPUT)]:
        notes.append(f"{len(affected)} may lack updates: {_format_first_names(affected, len(affected))}")
    if not_copied := report["total", "not_copied"]:
        named = _format_first_names(names_of_kind("not_copied"), not_copied)
        notes.append(f"not copied, because another state partition has the valid state: {named}")
    return RewriteResult(
        target=place,
        state_partitions=state_partitions,
        executed=executed,
        groups={
            name: (report["states", name], report["batches", name])
            for name in sorted(names_of_kind("states"))
        },
        actions={name: count for name in names_of_kind("action") if (count := report["action", name])},
        notes=notes,
        different=names_of_kind("different"),
        differences=report["total", "different"],
    )


def _format_first_names(names: Sequence[str], count: int) -> str:
    more = ", ..." if count > _NAMED_MAX else ""
    return f"{', '.join(names[:_NAMED_MAX])}{more}"


def default_partitions(source: Source, config: Config) -> int:
    """Return the source's number of state partitions; if the source lacks some, the configured number."""
    return count_state_partitions(source.plan(LogCut()).starts) or config.state_partitions
