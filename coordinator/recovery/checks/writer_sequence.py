"""Check the writers of a state partition (P3, P4, P6), and the order of its timestamps (R10)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Finding, Findings
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.records import CONTROL, Records
from coordinator.recovery.schema import NONE

_TRANSACTIONAL = 0x10

_C, _W = Severity.CRITICAL, Severity.WARNING


class WriterSpan(NamedTuple):
    """A sequence of consecutive records by one writer."""

    first_at: int
    last_at: int
    first_ms: int
    producer_id: int
    producer_epoch: int
    owner_epoch: int
    partition_leader_epoch: int
    is_transactional: int
    is_control: int


_WRITER_AT = WriterSpan._fields.index("producer_id")


class WriterSequence:
    """Checks the writers of the records of one state partition, in log order."""

    def __init__(self, found: Findings, limits: Limits) -> None:
        self._found = found
        self._limits = limits
        # The time of the last record.
        self._last_ms = NONE
        self._span: WriterSpan | None = None
        # The greatest producer epoch so far, by producer id.
        self._producer_epochs: dict[int, int] = {}
        self._owner_epoch = self._leader_epoch = NONE
        # The producers (id, epoch) of the current owner epoch, in the order of their latest records.
        self._producers: list[tuple[int, int]] = []
        self._open_since: dict[int, WriterSpan] = {}

    def process_records(self, records: Records) -> None:
        """Process the next records, including those of control batches."""
        if not len(records):
            return
        at, ms = records.log_offset, np.append(self._last_ms, records.timestamp_ms)
        self._last_ms = int(ms[-1])
        for row in np.flatnonzero(ms[:-1] - ms[1:] > self._limits.clock_ms_max).tolist():
            place = (self._found.state_partition, None, int(at[row]), int(at[row]))
            evidence = f"{int(ms[row] - ms[row + 1])} ms before the record before it"
            self._found.add(Finding("R10", _W, *place, 1, evidence, int(ms[row + 1])))
        for span in _writer_spans(records):
            if self._span is not None and self._span[_WRITER_AT:] == span[_WRITER_AT:]:
                self._span = self._span._replace(last_at=span.last_at)
            else:
                self._process_span()
                self._span = span

    def finish(self) -> None:
        """Check the last writer, and report open transactions.

        `add_transaction_age` adds their age, because it depends on the newest record of the whole log.
        """
        self._process_span()
        for producer_id, since in self._open_since.items():
            self._add_finding("P6", _W, since, f"of producer {producer_id}")

    def _add_finding(self, check: str, severity: Severity, each: WriterSpan, evidence: str) -> None:
        place = (self._found.state_partition, None, each.first_at, each.last_at)
        self._found.add(Finding(check, severity, *place, 1, evidence, each.first_ms))

    def _process_span(self) -> None:
        each = self._span
        if each is None:
            return
        if each.partition_leader_epoch < self._leader_epoch:
            evidence = f"leader epoch of the log {each.partition_leader_epoch} after {self._leader_epoch}"
            self._add_finding("P4", _C, each, evidence)
        self._leader_epoch = max(self._leader_epoch, each.partition_leader_epoch)
        if each.is_control:
            self._open_since.pop(each.producer_id, None)
        elif each.is_transactional:
            self._open_since.setdefault(each.producer_id, each)
        if each.owner_epoch < self._owner_epoch:
            evidence = f"records of owner epoch {each.owner_epoch} after {self._owner_epoch}: not counted"
            self._add_finding("P3", _W, each, evidence)
            return
        if each.owner_epoch > self._owner_epoch:
            self._owner_epoch, self._producers = each.owner_epoch, []
        if not each.is_control:
            self._check_producer(each)

    def _check_producer(self, each: WriterSpan) -> None:
        producer, known = (each.producer_id, each.producer_epoch), self._producers
        epoch_before = self._producer_epochs.get(each.producer_id, NONE)
        if each.producer_id >= 0 and each.producer_epoch < epoch_before:
            evidence = (
                f"producer {each.producer_id} has epoch {each.producer_epoch}, and had {epoch_before} before"
            )
            self._add_finding("P3", _C, each, evidence)
        elif producer in known[:-1]:
            evidence = f"producer {producer[0]} writes again after producer {known[-1][0]}"
            self._add_finding("P3", _C, each, evidence)
        self._producer_epochs[each.producer_id] = max(each.producer_epoch, epoch_before)
        if not known or known[-1] != producer:
            self._producers = [*(other for other in known if other != producer), producer]


def add_transaction_age(finding: Finding, newest_ms: int, limits: Limits) -> Finding | None:
    """Add its age to a finding about an open transaction; return None if the age is within the limit."""
    age_ms = newest_ms - finding.timestamp_ms
    if age_ms <= limits.transaction_ms_max:
        return None
    return replace(finding, evidence=f"{finding.evidence}, open for {age_ms // 1000} s")


def _writer_spans(records: Records) -> Iterator[WriterSpan]:
    batches, batch = records.batches, records.batch
    attributes = batches.attributes[batch]
    writer = np.stack(
        [
            batches.producer_id[batch],
            batches.producer_epoch[batch],
            records.owner_epoch,
            batches.partition_leader_epoch[batch],
            attributes & _TRANSACTIONAL != 0,
            attributes & CONTROL != 0,
        ]
    )
    begins = np.append(0, np.flatnonzero((writer[:, 1:] != writer[:, :-1]).any(axis=0)) + 1)
    ends = np.append(begins[1:], len(records)) - 1
    at, ms = records.log_offset, records.timestamp_ms
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        yield WriterSpan(int(at[begin]), int(at[end]), int(ms[begin]), *writer[:, begin].tolist())
