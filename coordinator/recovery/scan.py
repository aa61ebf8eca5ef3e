"""Read the log of a state partition once, in log order, and pass its valid records to an observer.

A state partition has all records of its share-partitions, so one pass finds their states, their histories and
the findings of an audit. A process has only one chunk of records, and the states of the share-partitions, in
memory.

`coordinator.log.claims.FencingFilter` decides which records are valid.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from coordinator.log.claims import FencingFilter, owner_epoch_headers
from coordinator.recovery.decode import DecodedRecords, decode
from coordinator.recovery.records import Bools, Damage, Ints, Records, add_gaps, make_gap
from coordinator.recovery.schema import NONE, RANGES
from coordinator.recovery.states import (
    StateRows,
    StoredStates,
    concatenate_rows,
    empty_rows,
    fold,
    rows_from_records,
    states_from_arrow,
    states_to_arrow,
)
from coordinator.recovery.tasks import NamedOutput
from protocol.record_batch import LogRecord

RANGES_OUTPUT, DAMAGES_OUTPUT = "ranges", "damages"

# The number of records that are collected before they are folded; then folding takes little time compared
# with decoding.
_WAITING_MAX = 200_000
# The number of gaps that are reported one by one. A compacted topic would have millions.
_GAPS_MAX = 1_000


class FencedRecordFilter:
    """Applies `FencingFilter` to columns; only records that can change the owner epoch are passed to it.

    Only the first record and the claims can change the owner epoch that is valid for the following records.
    """

    def __init__(self, owner_epoch: int | None = None) -> None:
        """Begin the scan after a record with this owner epoch; by default, at the start of the log."""
        self._rule = FencingFilter()
        self._is_begun = owner_epoch is not None
        self.first_owner_epoch = NONE
        self.first_is_claim = False
        # The number of claims, accepted or not.
        self.claims = 0
        if owner_epoch is not None:
            self.first_owner_epoch = owner_epoch
            self._rule.accepts(LogRecord(NONE, NONE, b"", b"", _owner_headers(owner_epoch)))

    @property
    def owner_epoch(self) -> int:
        """The owner epoch of valid records at the current position; -1 if their headers have none."""
        return NONE if self._rule.owner_epoch is None else self._rule.owner_epoch

    @property
    def claimed_owner_epoch(self) -> int:
        """The owner epoch of the last accepted claim; -1 if there is none."""
        return NONE if self._rule.claim is None else self._rule.claim.owner_epoch

    def filter_records(self, records: Records, decoded: DecodedRecords) -> Bools:
        """Process the next records, in log order; return which of the decoded records are valid."""
        deciding = decoded.claims.tolist()
        self.claims += len(deciding)
        if len(records) and not self._is_begun:
            self._is_begun = True
            self.first_owner_epoch = int(records.owner_epoch[0])
            self.first_is_claim = deciding[:1] == [0]
            deciding = deciding if self.first_is_claim else [0, *deciding]
        owner_epochs = [self.owner_epoch]
        for row in deciding:
            self._rule.accepts(_log_record(records, row))
            owner_epochs.append(self.owner_epoch)
        current = np.repeat(owner_epochs, np.diff([0, *deciding, len(records)]))
        valid: Bools = decoded.owner_epoch == current[decoded.record]
        return valid


def _owner_headers(owner_epoch: int) -> tuple[tuple[str, bytes], ...]:
    return () if owner_epoch == NONE else owner_epoch_headers(owner_epoch)


def _log_record(records: Records, row: int) -> LogRecord:
    return LogRecord(
        int(records.log_offset[row]),
        int(records.timestamp_ms[row]),
        records.keys.get(row),
        records.values.get(row),
        _owner_headers(int(records.owner_epoch[row])),
    )


class ScannedRecords(NamedTuple):
    """A chunk of records, the same records without control batches, and the decoded valid records."""

    chunk: Records
    records: Records
    # All decoded records of the chunk, with the indexes of records that belong to no share-partition.
    all_decoded: DecodedRecords
    decoded: DecodedRecords


class PartitionScan:
    """Decodes and filters the records of one state partition, in log order, and summarises them.

    `names` are the identities of share-partitions; keys of decoded records are indexes of `names`.  A scan
    may begin with stored states instead of the records up to their log offset.

    `starts` has the log start offset of each state partition, if that is known. `attempt` is the number of
    the attempt to read the log.
    """

    def __init__(
        self,
        state_partition: int,
        starts: Mapping[int, int] | None = None,
        stored: StoredStates | None = None,
        attempt: int = 0,
    ) -> None:
        self.state_partition = state_partition
        self.starts = starts or {}
        self.log_start = log_start = self.starts.get(state_partition)
        self.attempt = attempt
        self.names: list[bytes] = []
        self._damages: list[Damage] = []
        self._gaps: list[Damage] = []
        # The log offset of the next record.
        self._next_offset = log_start
        self.folded = empty_rows()
        self._numbers: dict[bytes, int] = {}
        self._owners = FencedRecordFilter(None if stored is None else stored.owner_epoch)
        self._totals: dict[str, int] = dict.fromkeys(RANGES.names, 0)
        if stored is not None:
            self._totals |= stored.summary
            self._next_offset = stored.summary["range_end"]
            # Damage of records that were pruned since does not matter any more.
            self._damages = [
                found for each in stored.damages if (found := Damage(*each)).last >= (log_start or 0)
            ]
            self.folded, self.names = states_from_arrow(stored.states)
            self._numbers = {name: number for number, name in enumerate(self.names)}

    def process_records(self, records: Records) -> ScannedRecords:
        """Process the next records, including those of control batches."""
        totals, chunk = self._totals, records
        if len(records):
            self._find_gaps(records)
            if not totals["batches"]:
                totals["range_start"] = int(records.log_offset[0])
            totals["range_end"] = int(records.log_offset[-1]) + 1
        used = np.zeros(len(records.batches.size_bytes), np.bool_)
        used[records.batch] = True
        totals["batches"] += int(used.sum())
        totals["bytes"] += int(records.batches.size_bytes[used].sum())
        totals["unread_bytes"] += records.unread_bytes
        self._damages += records.damages
        records = records.data_records()
        decoded = decode(records)
        valid = decoded.take(self._owners.filter_records(records, decoded))
        if len(records):
            least, greatest = int(records.timestamp_ms.min()), int(records.timestamp_ms.max())
            if totals["records"]:
                least, greatest = (
                    min(least, totals["timestamp_ms_min"]),
                    max(greatest, totals["timestamp_ms_max"]),
                )
            totals |= {"timestamp_ms_min": least, "timestamp_ms_max": greatest}
        totals["records"] += len(records)
        totals["unknown_records"] += len(decoded.unknown)
        totals["undecodable_records"] += len(decoded.undecodable)
        totals["folded_records"] += len(valid)
        self._totals = totals
        numbers = self._index_share_partitions(valid.share_partitions)
        valid = replace(valid, key=numbers[valid.key], share_partitions=self.names)
        return ScannedRecords(chunk, records, decoded, valid)

    def _find_gaps(self, records: Records) -> None:
        """Find missing and repeated log offsets (P2).

        A state log is not compacted, and `records` include transaction markers and aborted transactions. So
        the offsets are consecutive from the log start.
        """
        offset = records.log_offset
        next_offset = offset[0] if self._next_offset is None else self._next_offset
        expected = np.append(next_offset, offset[:-1] + 1)
        for row in np.flatnonzero(offset != expected).tolist():
            first, found = int(expected[row]), int(offset[row])
            gap = make_gap(self.state_partition, first, found - 1, int(records.timestamp_ms[row]))
            if found < first:
                gap = gap._replace(last=first, what=f"log offset {found} after {first - 1}")
            self._add_gap(gap)
        self._next_offset = int(offset[-1]) + 1

    def process_end(self, log_end: int | None) -> None:
        """Find the log offsets that are missing at the end of the log, if its end offset is known."""
        first = self._next_offset
        if log_end is not None and first is not None and first < log_end:
            self._add_gap(make_gap(self.state_partition, first, log_end - 1))

    def _add_gap(self, gap: Damage) -> None:
        if len(self._gaps) == _GAPS_MAX:
            before = self._gaps.pop()
            what = f"log offsets are missing in many places from {before.first} on"
            gap = before._replace(last=max(before.last, gap.last), what=what)
        self._gaps.append(gap)

    @property
    def damages(self) -> list[Damage]:
        """The damage, and the missing or repeated log offsets outside of it."""
        return add_gaps(self._damages, self._gaps)

    def _index_share_partitions(self, share_partitions: list[bytes]) -> Ints:
        """Return the index in `names` of each share-partition; append new share-partitions to `names`."""
        found = np.empty(len(share_partitions), np.int64)
        for place, identity in enumerate(share_partitions):
            number = self._numbers.get(identity)
            if number is None:
                number = self._numbers[identity] = len(self.names)
                self.names.append(identity)
            found[place] = number
        return found

    @property
    def owner_epoch(self) -> int:
        """The owner epoch after the records that were processed."""
        return self._owners.owner_epoch

    def summary(self) -> dict[str, int | bool]:
        """Return the summary of the records as a row of `RANGES`."""
        owners = self._owners
        return {
            **self._totals,
            "state_partition": self.state_partition,
            "first_owner_epoch": owners.first_owner_epoch,
            "first_is_claim": owners.first_is_claim,
            "claimed_owner_epoch": owners.claimed_owner_epoch,
            "claims": self._totals["claims"] + owners.claims,
            "damages": len(self.damages),
        }

    def outputs(self) -> Iterator[NamedOutput]:
        """Yield the summary and the damage."""
        rows = pa.RecordBatch.from_pylist([self.summary()], RANGES)
        yield NamedOutput(RANGES_OUTPUT, self.state_partition, rows)
        if damages := [each._asdict() for each in self.damages]:
            yield NamedOutput.from_rows(DAMAGES_OUTPUT, self.state_partition, *damages)


class Observer(Protocol):
    """Processes the records of one state partition."""

    def process(self, scanned: ScannedRecords) -> None:
        """Process the next records, in log order."""
        ...

    def outputs(self) -> Iterable[NamedOutput]:
        """Return the results after the last record."""
        ...


MakeObserver = Callable[[PartitionScan], Observer]


def scan_range(
    make_observer: MakeObserver,
    chunks: Iterable[Records],
    starts: Mapping[int, int] | None = None,
    ends: Mapping[int, int] | None = None,
    stored: StoredStates | None = None,
    attempt: int = 0,
) -> Iterator[NamedOutput]:
    """Read a log range, and yield the outputs of one observer for each state partition.

    Chunks may have records of several state partitions; the records of each are in log order.  `starts` and
    `ends` are log offsets at which the log of a state partition starts and ends, as far as known.
    """
    scans: dict[int, tuple[PartitionScan, Observer]] = {}

    def begin(state_partition: int) -> tuple[PartitionScan, Observer]:
        scan = PartitionScan(state_partition, starts, stored, attempt)
        return scan, make_observer(scan)

    if stored is not None:
        scans[stored.summary["state_partition"]] = begin(stored.summary["state_partition"])
    for records in chunks:
        number = records.state_partition
        if number not in scans:
            scans[number] = begin(number)
        scan, observer = scans[number]
        observer.process(scan.process_records(records))
    for number, (scan, observer) in scans.items():
        scan.process_end((ends or {}).get(number))
        yield from scan.outputs()
        yield from observer.outputs()


class StateFold:
    """Folds the records of a scan to states; several chunks of records are folded at a time.

    `convert` converts records to rows, and `fold_rows` folds rows that follow the rows of `states`.
    """

    def __init__(
        self,
        scan: PartitionScan,
        states: StateRows | None = None,
        convert: Callable[[DecodedRecords], StateRows] = rows_from_records,
        fold_rows: Callable[[StateRows], StateRows] = fold,
    ) -> None:
        self._scan = scan
        self._convert = convert
        self._fold_rows = fold_rows
        self._waiting = [scan.folded if states is None else states]
        self._waiting_rows = 0

    def add(self, decoded: DecodedRecords) -> None:
        """Add the next records."""
        if len(decoded):
            self._waiting.append(self._convert(decoded))
            self._waiting_rows += len(decoded)
            if self._waiting_rows >= _WAITING_MAX + 2 * len(self._scan.names):
                self.result()

    def result(self) -> StateRows:
        """Return rows of the states after the added records, including those of deleted share-partitions."""
        if self._waiting_rows:
            folded = self._fold_rows(concatenate_rows(self._waiting))
            self._waiting, self._waiting_rows = [folded], 0
        return self._waiting[0]

    def to_arrow(self) -> pa.RecordBatch:
        """Return the states as rows of `STATES`."""
        return states_to_arrow(self.result(), self._scan.names, self._scan.state_partition)
