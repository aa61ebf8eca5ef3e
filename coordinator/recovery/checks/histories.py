"""Check the records of each share-partition in log order: K1 to K14.

Many records are checked at a time. The first row of a share-partition may be its state after all earlier
records, with the values of the last one; all other rows are records.

A tombstone, a snapshot and an unreadable record are *resets*; the updates between two resets are a *run*.
Check K8 finds lost progress: a snapshot must contain the state before it. The snapshot may contain more state
batches, because the write that caused the snapshot had batches, too. No write causes a cold snapshot, so a
cold snapshot must be equal to the state before it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coordinator.recovery.batch_overlay import packed_batches_by_row, remove_offsets_below
from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Findings, RowFindings
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.decode import DecodedRecords, RecordKind, StateBatches
from coordinator.recovery.records import Bools, Ints
from coordinator.recovery.schema import NONE
from coordinator.recovery.states import (
    CONTINUES,
    NUMBERS,
    StateRows,
    batch_floors,
    empty_rows,
    fold,
    rows_from_records,
)
from protocol.state_batches import unpack

_C, _W, _I = Severity.CRITICAL, Severity.WARNING, Severity.INFO

SNAPSHOT, UPDATE, TOMBSTONE, UNREADABLE = (int(kind) for kind in RecordKind)

# Columns of a row, in addition to the columns of a state. A row that is a state has the values of its last
# record, and:
_COLUMNS = (
    *("is_record", "kind", "timestamp_ms", "epoch", "complete", "digest", "is_bare", "is_cold", "ours"),
    # the last start offset and leader epoch since the last reset, -1 if no record has them;
    *("start", "leader"),
    # the kind of the last reset (-1 before the first reset), the number of updates since it, and the log
    # offset and time of the first of these updates;
    *("reset_kind", "run_updates", "run_at", "run_ms"),
    # log offset and time of the first record; log offset of the last tombstone, -1 if there is none.
    *("first_at", "first_ms", "deleted_at"),
)


def rows_to_check(decoded: DecodedRecords) -> StateRows:
    """Return one row for each decoded record, with the columns that the checks need."""
    rows = rows_from_records(decoded)
    kind, at = decoded.kind, decoded.log_offset
    snapshot, update = kind == SNAPSHOT, kind == UPDATE
    has_state = snapshot | update
    none = np.full(len(rows), NONE, np.int64)
    leader = np.where(has_state, decoded.leader_epoch, none)
    cold = snapshot & (decoded.create_timestamp != decoded.write_timestamp)
    rows.numbers |= {
        "is_record": np.ones(len(rows), np.int64),
        "kind": kind,
        "timestamp_ms": decoded.timestamp_ms,
        "epoch": np.where(has_state, decoded.snapshot_epoch, none),
        "complete": np.where(has_state, decoded.delivery_complete_count, none),
        # A hash of an update's content; 0 if the update has no state batches.
        "digest": np.where(update & (decoded.batch_count > 0), _update_digests(decoded), 0),
        # InitializeShareGroupState may have written the snapshot.
        "is_bare": (snapshot & ~cold & (leader == 0) & (decoded.batch_count == 0)).astype(np.int64),
        "is_cold": cold.astype(np.int64),
        # Whether this project's coordinator wrote the record.
        "ours": (decoded.owner_epoch >= 0).astype(np.int64),
        "start": np.where(has_state, decoded.start_offset, none),
        "leader": leader,
        **dict.fromkeys(("reset_kind", "run_at", "run_ms", "deleted_at"), none),
        "run_updates": np.zeros(len(rows), np.int64),
        "first_at": at,
        "first_ms": decoded.timestamp_ms,
    }
    return rows


def make_empty_rows_to_check() -> StateRows:
    """Return an empty `StateRows` with the columns of `rows_to_check`."""
    return empty_rows((*NUMBERS, *_COLUMNS))


def _update_digests(decoded: DecodedRecords) -> Ints:
    """Return a 64-bit hash of each update's content."""
    batches = decoded.batches
    mixed = _hash_rows(
        batches.first_offset, batches.last_offset, batches.delivery_state, batches.delivery_count
    )
    counts = np.bincount(batches.row, minlength=len(decoded))
    ends, sums = np.cumsum(counts), np.append(np.uint64(0), np.cumsum(mixed))
    total = sums[ends] - sums[ends - counts]
    digest = _hash_rows(
        decoded.start_offset,
        decoded.leader_epoch,
        decoded.snapshot_epoch,
        decoded.delivery_complete_count,
        total,
    )
    return (digest | np.uint64(1)).astype(np.int64)


def _hash_rows(*columns: "np.typing.NDArray[Any]") -> "np.typing.NDArray[np.uint64]":
    """Return a 64-bit hash of each row."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found += column.view(np.uint64)
        found *= np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(32)
    return found


class _RowsByKey:
    """Rows in the order of their keys; a column is sorted when it is first used."""

    def __init__(self, unsorted: StateRows) -> None:
        self.unsorted = unsorted
        # NumPy sorts 16-bit numbers in linear time.
        key = unsorted.key.astype(np.uint16) if int(unsorted.key.max()) < 1 << 16 else unsorted.key
        self.order = np.argsort(key, kind="stable")
        self.key = unsorted.key[self.order]
        self._sorted: dict[str, Ints] = {}

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, name: str) -> Ints:
        if name not in self._sorted:
            self._sorted[name] = self.unsorted[name][self.order]
        return self._sorted[name]


class HistoryCheck:
    """Checks the records of each share-partition of a state partition whose log starts at `log_start`."""

    def __init__(self, names: Sequence[bytes], limits: Limits, log_start: int, found: Findings) -> None:
        self._names = names
        self._limits = limits
        self._log_start = log_start
        self._found = found

    def check(self, unsorted: StateRows) -> StateRows:
        """Check rows, and return the states after them.

        The first row of a share-partition may be its earlier state.
        """
        if not len(unsorted):
            return unsorted
        self._rows = rows = _RowsByKey(unsorted)
        self._offset, self._ms = rows["last_log_offset"], rows["timestamp_ms"]
        self._flag = RowFindings(self._found, rows.key, self._offset, self._ms, self._names).add
        # Whether the row before row i has the same share-partition.
        self._has_before = np.append(False, rows.key[1:] == rows.key[:-1])
        self._before = np.arange(-1, len(rows) - 1)
        self._record = rows["is_record"] != 0
        self._reset = self._record & (rows["kind"] != UPDATE)
        self._update = self._record & (rows["kind"] == UPDATE)
        self._sets_start = ~self._record | self._reset | (rows["start"] != NONE)
        self._sets_leader = ~self._record | self._reset | (rows["leader"] != NONE)
        self._count_updates_since_reset()
        self._check_adjacent_records()
        self._check_update_runs()
        return self._fold_to_states(self._check_snapshots())

    def check_end(self, rows: StateRows) -> None:
        """Check the states after the last record for missing snapshots (K1) and too many updates (K9)."""
        ends = RowFindings(self._found, rows.key, rows["last_log_offset"], rows["timestamp_ms"], self._names)
        self._flag = ends.add
        updates = rows["run_updates"]
        run = (rows["run_at"], rows["run_ms"])
        never = (rows["reset_kind"] == NONE) & (updates > 0)
        self._flag("K1", _C, never, lambda row: f"{updates[row]} updates and no snapshot", *run)
        self._flag_long_update_runs(updates > self._limits.updates_max + 1, updates, *run)

    def _latest_row(self, wanted: Bools) -> Ints:
        """Return for each row the last wanted row of its share-partition up to this row, or -1."""
        rows = np.arange(len(wanted))
        seen = np.maximum.accumulate(np.where(wanted, rows, NONE))
        return np.where((seen >= 0) & (self._rows.key[seen] == self._rows.key), seen, NONE)

    def _previous_row(self, wanted: Bools) -> Ints:
        """Return for each row the last wanted row of its share-partition before this row, or -1."""
        return np.where(self._has_before, self._latest_row(wanted)[self._before], NONE)

    def _column_at_rows(self, name: str, rows: Ints) -> Ints:
        """Return the values of a column at these row indexes; -1 for index -1."""
        return np.where(rows >= 0, self._rows[name][rows], NONE)

    def _count_updates_since_reset(self) -> None:
        """Count the updates from the last reset up to each row, and locate the first of these updates."""
        rows = self._rows
        weight = np.where(self._record, self._update, rows["run_updates"])
        total = np.cumsum(weight)
        begin = self._latest_row(self._reset | ~self._has_before)
        self._run_updates = total - total[begin] + weight[begin]
        goes_on = self._has_before & (rows["kind"][self._before] == UPDATE)
        begins = self._update & ~goes_on
        first = self._latest_row(begins | ~self._record)
        own = (first >= 0) & begins[first]
        self._run_at = np.where(own, self._offset[first], self._column_at_rows("run_at", first))
        self._run_ms = np.where(own, self._ms[first], self._column_at_rows("run_ms", first))
        reset = self._latest_row(self._reset | ~self._record)
        # The record kind of the last reset up to each row.
        self._reset_kind = np.where(
            (reset >= 0) & self._record[reset],
            self._column_at_rows("kind", reset),
            self._column_at_rows("reset_kind", reset),
        )

    def _check_adjacent_records(self) -> None:
        rows, before, flag = self._rows, self._before, self._flag
        kind, epoch = rows["kind"], rows["epoch"]
        kind_before = np.where(self._has_before, kind[before], NONE)
        deleted = self._record & (kind_before == TOMBSTONE)
        flag("K10", _C, deleted & self._update, lambda row: "the record before it is a tombstone")
        flag("K11", _I, deleted & (kind == TOMBSTONE), lambda row: "a tombstone after a tombstone")
        if not self._log_start:
            first = self._record & ~self._has_before & (kind == TOMBSTONE)
            flag("K11", _I, first, lambda row: "the log has no record before it")
        recreated = deleted & (kind == SNAPSHOT) & (epoch != 0) & (rows["is_cold"] == 0)
        flag("K4", _W, recreated, lambda row: f"snapshot epoch {epoch[row]} after a tombstone")
        known = (kind_before == UPDATE) | (kind_before == SNAPSHOT)
        self._check_updates(self._update & known)
        leader, leader_before = (
            rows["leader"],
            self._column_at_rows("leader", self._previous_row(self._sets_leader)),
        )
        back = self._record & (leader != NONE) & (leader_before != NONE) & (leader < leader_before)
        back &= rows["is_bare"] == 0
        flag("K6", _W, back, lambda row: f"leader epoch {leader[row]} after {leader_before[row]}")

    def _check_updates(self, update: Bools) -> None:
        """Check the updates that directly follow an update or a snapshot."""
        rows, before, flag = self._rows, self._before, self._flag
        epoch, epoch_before = rows["epoch"], rows["epoch"][before]

        def format_epochs(row: int) -> str:
            return f"snapshot epoch {epoch[row]} after {epoch_before[row]}"

        flag("K2", _C, update & (epoch > epoch_before), format_epochs)
        flag("K2", _W, update & (epoch < epoch_before), format_epochs)
        digest = rows["digest"]
        again = update & (digest != 0) & (digest == digest[before])
        flag("K12", _W, again, lambda row: "the same as the record before it")
        complete, complete_before = rows["complete"], rows["complete"][before]

        def format_counts(row: int) -> str:
            return f"complete count {complete[row]} after {complete_before[row]}"

        flag("K14", _W, update & (complete == NONE) & (complete_before >= 0), format_counts)
        start, start_before = (
            rows["start"],
            self._column_at_rows("start", self._previous_row(self._sets_start)),
        )
        stays = (start == NONE) | (start == start_before)
        back = update & stays & (complete >= 0) & (complete < complete_before)
        flag("K13", _W, back, lambda row: f"{format_counts(row)}, and the start offset stays")
        back = self._update & (start != NONE) & (start_before != NONE) & (start < start_before)
        self._flag_decreasing_start_offsets(
            back, lambda row: f"start offset {start[row]} after {start_before[row]}"
        )

    def _flag_decreasing_start_offsets(self, back: Bools, evidence: Callable[[int], str]) -> None:
        ours = self._rows["ours"] != 0
        self._flag("K7", _C, back & ours, evidence)
        self._flag("K7", _W, back & ~ours, evidence)

    def _check_update_runs(self) -> None:
        """Check the runs of updates that a reset ends for missing snapshots (K1b) and length (K9)."""
        before = self._before
        updates = self._run_updates[before]
        run = (self._run_at[before], self._run_ms[before])
        ends = self._reset & self._has_before & (updates > 0)
        never = ends & (self._reset_kind[before] == NONE)
        self._flag("K1b", _I, never, lambda row: f"{updates[row]} updates", *run)
        self._flag_long_update_runs(ends & (updates > self._limits.updates_max + 1), updates, *run)

    def _flag_long_update_runs(self, wrong: Bools, updates: Ints, at: Ints, ms: Ints) -> None:
        self._flag("K9", _W, wrong, lambda row: f"{updates[row]} updates without a snapshot", at, ms)

    def _check_snapshots(self) -> Ints:
        """Compare each snapshot with the one before it: epochs (K3, K5), start offset (K7), counts (K13).

        A snapshot after another kind of reset is not compared. Return the row indexes of the snapshots that
        must contain the state before them (check K8).
        """
        rows, before = self._rows, self._before
        base = self._previous_row(self._reset | ~self._record)
        snapshot = self._reset & self._has_before & (rows["kind"] == SNAPSHOT)
        snapshot &= self._reset_kind[before] == SNAPSHOT
        epoch, state_epoch = rows["snapshot_epoch"], rows["state_epoch"]
        # If a snapshot is missing, it was between this snapshot, which is complete, and the record before it.
        at = np.where(epoch > epoch[base], self._offset[before], self._offset)
        self._flag(
            *("K3", _C, snapshot & (epoch != epoch[base] + 1)),
            *(lambda row: f"snapshot epoch {epoch[row]} after {epoch[base[row]]}", at),
        )
        self._flag(
            *("K5", _C, snapshot & (state_epoch < state_epoch[base])),
            lambda row: f"state epoch {state_epoch[row]} after {state_epoch[base[row]]}",
        )
        goes_on = snapshot & (state_epoch <= state_epoch[base]) & (rows["is_bare"] == 0)
        start, complete, complete_before = rows["start"], rows["complete"], rows["complete"][before]
        start_before = self._column_at_rows("start", self._previous_row(self._sets_start))
        self._flag_decreasing_start_offsets(
            goes_on & (start < start_before) & (state_epoch == state_epoch[base]),
            lambda row: f"start offset {start[row]} of a snapshot after {start_before[row]}",
        )
        fewer = goes_on & (start == start_before) & (complete >= 0) & (complete < complete_before)
        self._flag(
            *("K13", _W, fewer),
            lambda row: (
                f"complete count {complete[row]} of a snapshot after {complete_before[row]}, and the "
                "start offset stays"
            ),
        )
        return np.flatnonzero(goes_on)

    def _check_lost_progress(self, before: StateRows, ends: Ints) -> None:
        """Check that the snapshots in the rows `ends` contain the states `before` them (check K8)."""
        rows = self._rows
        if not len(ends):
            return
        snapshots = rows.unsorted.take(rows.order[ends])
        floor = batch_floors(snapshots["start_offset"])
        known_batches = remove_offsets_below(before.batches, floor[before.batches.row])
        known, held, union = (
            packed_batches_by_row(batches, len(ends))
            for batches in (
                known_batches,
                snapshots.batches,
                StateBatches.join(known_batches, snapshots.batches),
            )
        )
        is_cold = (rows["is_cold"][ends] != 0).tolist()
        evidence: dict[int, str] = {}
        for row, earlier, after, both, cold in zip(ends.tolist(), known, held, union, is_cold, strict=True):
            if both != after:
                evidence[row] = f"{_format_first_missing_batch(both, after)} was known before it"
            elif cold and earlier != after:
                missing = _format_first_missing_batch(after, earlier)
                evidence[row] = f"{missing} is in it, but it should only renew what was known"
        self._flag("K8", _C, np.array(list(evidence), np.int64), evidence.__getitem__)

    def _fold_to_states(self, ends: Ints) -> StateRows:
        """Return one row for each share-partition, with the values that later checks need.

        Also call `_check_lost_progress` for the snapshots in the rows `ends`.
        """
        rows = self._rows
        deleted = self._latest_row((self._reset & (rows["kind"] == TOMBSTONE)) | ~self._record)
        own = (deleted >= 0) & self._record[deleted]
        first = self._latest_row(~self._has_before)
        numbers = {
            "start": self._column_at_rows("start", self._latest_row(self._sets_start)),
            "leader": self._column_at_rows("leader", self._latest_row(self._sets_leader)),
            "reset_kind": self._reset_kind,
            "run_updates": self._run_updates,
            "run_at": self._run_at,
            "run_ms": self._run_ms,
            "first_at": rows["first_at"][first],
            "first_ms": rows["first_ms"][first],
            "deleted_at": np.where(own, self._offset[deleted], self._column_at_rows("deleted_at", deleted)),
        }
        # Fold each snapshot, tombstone or first row of a share-partition with the updates after it.
        begins = (rows["effect"] != CONTINUES) | ~self._has_before
        of_row = np.cumsum(begins) - 1
        group = np.empty_like(of_row)
        group[rows.order] = of_row
        effects = fold(rows.unsorted, group)
        self._check_lost_progress(effects.take(of_row[ends - 1]), ends)
        folded = fold(effects)
        last = np.flatnonzero(np.append(rows.key[1:] != rows.key[:-1], True))
        folded.numbers |= {name: column[last] for name, column in numbers.items()}
        folded.numbers["is_record"] = np.zeros(len(folded), np.int64)
        return folded


def _format_first_missing_batch(run: bytes, other: bytes) -> str:
    """Format the first of the packed state batches in `run` that is not in `other`."""
    has = set(unpack(other))
    first, last, state, count = next(batch for batch in unpack(run) if batch not in has)
    return f"({first}-{last}, state {state}, count {count})"
