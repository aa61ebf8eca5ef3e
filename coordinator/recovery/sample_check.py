"""Check X6: fold a sample of share-partitions a second time, record by record."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import pyarrow as pa

from coordinator.recovery.audit import ExternalFindings, LogContents
from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Finding
from coordinator.recovery.deduplication import row_identity, row_share_partition
from coordinator.recovery.history import read_history
from coordinator.recovery.sources.base import LogCut, Source
from coordinator.recovery.state_checks import PartitionStates, StateTask
from coordinator.recovery.tasks import NamedOutput
from coordinator.shard import ShareState
from protocol.state_batches import unpack

SAMPLE_OUTPUT = "sample"


class SampleCheck:
    """X6: fold a sample of share-partitions record by record, with the coordinator's own code."""

    def __init__(self, source: Source, count: int) -> None:
        self._source = source
        self._count = count

    def begin(self) -> None:
        """Do nothing; this check reads after the log."""

    def task(self, contents: LogContents) -> StateTask:
        """Return the task that selects the sample."""
        self._contents = contents
        return SampleSelection(divide_sample(contents.totals, self._count))

    def result(self, outputs: Sequence[NamedOutput]) -> ExternalFindings:
        """Read the records of the sample in one pass up to the same log offsets, and compare.

        State partitions that were pruned since the audit read them are not compared.
        """
        rows = [row for name, _, table in outputs if name == SAMPLE_OUTPUT for row in table.to_pylist()]
        before, ends = self._contents.log, dict[int, int]()
        for each in before.ranges:
            number = each["state_partition"]
            ends[number] = max(ends.get(number, 0), each["range_end"])
        numbers = {row["state_partition"] for row in rows}
        log, steps = read_history(
            *(self._contents.engine, self._source, {row_share_partition(row) for row in rows}),
            cut=LogCut(ends, may_be_pruned=True),
            state_partitions=numbers,
        )
        states = {(step.state_partition, step.record.key): step.after for step in steps}
        starts = before.plan.starts
        pruned = {p for p in numbers if log.plan.starts.get(p) != starts.get(p)}
        rows = [row for row in rows if row["state_partition"] not in pruned]
        return ExternalFindings(list(compare_sample(rows, states)), ("X6",))


@dataclass(frozen=True)
class SampleSelection:
    """Selects states of a state partition; `counts` are by state partition. This is a `StateTask`."""

    counts: Mapping[int, int]

    def __call__(self, inside: PartitionStates) -> Iterator[NamedOutput]:
        """Yield the selected states."""
        count = self.counts.get(inside.state_partition, 0)
        if count:
            for rows in choose_sample(inside.states, count).to_batches():
                yield NamedOutput(SAMPLE_OUTPUT, inside.state_partition, rows)


def compare_sample(
    rows: Iterable[Mapping[str, Any]], states: Mapping[tuple[int, Any], ShareState | None]
) -> Iterator[Finding]:
    """Yield the findings about rows of `STATES` that differ from the states of the second fold."""
    for row in rows:
        number = row["state_partition"]
        if what := differing_fields(row, states.get((number, row_share_partition(row)))):
            place = (number, row_identity(row), row["last_log_offset"], row["last_log_offset"])
            yield Finding("X6", Severity.CRITICAL, *place, evidence=what)


def divide_sample(totals: Iterable[Mapping[str, Any]], count: int) -> dict[int, int]:
    """Return how many of `count` states are taken of each state partition, from rows of `STATE_TOTALS`."""
    ordered = sorted(totals, key=lambda row: row["state_partition"])
    ends = list(accumulate(row["states"] for row in ordered))
    taken = [0, *(end * count // max(ends[-1], 1) for end in ends)]
    return {row["state_partition"]: b - a for row, (a, b) in zip(ordered, pairwise(taken), strict=True)}


def choose_sample(states: pa.Table, count: int) -> pa.Table:
    """Return about `count` states, evenly spread over the table."""
    step = max(len(states) // max(count, 1), 1)
    return states.take(list(range(0, len(states), step)))


def differing_fields(row: Mapping[str, Any], state: ShareState | None) -> str:
    """Return the fields in which a row of `STATES` differs from a state; empty if they are equal."""
    if state is None:
        return "the fold record by record finds no state"
    other = {
        **msgspec.structs.asdict(state),
        "state_batches": [batch._asdict() for batch in unpack(state.batches)],
    }
    names: Collection[str] = [name for name in row if name in other]
    return ", ".join(
        f"{name.replace('_', ' ')} {row[name]} and {other[name]}"
        for name in names
        if row[name] != other[name]
    )
