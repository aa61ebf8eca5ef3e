"""Read a log for any job: plan log ranges, read them with an engine, and read pruned partitions again."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from coordinator.errors import ConfigError, LogUnavailable
from coordinator.recovery.deduplication import (
    record_key_identity,
    row_identity,
    row_share_partition,
    state_depends_on,
)
from coordinator.recovery.engines.base import Engine, PhaseOutputs
from coordinator.recovery.engines.counts import check_read_counts, output_rows, pruned_starts
from coordinator.recovery.progress import JobPhases
from coordinator.recovery.ranges import DAMAGES_OUTPUT, RANGES_OUTPUT
from coordinator.recovery.sources.base import ALL, END, RANGE_RECORDS, LogCut, LogRange, ReadPlan, Source
from coordinator.recovery.tasks import NamedOutput, ReadTask, TableTask
from protocol.state_records import SharePartitionKey

NEAR_DAMAGE_OUTPUT = "near_damage"

_READS_MAX = 5


@dataclass(frozen=True)
class LogReadResult:
    """The result of reading a log: the plan, the outputs of its ranges, and a row of `RANGES` for each range.

    `pruned_during_read` has the new log start offsets of state partitions that were pruned during the read.
    """

    plan: ReadPlan
    gathered: PhaseOutputs
    ranges: list[dict[str, Any]]
    pruned_during_read: Mapping[int, int] = field(default_factory=dict)
    damages: Sequence[Mapping[str, Any]] = ()

    def damages_with_share_partitions(self, states: pa.Table) -> list[tuple[Mapping[str, Any], list[bytes]]]:
        """Return each damage of the log with the share-partitions that lost records, if they are known.

        The keys in damaged records may be wrong, so they are used only if there is a state for every key.
        """
        known = {row_identity(row) for row in states.to_pylist()} if self.damages else set()
        return [
            (each, each["share_partitions"] if known.issuperset(each["share_partitions"]) else [])
            for each in self.damages
        ]

    def affected_share_partitions(self, states: pa.Table) -> list[SharePartitionKey]:
        """Return the share-partitions of `states` that may lack updates because of damage.

        If the latest snapshot of a share-partition is after the damage, its state is complete.
        """
        damages = self.damages_with_share_partitions(states)
        found = []
        for row in states.to_pylist() if damages else ():
            key = row_share_partition(row)
            identity = record_key_identity(key)
            if any(
                each["state_partition"] == row["state_partition"]
                and state_depends_on(row, each["last"])
                and identity in (names or (identity,))
                for each, names in damages
            ):
                found.append(key)
        return found


def states_near_damage(log: LogReadResult) -> TableTask:
    """Return the task that selects the states which damage of the log may concern."""
    state_partitions = frozenset(each["state_partition"] for each in log.damages)
    named = frozenset(identity for each in log.damages for identity in each["share_partitions"])
    return partial(_select_states_near_damage, state_partitions, named)


def _select_states_near_damage(
    state_partitions: Collection[int], named: Collection[bytes], state_partition: int, states: pa.RecordBatch
) -> Iterator[NamedOutput]:
    wanted = [state_partition in state_partitions or row_identity(row) in named for row in states.to_pylist()]
    yield NamedOutput(NEAR_DAMAGE_OUTPUT, state_partition, states.filter(pa.array(wanted, pa.bool_())))


def read_log(
    engine: Engine,
    source: Source,
    read: ReadTask,
    *,
    cut: LogCut | None = None,
    phases: JobPhases | None = None,
    range_records: int = RANGE_RECORDS,
    state_partitions: Collection[int] | None = None,
) -> LogReadResult:
    """Read a log up to a cut (log offsets, a time, or its end), and call `read` for each range.

    If `state_partitions` are given, other ranges are not read.  The output `ranges` of `read` has rows of
    `RANGES`.  If a state partition is pruned during the read, it is planned and read again, because newer
    snapshots may have replaced the pruned records. Raises ConfigError for a cut below the log start, and
    LogUnavailable if the log is pruned faster than it can be read.
    """
    cut, phases = cut or LogCut(), phases or JobPhases()
    planned = source.plan(cut, range_records=range_records)
    plan = check_cut(planned, cut)
    ranges = _number_ranges(_select_ranges(plan, state_partitions), 0)
    expected = {each.number: each for each in ranges}
    gathered: PhaseOutputs | None = None
    pruned_during_read: dict[int, int] = {}
    for _ in range(_READS_MAX):
        with phases.phase("read", sum(each.records for each in ranges), "records") as advance:
            more = engine.gather(source, ranges, read, advance)
        gathered = more if gathered is None else gathered.combine_with(more)
        pruned = pruned_starts(gathered)
        if not pruned:
            check_read_counts(gathered, expected)
            rows = output_rows(gathered, RANGES_OUTPUT)
            damages = output_rows(gathered, DAMAGES_OUTPUT)
            return LogReadResult(plan, gathered, rows, pruned_during_read, damages)
        pruned_during_read |= pruned
        gathered = gathered.without_partitions(pruned)
        again = source.plan(cut, range_records=range_records)
        planned = again if ALL in pruned else _replace_pruned(planned, again, pruned)
        plan = check_cut(planned, cut)
        ranges = _number_ranges(
            [
                each
                for each in _select_ranges(again, state_partitions)
                if ALL in pruned or each.state_partition in pruned
            ],
            max(expected, default=-1) + 1,
        )
        expected = {
            number: each
            for number, each in expected.items()
            if ALL not in pruned and each.state_partition not in pruned
        } | {each.number: each for each in ranges}
    raise LogUnavailable(f"{source.text} is pruned faster than it can be read")


def _select_ranges(plan: ReadPlan, state_partitions: Collection[int] | None) -> list[LogRange]:
    return [
        each
        for each in plan.ranges
        if state_partitions is None or each.state_partition in (ALL, *state_partitions)
    ]


def _number_ranges(ranges: Sequence[LogRange], first: int) -> tuple[LogRange, ...]:
    return tuple(replace(each, number=number) for number, each in enumerate(ranges, first))


def _replace_pruned(planned: ReadPlan, again: ReadPlan, state_partitions: Collection[int]) -> ReadPlan:
    """Return `planned` with the given state partitions taken from the later plan `again`."""

    def replace_partitions(before: Mapping[int, int], after: Mapping[int, int]) -> dict[int, int]:
        return {p: at for p, at in before.items() if p not in state_partitions} | {
            p: at for p, at in after.items() if p in state_partitions
        }

    return replace(
        planned,
        ranges=(
            *(each for each in planned.ranges if each.state_partition not in state_partitions),
            *(each for each in again.ranges if each.state_partition in state_partitions),
        ),
        starts=replace_partitions(planned.starts, again.starts),
        ends=replace_partitions(planned.ends, again.ends),
        whole_from=replace_partitions(planned.whole_from, again.whole_from),
    )


def check_cut(plan: ReadPlan, cut: LogCut) -> ReadPlan:
    """Raise ConfigError for a cut below the log start; mark state partitions whose cut may be too early."""
    notes = list(plan.notes)
    doubtful: tuple[int, ...] = ()
    for state_partition, offset in [] if cut.may_be_pruned else sorted((cut.offsets or {}).items()):
        start = plan.starts.get(state_partition)
        if start is None:
            raise ConfigError(
                "--as-of-offset", f"{state_partition}:{offset}", "of a state partition there is"
            )
        if offset < start:
            raise ConfigError(
                "--as-of-offset",
                f"{state_partition}:{offset}",
                f"at or above {start}, where the log of that state partition begins by now",
            )
    if not cut.is_log_end:
        doubtful = tuple(
            p
            for p, start in sorted(plan.starts.items())
            if (cut.offsets is None or p in cut.offsets)
            and start > 0
            and plan.ends.get(p, END) < plan.whole_from.get(p, END)
        )
        if doubtful:
            notes.append(
                f"the beginning of {len(doubtful)} state partitions was pruned, perhaps after the cut, so "
                "states may be missing or incomplete (an archive keeps pruned records)"
            )
    return replace(plan, notes=tuple(notes), doubtful=doubtful)
