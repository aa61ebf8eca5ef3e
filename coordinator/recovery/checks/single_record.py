"""Make the checks that need only a single record: R1 to R10, except R8."""

from collections.abc import Callable
from functools import partial

import numpy as np

from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Findings, RowFindings
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.decode import DecodedRecords, RecordKind, StateBatches
from coordinator.recovery.records import Bools, Records
from coordinator.recovery.scan import ScannedRecords

# The delivery states available, acknowledged, archiving (from Kafka 4.4 on) and archived. Acquired (1) is
# never stored.
_STORED_STATES = (0, 2, 3, 4)
_HEX_BYTES = 48

_C, _W, _I = Severity.CRITICAL, Severity.WARNING, Severity.INFO


def check_unexpected_records(records: Records, decoded: DecodedRecords, found: Findings) -> None:
    """Report records that belong to no share-partition: unknown types, undecodable keys (R1, R2, R3)."""
    rows = RowFindings(found, np.zeros(len(records), np.int64), records.log_offset, records.timestamp_ms)
    is_null = records.keys.length[decoded.undecodable] < 0
    for check, severity, wrong, what in (
        ("R1", _C, decoded.undecodable[~is_null], "its key does not parse"),
        ("R2", _W, decoded.unknown, "its record type is unknown"),
        ("R3", _C, decoded.undecodable[is_null], "it has no key"),
    ):
        rows.add(check, severity, wrong, partial(_describe_record, records, what))


def _describe_record(records: Records, what: str, row: int) -> str:
    return f"{what}: {_key_hex(records, row)}"


def check_records(scanned: ScannedRecords, limits: Limits, found: Findings) -> None:
    """Check the fields and the state batches of the valid records (R1, R3 to R7, R9, R10)."""
    records, decoded = scanned.records, scanned.decoded
    rows = RowFindings(found, decoded.key, decoded.log_offset, decoded.timestamp_ms, decoded.share_partitions)

    def add_findings(check: str, severity: Severity, wrong: Bools, evidence: Callable[[int], str]) -> None:
        rows.add(
            *(check, severity, wrong),
            lambda row: f"{evidence(row)}: {_key_hex(records, int(decoded.record[row]))}",
        )

    kind = decoded.kind
    unreadable = kind == RecordKind.UNREADABLE
    if unreadable.any():
        empty = unreadable & (records.values.length[decoded.record] < 0)
        add_findings("R1", _C, unreadable & ~empty, lambda row: decoded.unreadable[row])
        add_findings("R3", _C, empty, lambda row: "an update without a value")
    has_state_fields = (kind == RecordKind.SNAPSHOT) | (kind == RecordKind.UPDATE)
    snapshot = kind == RecordKind.SNAPSHOT
    add_findings(
        "R7",
        _W,
        has_state_fields & _has_negative_number(decoded, snapshot),
        lambda row: _format_numbers(decoded, row),
    )
    size = records.keys.length[decoded.record] + records.values.length[decoded.record]
    add_findings("R9", _I, size > limits.record_bytes_max, lambda row: f"{size[row]} bytes")
    _check_clocks(decoded, snapshot, limits, add_findings)
    if len(decoded.batches.row):
        _check_batches(decoded, snapshot, limits, add_findings)


AddFinding = Callable[[str, Severity, Bools, Callable[[int], str]], None]


def _has_negative_number(decoded: DecodedRecords, snapshot: Bools) -> Bools:
    low = (decoded.start_offset < -1) | (decoded.delivery_complete_count < -1) | (decoded.leader_epoch < -1)
    negative: Bools = low | (decoded.snapshot_epoch < 0) | (snapshot & (decoded.state_epoch < 0))
    return negative


def _format_numbers(decoded: DecodedRecords, row: int) -> str:
    return (
        f"start offset {decoded.start_offset[row]}, complete count {decoded.delivery_complete_count[row]}, "
        f"snapshot epoch {decoded.snapshot_epoch[row]}, leader epoch {decoded.leader_epoch[row]}"
    )


def _check_clocks(decoded: DecodedRecords, snapshot: Bools, limits: Limits, add_findings: AddFinding) -> None:
    create, write, stored = decoded.create_timestamp, decoded.write_timestamp, decoded.timestamp_ms
    add_findings(
        "R10", _W, snapshot & (create > write), lambda row: f"created at {create[row]}, written {write[row]}"
    )
    distant = snapshot & (np.abs(stored - write) > limits.clock_ms_max)
    add_findings("R10", _W, distant, lambda row: f"written at {write[row]}, on the log at {stored[row]}")


def _check_batches(
    decoded: DecodedRecords, snapshot: Bools, limits: Limits, add_findings: AddFinding
) -> None:
    batches, rows = decoded.batches, len(decoded)

    def select_rows(wrong: Bools) -> tuple[Bools, Callable[[int], str]]:
        """Return which records have a wrong state batch, and a function that formats a record's first one."""
        at = np.flatnonzero(wrong)
        hit = np.zeros(rows, np.bool_)
        hit[batches.row[at]] = True
        return hit, lambda row: _format_batch(batches, int(at[np.searchsorted(batches.row[at], row)]))

    impossible = (
        (batches.first_offset > batches.last_offset)
        | ~np.isin(batches.delivery_state, _STORED_STATES)
        | (batches.delivery_count < 0)
        | (batches.delivery_count > limits.delivery_count_max)
    )
    add_findings("R4", _C, *select_rows(impossible))
    overlapping = np.zeros(len(batches.row), np.bool_)
    same = batches.row[1:] == batches.row[:-1]
    overlapping[1:] = same & (batches.first_offset[1:] <= batches.last_offset[:-1])
    add_findings("R5", _W, *select_rows(overlapping))
    start_offset = decoded.start_offset[batches.row]
    add_findings("R6", _W, *select_rows((start_offset >= 0) & (batches.first_offset < start_offset)))
    equal = np.zeros(len(batches.row), np.bool_)
    equal[1:] = (
        same
        & (batches.first_offset[1:] - 1 == batches.last_offset[:-1])
        & (batches.delivery_state[1:] == batches.delivery_state[:-1])
        & (batches.delivery_count[1:] == batches.delivery_count[:-1])
    )
    hit, show = select_rows(equal)
    add_findings("R9", _I, hit, lambda row: f"not merged with the batch before: {show(row)}")
    in_flight = np.bincount(batches.row, np.maximum(_batch_lengths(batches), 0), rows)
    add_findings(
        "R9",
        _I,
        snapshot & (in_flight > limits.in_flight_max),
        lambda row: f"{in_flight[row]:.0f} records in flight",
    )


def _batch_lengths(batches: StateBatches) -> "np.typing.NDArray[np.float64]":
    return batches.last_offset.astype(np.float64) - batches.first_offset + 1


def _format_batch(batches: StateBatches, at: int) -> str:
    first, last, state, count = (int(column[at]) for column in batches[1:])
    return f"batch ({first}-{last}, state {state}, count {count})"


def _key_hex(records: Records, row: int) -> str:
    parts = []
    for name, spans in (("key", records.keys), ("value", records.values)):
        data = spans.get(row)
        shown = "none" if data is None else data[:_HEX_BYTES].hex()
        parts.append(f"{name} {shown}{'...' if data is not None and len(data) > _HEX_BYTES else ''}")
    return ", ".join(parts)
