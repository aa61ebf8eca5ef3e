"""Check the sequence of writers of a state partition: P2, P3, P4, P6 and the record timestamps of R10.

Missing log offsets inside a range are found while it is read. A range also returns one row (`WriterSpan`) for
each sequence of records by one writer.  These rows are few, so one function checks the rows of all ranges.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Finding, Findings
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.records import CONTROL, Ints, Records
from coordinator.recovery.schema import NONE

WRITERS_OUTPUT = "writers"

_TRANSACTIONAL = 0x10

# Maximum number of rows of one range. If writers alternate more often, the first rows are enough to report
# the alternation.
_STRETCHES_MAX = 1_000

_C, _W = Severity.CRITICAL, Severity.WARNING


class WriterSpan(NamedTuple):
    """A sequence of consecutive records by one writer; a number that the source does not provide is -1."""

    state_partition: int
    range_start: int
    first_at: int
    last_at: int
    first_ms: int
    last_ms: int
    producer_id: int
    producer_epoch: int
    owner_epoch: int
    partition_leader_epoch: int
    is_transactional: int
    is_control: int


WRITERS = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in WriterSpan._fields])
_WRITER_AT = WriterSpan._fields.index("producer_id")


class WriterSequence:
    """The writers of the records of one state partition in one range, in log order."""

    def __init__(self, state_partition: int, limits: Limits) -> None:
        self.found = Findings(state_partition)
        self._limits = limits
        self._last: tuple[int, int] | None = None
        self._stretches: list[WriterSpan] = []

    def process_records(self, records: Records) -> None:
        """Process the next records of the range, including those of control batches."""
        if not len(records):
            return
        before = self._last
        at, ms = records.log_offset, records.timestamp_ms
        if before is not None:
            at, ms = np.append(before[0], at), np.append(before[1], ms)
        self._last = (int(at[-1]), int(ms[-1]))
        for row in np.flatnonzero(np.diff(at) != 1).tolist():
            self.found.add(
                offset_gap_finding(
                    self.found.state_partition, int(at[row]), int(at[row + 1]), int(ms[row + 1])
                )
            )
        for row in np.flatnonzero(ms[:-1] - ms[1:] > self._limits.clock_ms_max).tolist():
            self.found.add(
                time_regression_finding(
                    *(self.found.state_partition, int(at[row + 1]), int(ms[row] - ms[row + 1])),
                    int(ms[row + 1]),
                )
            )
        self._update_writers(records)

    def _update_writers(self, records: Records) -> None:
        batches = records.batches
        nothing = np.full(len(batches.attributes), NONE, np.int64)

        def per_record(column: Ints | None) -> Ints:
            found: Ints = (nothing if column is None else column)[records.batch]
            return found

        writer = np.stack(
            [
                per_record(batches.producer_id),
                per_record(batches.producer_epoch),
                records.owner_epoch,
                per_record(batches.partition_leader_epoch),
                per_record(batches.attributes) & _TRANSACTIONAL != 0,
                per_record(batches.attributes) & CONTROL != 0,
            ]
        )
        begins = np.append(0, np.flatnonzero((writer[:, 1:] != writer[:, :-1]).any(axis=0)) + 1)
        ends = np.append(begins[1:], len(records)) - 1
        at, ms = records.log_offset, records.timestamp_ms
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            stretch = WriterSpan(
                self.found.state_partition,
                0,
                *(int(at[begin]), int(at[end]), int(ms[begin]), int(ms[end])),
                *writer[:, begin].tolist(),
            )
            last = self._stretches[-1] if self._stretches else None
            if last is not None and (
                last[_WRITER_AT:] == stretch[_WRITER_AT:] or len(self._stretches) >= _STRETCHES_MAX
            ):
                self._stretches[-1] = last._replace(last_at=stretch.last_at, last_ms=stretch.last_ms)
            else:
                self._stretches.append(stretch)

    def to_arrow(self, range_start: int) -> pa.RecordBatch:
        """Return the writer spans as rows of `WRITERS`."""
        rows = [stretch._replace(range_start=range_start)._asdict() for stretch in self._stretches]
        return pa.RecordBatch.from_pylist(rows, WRITERS)


def offset_gap_finding(state_partition: int, last_at: int, next_at: int, next_ms: int) -> Finding:
    """Return the finding that log offsets are missing or repeated; its time is that of the next record."""
    evidence = f"{next_at - last_at - 1} log offsets are missing after {last_at}"
    if next_at <= last_at:
        evidence = f"log offset {next_at} after {last_at}"
    place = (state_partition, None, last_at + 1, max(next_at - 1, last_at + 1))
    return Finding("P2", _C, *place, 1, evidence, next_ms)


def time_regression_finding(state_partition: int, at: int, by_ms: int, at_ms: int) -> Finding:
    """Return the finding that the timestamp of a record is lower than the timestamp before it."""
    evidence = f"{by_ms} ms before the record before it"
    return Finding("R10", _W, state_partition, None, at, at, 1, evidence, at_ms)


def check_writer_sequence(
    rows: Iterable[Mapping[str, Any]], starts: Mapping[int, int], limits: Limits
) -> list[Finding]:
    """Check the rows of `WRITERS` of all ranges; `starts` are the log start offsets by state partition."""
    stretches = sorted(WriterSpan(**row) for row in rows)
    newest_ms = max((each.last_ms for each in stretches), default=0)
    found: list[Finding] = []
    for state_partition, of_partition in groupby(stretches, key=lambda each: each.state_partition):
        ordered = sorted(of_partition, key=lambda each: each.first_at)
        findings = Findings(state_partition)
        _check_boundaries(ordered, starts.get(state_partition, ordered[0].first_at), limits, findings)
        whole = _merge_spans(ordered)
        _check_writers(whole, findings)
        _check_transactions(whole, newest_ms, limits, findings)
        found += findings
    return found


def _check_boundaries(ordered: list[WriterSpan], start: int, limits: Limits, findings: Findings) -> None:
    if ordered[0].first_at > start:
        findings.add(
            offset_gap_finding(findings.state_partition, start - 1, ordered[0].first_at, ordered[0].first_ms)
        )
    for before, after in pairwise(ordered):
        if before.range_start == after.range_start:
            continue
        if after.first_at != before.last_at + 1:
            findings.add(
                offset_gap_finding(findings.state_partition, before.last_at, after.first_at, after.first_ms)
            )
        if before.last_ms - after.first_ms > limits.clock_ms_max:
            back_ms = before.last_ms - after.first_ms
            findings.add(
                time_regression_finding(findings.state_partition, after.first_at, back_ms, after.first_ms)
            )


def _merge_spans(ordered: list[WriterSpan]) -> list[WriterSpan]:
    """Merge consecutive spans of one writer that are in different ranges."""
    found: list[WriterSpan] = []
    for each in ordered:
        if found and found[-1][_WRITER_AT:] == each[_WRITER_AT:]:
            found[-1] = found[-1]._replace(last_at=each.last_at, last_ms=each.last_ms)
        else:
            found.append(each)
    return found


def _check_writers(ordered: list[WriterSpan], findings: Findings) -> None:
    epochs: dict[int, int] = {}
    owner_epoch = leader_epoch = NONE
    # The producers (id, epoch) that wrote with the current owner epoch, in the order of their latest records.
    producers: list[tuple[int, int]] = []

    def add_finding(check: str, severity: Severity, each: WriterSpan, evidence: str) -> None:
        findings.add(
            Finding(
                *(check, severity, findings.state_partition, None, each.first_at, each.last_at),
                evidence=evidence,
                timestamp_ms=each.first_ms,
            )
        )

    for each in ordered:
        if each.partition_leader_epoch < leader_epoch:
            add_finding(
                "P4", _C, each, f"leader epoch of the log {each.partition_leader_epoch} after {leader_epoch}"
            )
        leader_epoch = max(leader_epoch, each.partition_leader_epoch)
        if each.owner_epoch < owner_epoch:
            add_finding(
                "P3", _W, each, f"records of owner epoch {each.owner_epoch} after {owner_epoch}: not counted"
            )
            continue
        if each.owner_epoch > owner_epoch:
            owner_epoch, producers = each.owner_epoch, []
        if each.is_control:
            continue
        producer = (each.producer_id, each.producer_epoch)
        if each.producer_id >= 0 and each.producer_epoch < epochs.get(each.producer_id, NONE):
            add_finding(
                *("P3", _C, each),
                f"producer {each.producer_id} has epoch {each.producer_epoch}, "
                f"and had {epochs[each.producer_id]} before",
            )
        elif producer in producers[:-1]:
            add_finding(
                "P3", _C, each, f"producer {producer[0]} writes again after producer {producers[-1][0]}"
            )
        epochs[each.producer_id] = max(each.producer_epoch, epochs.get(each.producer_id, NONE))
        if not producers or producers[-1] != producer:
            producers = [*(known for known in producers if known != producer), producer]


def _check_transactions(
    ordered: list[WriterSpan], newest_ms: int, limits: Limits, findings: Findings
) -> None:
    open_since: dict[int, WriterSpan] = {}
    for each in ordered:
        if each.is_control:
            open_since.pop(each.producer_id, None)
        elif each.is_transactional:
            open_since.setdefault(each.producer_id, each)
    for producer_id, since in open_since.items():
        age_ms = newest_ms - since.first_ms
        if age_ms > limits.transaction_ms_max:
            findings.add(
                Finding(
                    *("P6", _W, findings.state_partition, None, since.first_at, since.last_at),
                    evidence=f"of producer {producer_id}, open for {age_ms // 1000} s",
                    timestamp_ms=since.first_ms,
                )
            )
