"""Collect findings, merge findings of one check about one share-partition, and convert them to Arrow.

The count of a merged finding is the sum of the counts; its evidence is that of the first finding.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from coordinator.recovery.checks.catalogue import (
    SEVERITIES,
    FindingEffect,
    Severity,
    check_position,
    finding_effect,
)
from coordinator.recovery.records import Bools, Ints
from coordinator.recovery.schema import NONE, required_field
from coordinator.recovery.share_partitions import parse_identity
from coordinator.recovery.tasks import NamedOutput

FINDINGS_OUTPUT = "findings"

# If a check affects no state, a state partition reports its findings separately for at most this number of
# share-partitions; one more finding summarises the others.
HARMLESS_MAX = 1_000

# The findings of an audit; the state partition is -1 if the finding concerns no single state partition.
FINDINGS = pa.schema(
    [
        required_field("check", pa.string()),
        required_field("severity", pa.string()),
        required_field("state_partition", pa.int32()),
        pa.field("group_id", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        # Log offsets of the first and the last record of the findings; -1 if they concern no record.
        required_field("log_offset", pa.int64()),
        required_field("last_log_offset", pa.int64()),
        required_field("count", pa.int64()),
        required_field("evidence", pa.string()),
        # The timestamp of the first record; -1 if it is not known.
        required_field("timestamp_ms", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding, or several merged findings of one check about one share-partition.

    `share_partition` is a record key without its type.
    """

    check: str
    severity: Severity
    state_partition: int = NONE
    share_partition: bytes | None = None
    log_offset: int = NONE
    last_log_offset: int = NONE
    count: int = 1
    evidence: str = ""
    timestamp_ms: int = NONE

    def merge_with(self, other: "Finding") -> "Finding":
        """Merge two findings of the same check, severity and share-partition."""
        first = min(self, other, key=lambda each: each.log_offset)
        last_log_offset = max(self.last_log_offset, other.last_log_offset)
        return replace(first, last_log_offset=last_log_offset, count=self.count + other.count)


class Findings:
    """The findings of a state partition, merged when they are added."""

    def __init__(self, state_partition: int) -> None:
        self.state_partition = state_partition
        self._found: dict[tuple[str, Severity, bytes | None], Finding] = {}

    def add(self, finding: Finding) -> None:
        """Add a finding about this state partition."""
        name = (finding.check, finding.severity, finding.share_partition)
        known = self._found.get(name)
        self._found[name] = finding if known is None else known.merge_with(finding)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)


@dataclass(frozen=True)
class RowFindings:
    """Adds findings about rows; each row has a key, a log offset and a timestamp.

    Rows with equal keys are in log order. `names` maps a key to its share-partition; it is empty if the rows
    belong to no share-partition.
    """

    found: Findings
    key: Ints
    log_offset: Ints
    timestamp_ms: Ints
    names: Sequence[bytes] = ()

    def add(
        self,
        check: str,
        severity: Severity,
        wrong: Bools | Ints,
        evidence: Callable[[int], str],
        at: Ints | None = None,
        ms: Ints | None = None,
    ) -> None:
        """Add a finding for each wrong row; `at` and `ms`, if given, replace the row's log offset and time.

        `evidence` describes a row; it is called only for the first wrong row of each key.
        """
        rows = np.flatnonzero(wrong) if wrong.dtype == np.bool_ else wrong
        if not len(rows):
            return
        log_offset = self.log_offset if at is None else at
        timestamp_ms = self.timestamp_ms if ms is None else ms
        keys, first, count = np.unique(self.key[rows], return_index=True, return_counts=True)
        _, last = np.unique(self.key[rows][::-1], return_index=True)
        for place, key in enumerate(keys.tolist()):
            row = int(rows[first[place]])
            self.found.add(
                Finding(
                    *(check, severity, self.found.state_partition),
                    self.names[key] if self.names else None,
                    int(log_offset[row]),
                    int(log_offset[rows[len(rows) - 1 - last[place]]]),
                    int(count[place]),
                    evidence(row),
                    int(timestamp_ms[row]),
                )
            )


def summarise_harmless_findings(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings; if a check affects no state, summarise its findings after the first `HARMLESS_MAX`.

    This limits what the driver gets, because a state partition may have a finding for each share-partition.
    """
    harmless: dict[tuple[str, Severity], list[Finding]] = {}
    for each in findings:
        if (
            each.share_partition is None
            or finding_effect(each.check, each.severity) is not FindingEffect.NONE
        ):
            yield each
        else:
            harmless.setdefault((each.check, each.severity), []).append(each)
    for found in harmless.values():
        found.sort(key=lambda each: (each.log_offset, each.share_partition))
        yield from found[:HARMLESS_MAX]
        if others := found[HARMLESS_MAX:]:
            merged = reduce(Finding.merge_with, others)
            evidence = f"{len(others)} more share-partitions, first {merged.evidence}"
            yield replace(merged, share_partition=None, evidence=evidence)


def findings_output(state_partition: int, findings: Iterable[Finding]) -> Iterator[NamedOutput]:
    """Yield one task output with these findings, or nothing if there are none."""
    rows = list(map(asdict, summarise_harmless_findings(findings)))
    if rows:
        yield NamedOutput.from_rows(FINDINGS_OUTPUT, state_partition, *rows)


def finding_from_row(row: Mapping[str, Any]) -> Finding:
    """Convert a row of the task output `findings` to a `Finding`."""
    return Finding(**{**row, "severity": Severity(row["severity"])})


def findings_table(findings: Iterable[Finding]) -> pa.Table:
    """Return findings as rows of `FINDINGS`, ordered by severity, check, state partition and log offset."""
    gravity = {severity: place for place, severity in enumerate(SEVERITIES)}
    ordered = sorted(
        findings,
        key=lambda each: (
            gravity[each.severity],
            check_position(each.check),
            each.state_partition,
            each.log_offset,
            each.share_partition or b"",
            each.evidence,
        ),
    )
    return pa.Table.from_pylist([findings_row(finding) for finding in ordered], FINDINGS)


def findings_row(finding: Finding) -> dict[str, Any]:
    """Return a finding as a row of `FINDINGS`."""
    row = asdict(finding)
    row["severity"] = finding.severity.value
    identity = row.pop("share_partition")
    group_id, topic_id, partition = (None, None, None) if identity is None else parse_identity(identity)
    return {**row, "group_id": group_id, "topic_id": topic_id, "partition": partition}
