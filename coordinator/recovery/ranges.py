"""Phase 1: read a range of the log in chunks, and fold it into partial states and a summary.

A process needs memory for one chunk and for the share-partitions in the range, not for all its records.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from coordinator.recovery.claim_filter import ClaimFilter
from coordinator.recovery.decode import DecodedRecords, decode
from coordinator.recovery.fold import fold
from coordinator.recovery.partials import Name, PartialStates, concatenate_partials, partials_from_records
from coordinator.recovery.records import Bools, Damage, Ints, Records
from coordinator.recovery.schema import DAMAGES, RANGES
from coordinator.recovery.tasks import NamedOutput

# The names of the outputs of phase 1.
RANGES_OUTPUT, PARTIALS_OUTPUT, DAMAGES_OUTPUT = "ranges", "partials", "damages"

# Rows that are collected before they are folded, so that folding takes little time compared with decoding.
_WAITING_MAX = 200_000


class ScannedRecords(NamedTuple):
    """The decoded records of a chunk, without records of fenced owner epochs.

    `claimed` is true for records whose owner epoch was claimed in this range (see `claim_filter`).
    """

    records: Records
    decoded: DecodedRecords
    claimed: Bools


class RangeScan:
    """Decodes the records of one state partition in one range, in log order, and summarises them."""

    def __init__(self, state_partition: int) -> None:
        self.state_partition = state_partition
        # The log offset of the first record, which identifies the range.
        self.range_start = 0
        self._range_end = 0
        self._claims = ClaimFilter()
        self._totals = dict.fromkeys(
            ("records", "batches", "bytes", "unknown", "undecodable", "unread", "folded", "damages"), 0
        )
        self._timestamps_ms: tuple[int, int] | None = None
        self.damages: list[Damage] = []

    def process_records(self, records: Records) -> ScannedRecords:
        """Process the next records, including those of control batches."""
        if len(records) and not self._totals["batches"]:
            self.range_start = int(records.log_offset[0])
        if len(records):
            self._range_end = int(records.log_offset[-1]) + 1
        used = np.zeros(len(records.batches.size_bytes), np.bool_)
        used[records.batch] = True
        records = records.data_records()
        decoded = decode(records)
        may_count, claimed = self._claims.filter_records(records, decoded)
        totals = self._totals
        totals["records"] += len(records)
        totals["unread"] += records.unread_bytes
        totals["damages"] += len(records.damages)
        self.damages += records.damages
        totals["batches"] += int(used.sum())
        totals["bytes"] += int(records.batches.size_bytes[used].sum())
        totals["unknown"] += len(decoded.unknown)
        totals["undecodable"] += len(decoded.undecodable)
        if len(records):
            least, greatest = int(records.timestamp_ms.min()), int(records.timestamp_ms.max())
            before = self._timestamps_ms or (least, greatest)
            self._timestamps_ms = (min(least, before[0]), max(greatest, before[1]))
        counting = decoded.take(may_count)
        totals["folded"] += len(counting)
        return ScannedRecords(records, counting, claimed[may_count])

    def outputs(self) -> Iterator[NamedOutput]:
        """Yield the summary of the range, and its damage, if any."""
        rows = pa.RecordBatch.from_pylist([self.summary()], RANGES)
        yield NamedOutput(RANGES_OUTPUT, self.state_partition, rows)
        if self.damages:
            damages = pa.RecordBatch.from_pylist([each._asdict() for each in self.damages], DAMAGES)
            yield NamedOutput(DAMAGES_OUTPUT, self.state_partition, damages)

    def summary(self) -> dict[str, int | bool]:
        """Return the summary of the range as a row of `RANGES`."""
        totals, claims = self._totals, self._claims
        least, greatest = self._timestamps_ms or (0, 0)
        return {
            "state_partition": self.state_partition,
            "range_start": self.range_start,
            "range_end": self._range_end,
            "records": totals["records"],
            "batches": totals["batches"],
            "bytes": totals["bytes"],
            "first_owner_epoch": claims.first_owner_epoch,
            "first_is_claim": claims.first_is_claim,
            "claimed_owner_epoch": claims.claimed_owner_epoch,
            "claims": claims.count,
            "unknown_records": totals["unknown"],
            "undecodable_records": totals["undecodable"],
            "timestamp_ms_min": least,
            "timestamp_ms_max": greatest,
            "unread_bytes": totals["unread"],
            "folded_records": totals["folded"],
            "damages": totals["damages"],
        }


class RangeFold:
    """Folds the records of one state partition in one range, after a `RangeScan` has decoded them."""

    def __init__(self, state_partition: int) -> None:
        self._state_partition = state_partition
        self.names: list[Name] = []
        self._numbers: dict[bytes, int] = {}
        self._waiting: list[PartialStates] = []
        self._waiting_rows = 0
        self._range_start: int | None = None

    def fold_records(self, scan: RangeScan, scanned: ScannedRecords) -> Ints:
        """Process the next records of the range; return the index in `names` of each record."""
        decoded = scanned.decoded
        if not len(decoded):
            return decoded.key
        if self._range_start is None:
            self._range_start = scan.range_start
        key = self._index_share_partitions(decoded.share_partitions)[decoded.key]
        self._waiting.append(
            partials_from_records(
                decoded,
                key,
                self.names,
                state_partition=self._state_partition,
                range_start=self._range_start,
                claimed=scanned.claimed,
            )
        )
        self._waiting_rows += len(decoded)
        if self._waiting_rows >= _WAITING_MAX + 2 * len(self.names):
            self._fold_pending_rows()
        return key

    def _index_share_partitions(self, share_partitions: list[bytes]) -> Ints:
        """Return the indexes of share-partitions in `names`; add new ones."""
        numbers = self._numbers
        found = np.empty(len(share_partitions), np.int64)
        for place, identity in enumerate(share_partitions):
            number = numbers.get(identity)
            if number is None:
                number = numbers[identity] = len(self.names)
                self.names.append((self._state_partition, identity))
            found[place] = number
        return found

    def _fold_pending_rows(self) -> None:
        folded = fold(concatenate_partials(self._waiting))
        self._waiting, self._waiting_rows = [folded], len(folded)

    def result(self) -> PartialStates | None:
        """Return one partial state for each share-partition and owner epoch; None if the range has none."""
        if not self._waiting:
            return None
        self._fold_pending_rows()
        return self._waiting[0]


def fold_range(chunks: Iterable[Records]) -> Iterator[NamedOutput]:
    """Fold the records of a range into the outputs `ranges` (rows of `RANGES`) and `partials` (`PARTIALS`).

    Chunks may have records of several state partitions; the records of each state partition are in log order.
    """
    scans: dict[int, RangeScan] = {}
    folds: dict[int, RangeFold] = {}
    for records in chunks:
        state_partition = records.state_partition
        if state_partition not in scans:
            scans[state_partition] = RangeScan(state_partition)
            folds[state_partition] = RangeFold(state_partition)
        scan = scans[state_partition]
        folds[state_partition].fold_records(scan, scan.process_records(records))
    for state_partition, scan in scans.items():
        yield from scan.outputs()
        folded = folds[state_partition].result()
        if folded is not None:
            yield NamedOutput(PARTIALS_OUTPUT, state_partition, folded.to_arrow())
