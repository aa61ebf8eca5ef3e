"""Check the records and states of one state partition in one pass, as the `Observer` of an audit."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import (
    FINDINGS_OUTPUT,
    Finding,
    Findings,
    finding_from_row,
    findings_output,
    findings_row,
)
from coordinator.recovery.checks.histories import HistoryCheck, make_empty_rows_to_check, rows_to_check
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.checks.partition_stats import check_delivery_complete_counts
from coordinator.recovery.checks.single_record import check_records, check_unexpected_records
from coordinator.recovery.checks.writer_sequence import WriterSequence
from coordinator.recovery.scan import PartitionScan, ScannedRecords, StateFold
from coordinator.recovery.schema import NONE
from coordinator.recovery.share_partitions import count_state_partitions, hash_partitions
from coordinator.recovery.state_tasks import PartitionStates, StateTask, find_affected
from coordinator.recovery.states import StateRows
from coordinator.recovery.tasks import NamedOutput
from coordinator.recovery.verdict import select_states_for_verdict


@dataclass(frozen=True)
class AuditSettings:
    """What is checked. By default, `state_partitions` is the number of state partitions of the source.

    The `tasks` get the states after the last record.
    """

    limits: Limits
    state_partitions: int | None = None
    tasks: tuple[StateTask, ...] = ()


class PartitionAudit:
    """Checks the records of one state partition; this is an `Observer`."""

    def __init__(self, settings: AuditSettings, scan: PartitionScan) -> None:
        number = scan.state_partition
        self._settings = settings
        self._scan = scan
        self._found = Findings(number)
        self._writers = WriterSequence(self._found, settings.limits)
        self._history = HistoryCheck(scan.names, settings.limits, scan.log_start or 0, self._found)
        self._fold = StateFold(scan, make_empty_rows_to_check(), rows_to_check, self._history.check)

    def process(self, scanned: ScannedRecords) -> None:
        """Process the next records."""
        self._writers.process_records(scanned.chunk)
        check_unexpected_records(scanned.records, scanned.all_decoded, self._found)
        if len(scanned.decoded):
            check_records(scanned, self._settings.limits, self._found)
            self._fold.add(scanned.decoded)

    def outputs(self) -> Iterator[NamedOutput]:
        """Yield the findings, the outputs of the tasks, and the states that the verdict needs."""
        folded = self._fold.result()
        self._history.check_end(folded)
        self._writers.finish()
        self._check_routing(folded)
        number, names = self._scan.state_partition, self._scan.names
        at, keys = folded["deleted_at"], folded.key
        deleted = {names[keys[row]]: int(at[row]) for row in np.flatnonzero(at != NONE).tolist()}
        partition = PartitionStates.from_scan(self._scan, self._fold.to_arrow(), deleted)
        # Add the findings of states after those of records: at equal log offsets, a merged finding keeps the
        # timestamp of the finding that was added first.
        for finding in (*self._check_damage(partition), *check_delivery_complete_counts(partition.states)):
            self._found.add(finding)
        found = list(self._found)
        yield from findings_output(number, found)
        for task in (find_affected, *self._settings.tasks):
            for output in task(partition):
                if output.name == FINDINGS_OUTPUT:
                    found += map(finding_from_row, output.rows.to_pylist())
                yield output
        yield from select_states_for_verdict(map(findings_row, found), partition)

    def _check_routing(self, states: StateRows) -> None:
        """Check that each share-partition is in the state partition that its hash selects (check R8)."""
        count = self._settings.state_partitions or count_state_partitions(self._scan.starts)
        if count is None:
            return
        identities = [self._scan.names[key] for key in states.key.tolist()]
        expected = hash_partitions(identities, count)
        for row in np.flatnonzero(expected != self._scan.state_partition).tolist():
            place = (int(states["first_at"][row]), int(states["last_log_offset"][row]))
            evidence = f"its hash selects state partition {expected[row]} of {count}"
            self._found.add(
                Finding(
                    *("R8", Severity.CRITICAL, self._scan.state_partition, identities[row], *place),
                    evidence=evidence,
                    timestamp_ms=int(states["first_ms"][row]),
                )
            )

    def _check_damage(self, partition: PartitionStates) -> Iterator[Finding]:
        """Yield findings of gaps (P2), of damage, and of an incomplete write at the end of the log (P4)."""
        number = partition.state_partition
        for each, names in partition.match_damages_to_share_partitions():
            for identity in names or (None,):
                place = (number, identity, each.first, each.last)
                yield Finding(each.check, Severity.CRITICAL, *place, 1, each.what, each.since_ms)
        summary = self._scan.summary()
        if summary["unread_bytes"]:
            end = int(summary["range_end"])
            ignored = "bytes after the last valid batch: a write that is interrupted or in progress"
            evidence = f"{summary['unread_bytes']} {ignored}"
            yield Finding("P4", Severity.INFO, number, None, end, end, evidence=evidence)
