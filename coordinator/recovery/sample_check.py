"""Check X6: fold a sample of share-partitions a second time, record by record."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import pyarrow as pa

from coordinator.recovery.audit import ExternalFindings, LogContents
from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Finding, findings_output
from coordinator.recovery.deduplication import row_identity, row_key
from coordinator.recovery.history import read_history
from coordinator.recovery.sources.base import LogCut, Plan, Source
from coordinator.recovery.state_checks import PartitionStates, StateTask
from coordinator.recovery.tasks import NamedOutput
from coordinator.shard import ShareState
from protocol.state_batches import unpack


class SampleCheck:
    """X6: fold a sample of share-partitions record by record, with the coordinator's own code."""

    def __init__(self, source: Source, count: int) -> None:
        self._source = source
        self._count = count

    def begin(self) -> None:
        """Do nothing; this check reads after the log."""

    def task(self, contents: LogContents) -> StateTask:
        """Plan to read the records of the sample again, up to the same log offsets."""
        ends: dict[int, int] = {}
        for row in contents.log.ranges:
            number = row["state_partition"]
            ends[number] = max(ends.get(number, 0), row["range_end"])
        plan = self._source.plan(LogCut(ends))
        starts = contents.log.plan.starts
        pruned = frozenset(p for p, start in plan.starts.items() if start != starts.get(p, start))
        return SampleComparison(self._source, plan, pruned, divide_sample(contents.totals, self._count))

    def result(self, outputs: Sequence[NamedOutput]) -> ExternalFindings:
        """Return no further findings."""
        return ExternalFindings((), ("X6",))


@dataclass(frozen=True)
class SampleComparison:
    """Folds some states of a state partition a second time; this is a `StateTask`.

    `counts` has the number of states by state partition. Those of `pruned` ones are not compared.
    """

    source: Source
    plan: Plan
    pruned: frozenset[int]
    counts: Mapping[int, int]

    def __call__(self, inside: PartitionStates) -> Iterator[NamedOutput]:
        """Yield the findings."""
        number = inside.state_partition
        count = self.counts.get(number, 0)
        if number in self.pruned or not count:
            return
        wanted = {row_key(row): row for row in choose_sample(inside.states, count)}
        states = {
            step.record.key: step.after
            for step in read_history(self.source, self.plan, wanted.keys(), {number})
            if step.state_partition == number
        }
        yield from findings_output(
            number,
            [
                Finding(
                    *("X6", Severity.CRITICAL, number, row_identity(row)),
                    *(row["last_log_offset"], row["last_log_offset"]),
                    evidence=what,
                )
                for key, row in wanted.items()
                if (what := differing_fields(row, states.get(key)))
            ],
        )


def divide_sample(totals: Iterable[Mapping[str, Any]], count: int) -> dict[int, int]:
    """Return how many of `count` states are taken of each state partition, from rows of `STATE_TOTALS`."""
    ordered = sorted(totals, key=lambda row: row["state_partition"])
    ends = list(accumulate(row["states"] for row in ordered))
    taken = [0, *(end * count // max(ends[-1], 1) for end in ends)]
    return {row["state_partition"]: b - a for row, (a, b) in zip(ordered, pairwise(taken), strict=True)}


def choose_sample(states: pa.Table, count: int) -> list[dict[str, Any]]:
    """Return about `count` states, evenly spread over the table."""
    step = max(len(states) // max(count, 1), 1)
    rows: list[dict[str, Any]] = states.take(list(range(0, len(states), step))).to_pylist()
    return rows


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
