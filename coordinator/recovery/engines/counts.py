"""Count the rows between the phases of a job, so that lost rows cause an error instead of wrong results.

Three pairs of independent counts are compared:

* planned ranges, and ranges with outputs;
* records that the source yielded, and records in the summaries of the ranges;
* rows that a phase wrote by output and state partition, and rows that the next phase read.

Phase 2 also compares the number of records in the partial states with the number of decoded records.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from coordinator.errors import LogError
from coordinator.recovery.ranges import PARTIALS_OUTPUT, RANGES_OUTPUT
from coordinator.recovery.records import Records
from coordinator.recovery.sources.base import LogRange, PrunedError, Source
from coordinator.recovery.sources.checkpoints import StoredPartialStates, read_stored_outputs
from coordinator.recovery.tasks import JoinTask, NamedOutput, ReadTask, Tables

if TYPE_CHECKING:
    from coordinator.recovery.engines.base import PhaseOutputs

COUNTS_OUTPUT = "counts"
# The output of a range that could not be read because it was pruned; see `PrunedError`.
PRUNED_OUTPUT = "pruned"

_PRUNED = pa.schema([pa.field("start", pa.int64(), nullable=False)])
_COUNTS = pa.schema(
    [
        # The number of the range in its plan; for a join, `_READ` or `_RETURNED`.
        pa.field("range", pa.int64(), nullable=False),
        # The name of an output; empty for the records that the source yielded.
        pa.field("output", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
    ]
)
# Values of the column `range` for a join: the rows that the join has read, and the rows that it has returned.
_READ, _RETURNED = -1, -2
_ADVICE = "nothing was written; run the job again"


class ResultsIncomplete(LogError):
    """Results of a phase were lost or duplicated on their way to the next one."""

    def __init__(self, found: str) -> None:
        super().__init__(f"the results are incomplete: {found}; {_ADVICE}")


class _CountingIterator:
    """Iterates over chunks of records and counts the records."""

    def __init__(self, chunks: Iterable[Records]) -> None:
        self.records = 0
        self._chunks = chunks

    def __iter__(self) -> Iterator[Records]:
        for chunk in self._chunks:
            self.records += len(chunk.data_records())
            yield chunk


def read_and_count(source: Source, log_range: LogRange, read: ReadTask) -> list[NamedOutput]:
    """Read one range in the current process; return its outputs and their counts."""
    if isinstance(log_range.place, StoredPartialStates):
        outputs, given = read_stored_outputs(log_range)
        return [*outputs, *_output_counts(outputs, log_range.number), _source_count(log_range, given)]
    chunks = _CountingIterator(source.read(log_range))
    try:
        outputs = list(read(chunks))
        given = chunks.records
    except PrunedError as pruned:
        start = pa.RecordBatch.from_pylist([{"start": pruned.start}], _PRUNED)
        outputs, given = [NamedOutput(PRUNED_OUTPUT, pruned.state_partition, start)], 0
    return [*outputs, *_output_counts(outputs, log_range.number), _source_count(log_range, given)]


def _source_count(log_range: LogRange, records: int) -> NamedOutput:
    row = {"range": log_range.number, "output": "", "rows": records}
    return NamedOutput(COUNTS_OUTPUT, log_range.state_partition, pa.RecordBatch.from_pylist([row], _COUNTS))


def _output_counts(outputs: Iterable[NamedOutput], number: int) -> Iterator[NamedOutput]:
    for name, state_partition, rows in outputs:
        row = {"range": number, "output": name, "rows": rows.num_rows}
        yield NamedOutput(COUNTS_OUTPUT, state_partition, pa.RecordBatch.from_pylist([row], _COUNTS))


def join_and_count(join: JoinTask, state_partition: int, tables: Tables) -> list[NamedOutput]:
    """Join the outputs of a state partition; return the results, and the row counts of outputs and results.

    Raises ResultsIncomplete if a range was pruned after it was planned, or if records are missing.
    """
    if PRUNED_OUTPUT in tables:
        raise ResultsIncomplete(f"state partition {state_partition} was pruned after it was planned")
    if PARTIALS_OUTPUT in tables:
        folded = _sum_column(tables[PARTIALS_OUTPUT], "records")
        decoded = _sum_column(tables.get(RANGES_OUTPUT, ()), "folded_records")
        if folded != decoded:
            raise ResultsIncomplete(
                f"{decoded} records of state partition {state_partition} were decoded and {folded} are in "
                "the partial states"
            )
    read = [NamedOutput(name, state_partition, rows) for name, found in tables.items() for rows in found]
    outputs = list(join(state_partition, tables))
    return [*outputs, *_output_counts(read, _READ), *_output_counts(outputs, _RETURNED)]


def _sum_column(tables: Iterable[pa.RecordBatch], column: str) -> int:
    return sum(pc.sum(rows.column(column)).as_py() or 0 for rows in tables)


def pruned_starts(outputs: "PhaseOutputs") -> dict[int, int]:
    """Return the new log start offsets of the state partitions that were pruned while they were read."""
    found: dict[int, int] = {}
    for state_partition, rows in outputs.rows(PRUNED_OUTPUT):
        found[state_partition] = max(found.get(state_partition, 0), rows.column("start")[0].as_py())
    return found


def check_read_counts(outputs: "PhaseOutputs", planned: Collection[int]) -> None:
    """Compare the outputs of phase 1 with the plan and with their summaries. Raises ResultsIncomplete."""
    counts = output_rows(outputs, COUNTS_OUTPUT)
    read = Counter(row["range"] for row in counts if not row["output"])
    missing = len(set(planned) - set(read))
    twice = sum(count > 1 for count in read.values())
    if missing or twice or len(read) != len(planned):
        raise ResultsIncomplete(
            f"of {len(planned)} ranges {missing} have no result and {twice} have two (all executors "
            "and the driver must see the same work folder)"
        )
    given = sum(row["rows"] for row in counts if not row["output"])
    summed = sum(row["records"] for row in output_rows(outputs, RANGES_OUTPUT))
    if given != summed:
        raise ResultsIncomplete(f"the source yielded {given} records, but the ranges report {summed}")


def check_join_counts(before: "PhaseOutputs", after: "PhaseOutputs") -> None:
    """Compare the rows that a phase wrote with the rows that the next one read. Raises ResultsIncomplete."""
    written, read = _count_rows(before, read=False), _count_rows(after, read=True)
    for state_partition, name in sorted(written.keys() | read.keys()):
        place = (state_partition, name)
        if written[place] != read[place]:
            raise ResultsIncomplete(
                f"{written[place]} rows of {name} of state partition {state_partition} were written and "
                f"{read[place]} were read"
            )


def _count_rows(outputs: "PhaseOutputs", *, read: bool) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for state_partition, rows in outputs.rows(COUNTS_OUTPUT):
        for row in rows.to_pylist():
            if row["output"] and (row["range"] == _READ) is read:
                found[state_partition, row["output"]] += row["rows"]
    return found


def output_rows(outputs: "PhaseOutputs", name: str) -> list[dict[str, Any]]:
    """Return the rows of an output of all state partitions as dicts."""
    return [row for _, rows in outputs.rows(name) for row in rows.to_pylist()]
