"""The two functions of an audit: `audit_range` for a log range, and `join_audit` for a state partition.

`audit_range` also returns the output of `rebuild`, so one pass over the log serves both jobs.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from coordinator.errors import LogDamaged
from coordinator.recovery.checks.adjacent_records import check_adjacent_records
from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import (
    FINDINGS_OUTPUT,
    NO_OWNER_YET,
    Finding,
    Findings,
    findings_output,
    findings_rows,
    valid_findings,
)
from coordinator.recovery.checks.generations import check_generations
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.checks.log_end import check_log_ends, check_routing
from coordinator.recovery.checks.partition_stats import (
    DISTRIBUTIONS_OUTPUT,
    check_complete_counts,
    distributions,
)
from coordinator.recovery.checks.record_histories import (
    HISTORIES,
    HISTORIES_OUTPUT,
    Histories,
    concatenate_histories,
    drop_inner_entries,
    histories_from_arrow,
    histories_from_records,
    merge_runs,
)
from coordinator.recovery.checks.single_record import check_records, check_unexpected_records
from coordinator.recovery.checks.writer_sequence import WRITERS_OUTPUT, WriterSequence
from coordinator.recovery.final_states import STATES_OUTPUT, OwnerEpochs, join_states, valid_rows
from coordinator.recovery.ranges import PARTIALS_OUTPUT, RANGES_OUTPUT, RangeFold, RangeScan, ScannedRecords
from coordinator.recovery.records import Records
from coordinator.recovery.schema import NONE
from coordinator.recovery.sources.base import ALL
from coordinator.recovery.tasks import NamedOutput, Tables

# Entries of histories that are collected before they are merged; fewer merges of more entries cost less time.
_WAITING_MAX = 200_000

DELETED_OUTPUT = "deleted"

# The last tombstone of each share-partition that has one; the key is the record key without its type.
DELETED = pa.schema(
    [
        pa.field("state_partition", pa.int32(), nullable=False),
        pa.field("share_partition", pa.binary(), nullable=False),
        pa.field("log_offset", pa.int64(), nullable=False),
    ]
)

# The owner epoch, and whether it was claimed in the range.
_Owner = tuple[int, bool]


def check_histories(histories: Histories, limits: Limits, found: Findings) -> Histories:
    """Check pairs of entries that were not compared before; return the entries that later checks need."""
    histories = histories.sorted()
    check_adjacent_records(histories, found)
    histories = merge_runs(histories)
    check_generations(histories, limits, found)
    return drop_inner_entries(histories)


class _OwnerEpochAudit:
    """The histories and findings of one owner epoch in a range."""

    def __init__(self, state_partition: int) -> None:
        self.found = Findings(state_partition)
        self.waiting: list[Histories] = []
        self.entries = 0

    def add_histories(self, histories: Histories, limits: Limits) -> None:
        histories = check_histories(histories, limits, self.found)
        self.waiting.append(histories)
        self.entries += len(histories)
        if self.entries > _WAITING_MAX + 8 * len(histories.identities):
            self.merge_pending(limits)

    def merge_pending(self, limits: Limits) -> Histories:
        """Merge the pending histories into one, and return it."""
        if len(self.waiting) > 1:
            self.waiting = [check_histories(concatenate_histories(self.waiting), limits, self.found)]
        self.entries = len(self.waiting[0])
        return self.waiting[0]


class RangeAudit:
    """Checks the records of one state partition in one range."""

    def __init__(self, state_partition: int, limits: Limits) -> None:
        self.state_partition = state_partition
        self._limits = limits
        self._scan = RangeScan(state_partition)
        self._fold = RangeFold(state_partition)
        self._writer_sequence = WriterSequence(state_partition, limits)
        self._unexpected_records = Findings(state_partition)
        self._ownerships: dict[_Owner, _OwnerEpochAudit] = {}
        self._identities: list[bytes] = []

    def process_records(self, records: Records) -> None:
        """Process the next records of the range."""
        self._writer_sequence.process_records(records)
        scanned = self._scan.process_records(records)
        check_unexpected_records(scanned.records, scanned.decoded, self._unexpected_records)
        if not len(scanned.decoded):
            return
        key = self._fold.fold_records(self._scan, scanned)
        self._identities += [identity for _, identity in self._fold.names[len(self._identities) :]]
        for whose in _owners_of_rows(scanned):
            owner_epoch, claimed = whose
            rows = (scanned.decoded.owner_epoch == owner_epoch) & (scanned.claimed == claimed)
            ownership = self._ownerships.get(whose)
            if ownership is None:
                ownership = self._ownerships[whose] = _OwnerEpochAudit(self.state_partition)
            check_records(scanned, rows, self._limits, ownership.found)
            ownership.add_histories(
                histories_from_records(
                    *(scanned.decoded, rows, key, self._identities), state_partition=self.state_partition
                ),
                self._limits,
            )

    def outputs(self) -> Iterator[NamedOutput]:
        """Yield the summary of the range, after all its records were processed."""
        state_partition, range_start = self.state_partition, self._scan.range_start
        yield from self._scan.outputs()
        yield NamedOutput(WRITERS_OUTPUT, state_partition, self._writer_sequence.to_arrow(range_start))
        folded = self._fold.result()
        if folded is not None:
            yield NamedOutput(PARTIALS_OUTPUT, state_partition, folded.to_arrow())
        for (owner_epoch, claimed), ownership in self._ownerships.items():
            histories = ownership.merge_pending(self._limits)
            whose = {"range_start": range_start, "owner_epoch": owner_epoch, "claimed": claimed}
            yield NamedOutput(HISTORIES_OUTPUT, state_partition, histories.to_arrow(**whose))  # type: ignore[arg-type]
            if len(ownership.found):
                yield NamedOutput(FINDINGS_OUTPUT, state_partition, findings_rows(ownership.found, **whose))  # type: ignore[arg-type]
        yield from _findings_without_owner(
            state_partition, [*self._writer_sequence.found, *self._unexpected_records]
        )


def _owners_of_rows(scanned: ScannedRecords) -> list[_Owner]:
    owner_epoch, claimed = scanned.decoded.owner_epoch, scanned.claimed
    pairs = np.unique(owner_epoch * 2 + claimed)
    return [(int(pair) // 2, bool(pair % 2)) for pair in pairs]


def _findings_without_owner(state_partition: int, found: list[Finding]) -> Iterator[NamedOutput]:
    if found:
        rows = findings_rows(found, range_start=0, owner_epoch=NO_OWNER_YET, claimed=False)
        yield NamedOutput(FINDINGS_OUTPUT, state_partition, rows)


def audit_range(limits: Limits, chunks: Iterable[Records]) -> Iterator[NamedOutput]:
    """Check the records of a range; a job calls it with `limits` bound.

    Damage becomes a finding, and the records before the damage are checked.
    """
    audits: dict[int, RangeAudit] = {}
    damage: LogDamaged | None = None
    try:
        for records in chunks:
            audit = audits.get(records.state_partition)
            if audit is None:
                audit = audits[records.state_partition] = RangeAudit(records.state_partition, limits)
            audit.process_records(records)
    except LogDamaged as found:
        damage = found
    for audit in audits.values():
        yield from audit.outputs()
    if damage is not None:
        yield from _findings_without_owner(*make_damage_finding(damage))


def make_damage_finding(damage: LogDamaged) -> tuple[int, list[Finding]]:
    """Return a finding about damage, and its state partition (ALL if it is not known)."""
    state_partition = ALL if damage.state_partition is None else damage.state_partition
    finding = Finding(
        "P4", Severity.CRITICAL, state_partition, evidence=f"{damage}; records after it were not checked"
    )
    return state_partition, [finding]


def join_audit(
    known: OwnerEpochs,
    limits: Limits,
    state_partitions: int | None,
    starts: Mapping[int, int],
    state_partition: int,
    tables: Tables,
) -> Iterator[NamedOutput]:
    """Merge the summaries of a state partition's ranges, and make the remaining checks.

    Yields rows of `STATES`, `STATE_TOTALS`, `PARTIAL_FINDINGS` (merged) and `DELETED`.  `state_partitions` is
    None if it is not known.
    """
    found = Findings(state_partition)
    of_states: list[Finding] = []
    for output in join_states(known, state_partition, tables):
        yield output
        if output.name == STATES_OUTPUT:
            of_states += check_complete_counts(output.rows)
            ranges = [row for rows in tables.get(RANGES_OUTPUT, ()) for row in rows.to_pylist()]
            newest_ms = max((row["timestamp_ms_max"] for row in ranges), default=0)
            yield NamedOutput(DISTRIBUTIONS_OUTPUT, state_partition, distributions(output.rows, newest_ms))
    for finding in valid_findings(tables.get(FINDINGS_OUTPUT, ()), known):
        found.add(finding)
    parts = tables.get(HISTORIES_OUTPUT, ())
    if parts:
        histories = histories_from_arrow(pa.Table.from_batches(parts, HISTORIES))
        of = histories.folded
        columns = (of["state_partition"], of["range_start"], of["owner_epoch"], of["claimed"])
        histories = histories.take(valid_rows(known, *columns))
        if len(histories):
            yield NamedOutput(DELETED_OUTPUT, state_partition, _last_tombstones(histories, state_partition))
            histories = check_histories(histories, limits, found)
            start = starts.get(state_partition, 0)
            check_log_ends(histories, limits, log_start=start, found=found)
            if state_partitions is not None:
                check_routing(histories, state_partitions, found)
    # Add the findings of states after those of records: at equal log offsets, a merged finding keeps the
    # timestamp of the finding that was added first.
    for finding in of_states:
        found.add(finding)
    yield from findings_output(state_partition, found)


def _last_tombstones(histories: Histories, state_partition: int) -> pa.RecordBatch:
    """Return the last tombstone of each share-partition that has one, as rows of `DELETED`."""
    found: dict[bytes, int] = {}
    deleted_at = histories["deleted_at"]
    for row in np.flatnonzero(deleted_at != NONE).tolist():
        identity = histories.identities[int(histories.key[row])]
        found[identity] = max(found.get(identity, NONE), int(deleted_at[row]))
    return pa.RecordBatch.from_pydict(
        {
            "state_partition": [state_partition] * len(found),
            "share_partition": list(found),
            "log_offset": list(found.values()),
        },
        schema=DELETED,
    )
