"""Read a log for any job: plan log ranges, read them with an engine, and read pruned partitions again.

Three pairs of independent counts are compared, so that a loss causes an error instead of wrong results. The
first pair is planned ranges and ranges with a result. The second pair is records that the source yielded and
records in the summaries. The third pair is states that were written and states in the files.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from coordinator.errors import ConfigError, LogDamaged, LogError, LogUnavailable
from coordinator.recovery.engines import Engine
from coordinator.recovery.parse import make_empty_records
from coordinator.recovery.records import Damage, Records
from coordinator.recovery.scan import DAMAGES_OUTPUT, RANGES_OUTPUT, MakeObserver, scan_range
from coordinator.recovery.sources.base import ALL, END, LogCut, LogRange, PrunedError, ReadPlan, Source
from coordinator.recovery.tasks import NamedOutput

# Names of outputs. The first has the index of a range that was read, and the number of its records. The
# second has the new log start of a range that could not be read because it was pruned.
COUNTS_OUTPUT, PRUNED_OUTPUT = "counts", "pruned"

_READS_MAX = 5


class ResultsIncomplete(LogError):
    """Raised if results of tasks were lost or duplicated."""

    def __init__(self, found: str) -> None:
        super().__init__(f"the results are incomplete: {found}; nothing was written; run the job again")


@dataclass(frozen=True)
class LogReadResult:
    """The plan of a log that was read, and the task outputs of all its ranges.

    `pruned_during_read` has the new log start offsets of state partitions that were pruned during the read.
    """

    plan: ReadPlan
    outputs: Sequence[NamedOutput]
    pruned_during_read: Mapping[int, int] = field(default_factory=dict)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of an output of all state partitions."""
        return output_rows(self.outputs, name)

    def table(self, name: str, schema: pa.Schema) -> pa.Table:
        """Return the outputs with this name, of all state partitions, as one table."""
        return pa.Table.from_batches([each.rows for each in self.outputs if each.name == name], schema)

    @property
    def ranges(self) -> list[dict[str, Any]]:
        """The row of `RANGES` of each state partition, ordered by state partition."""
        return sorted(self.rows(RANGES_OUTPUT), key=lambda row: row["state_partition"])

    @property
    def damages(self) -> list[dict[str, Any]]:
        """The damage of all state partitions."""
        names = ("state_partition", "first", "last", "what")
        return [{name: row[name] for name in names} for row in self.rows(DAMAGES_OUTPUT)]


def output_rows(outputs: Iterable[NamedOutput], name: str) -> list[dict[str, Any]]:
    """Return the rows of an output of all state partitions."""
    return [row for each in outputs if each.name == name for row in each.rows.to_pylist()]


def read_log(
    engine: Engine,
    source: Source,
    make_observer: MakeObserver,
    *,
    cut: LogCut | None = None,
    state_partitions: Collection[int] | None = None,
    skip_damage: bool = False,
) -> LogReadResult:
    """Read a log up to a cut (log offsets, a time, or its end).

    If `state_partitions` are given, other ranges are not read. With `skip_damage`, if a range becomes
    unreadable, the rest of the range is reported as damage. If a state partition is pruned during the read,
    it is planned and read again, because newer snapshots may have replaced the pruned records. Raises
    ConfigError for a cut below the log start, LogUnavailable if the log is pruned faster than it can be read,
    and ResultsIncomplete if the counts differ.
    """
    cut = cut or LogCut()
    plan = check_cut(source.plan(cut), cut)
    ranges = _select_ranges(plan, state_partitions)
    outputs: list[NamedOutput] = []
    pruned_during_read: dict[int, int] = {}
    for attempt in range(_READS_MAX):
        numbered = tuple(replace(each, number=number) for number, each in enumerate(ranges))
        known_ends = {number: end for number, end in plan.ends.items() if end != END}
        task = partial(read_range, source, make_observer, plan.starts, known_ends, attempt, skip_damage)
        found = engine.run(task, numbered)
        _check_result_counts(found, len(numbered))
        pruned: dict[int, int] = {}
        for each in found:
            if each.name == PRUNED_OUTPUT:
                start = each.rows.column("start")[0].as_py()
                pruned[each.state_partition] = max(start, pruned.get(each.state_partition, 0))
        outputs += [each for each in found if each.name not in (COUNTS_OUTPUT, PRUNED_OUTPUT)]
        if not pruned:
            return LogReadResult(plan, outputs, pruned_during_read)
        pruned_during_read |= pruned
        outputs = [each for each in outputs if ALL not in pruned and each.state_partition not in pruned]
        again = source.plan(cut)
        if again.facts.get("topic_id") != plan.facts.get("topic_id"):
            raise LogUnavailable(f"{source.text} was deleted and created again while it was read")
        plan = check_cut(again if ALL in pruned else _replace_pruned_ranges(plan, again, pruned), cut)
        ranges = [
            each
            for each in _select_ranges(again, state_partitions)
            if ALL in pruned or each.state_partition in pruned
        ]
    raise LogUnavailable(f"{source.text} is pruned faster than it can be read")


def _select_ranges(plan: ReadPlan, state_partitions: Collection[int] | None) -> list[LogRange]:
    return [
        each
        for each in plan.ranges
        if state_partitions is None or each.state_partition in (ALL, *state_partitions)
    ]


def read_range(
    source: Source,
    make_observer: MakeObserver,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    attempt: int,
    skip_damage: bool,
    log_range: LogRange,
) -> Iterator[NamedOutput]:
    """Read one range in the current process; with the first arguments bound, this is a `RangeTask`."""
    stored = None if log_range.stored is None else log_range.stored.read()
    chunks = _RangeChunks(source, log_range, skip_damage)
    number = log_range.state_partition
    try:
        outputs = list(scan_range(make_observer, chunks, starts, ends, stored, attempt))
    except PrunedError as pruned:
        number = pruned.state_partition
        outputs = [NamedOutput.from_rows(PRUNED_OUTPUT, number, {"start": pruned.start})]
        chunks.records = 0
    else:
        chunks.records += 0 if stored is None else stored.summary["records"]
    counts = {"range": log_range.number, "records": chunks.records}
    yield NamedOutput.from_rows(COUNTS_OUTPUT, number, counts)
    yield from outputs


class _RangeChunks:
    """Reads the chunks of a range, and counts the records."""

    def __init__(self, source: Source, log_range: LogRange, skip_damage: bool) -> None:
        self.records = 0
        self._source = source
        self._range = log_range
        self._skip_damage = skip_damage

    def __iter__(self) -> Iterator[Records]:
        ends: dict[int, int] = {}
        try:
            for chunk in self._source.read(self._range):
                self.records += len(chunk.data_records())
                if len(chunk):
                    ends[chunk.state_partition] = int(chunk.log_offset[-1]) + 1
                yield chunk
        except LogDamaged as damage:
            numbers = [damage.state_partition] if damage.state_partition is not None else list(ends)
            if not self._skip_damage or not numbers:
                raise
            for number in numbers:
                first = ends.get(number, self._range.start)
                description = f"{damage}; records after it were not read"
                lost = Damage(number, first, max(first, self._range.end - 1), description)
                yield replace(make_empty_records(number), damages=(lost,))


def _check_result_counts(outputs: Sequence[NamedOutput], planned: int) -> None:
    """Raise ResultsIncomplete if a planned range has no result, or if the numbers of records differ.

    Raises ResultsIncomplete.
    """
    counts = output_rows(outputs, COUNTS_OUTPUT)
    read = Counter(row["range"] for row in counts)
    missing, twice = planned - len(read), sum(count > 1 for count in read.values())
    if missing or twice:
        raise ResultsIncomplete(f"of {planned} ranges {missing} have no result and {twice} have two")
    given = sum(row["records"] for row in counts)
    summed = sum(row["records"] for row in output_rows(outputs, RANGES_OUTPUT))
    if given != summed:
        raise ResultsIncomplete(f"the source yielded {given} records, but the ranges report {summed}")


def _replace_pruned_ranges(planned: ReadPlan, again: ReadPlan, state_partitions: Collection[int]) -> ReadPlan:
    """Return the plan `planned`, but with the state partitions `pruned` as in the later plan `again`."""

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
    """Raise ConfigError for a cut below the log start; note states that may be incomplete at the cut."""
    notes = list(plan.notes)
    doubtful: tuple[int, ...] = ()
    for state_partition, offset in sorted((cut.offsets or {}).items()):
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
