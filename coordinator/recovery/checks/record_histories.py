"""Summarise the records of share-partitions in a log range, and merge the summaries of adjacent ranges.

A history is a list of entries: *resets* (a snapshot, a tombstone, an unreadable record), and *runs*, each a
sequence of updates without a reset.  The records from one reset to the next are a generation. A generation is
checked when both resets are known, and is then dropped. So at most four entries of a range remain::

    records   u u S u u u S u S u u          u update, S snapshot
    entries   [run] [S]   ...   [S] [run]    first and last reset, the run before and the run after

The histories of two adjacent ranges are concatenated, checked, and shortened to at most four entries. Only
pairs of entries from different ranges are compared. A single record is the shortest history. So one function
handles chunks of a range, ranges of a state partition, and owner epochs (`range_audit`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from coordinator.recovery.decode import DecodedRecords, RecordKind
from coordinator.recovery.fold import fold
from coordinator.recovery.partials import (
    Name,
    PartialStates,
    concatenate_partials,
    partials_from_arrow,
    partials_from_records,
)
from coordinator.recovery.records import Bools, Ints, column_to_ints
from coordinator.recovery.schema import NONE, PARTIALS

HISTORIES_OUTPUT = "histories"

# The kinds of entries. A run of updates has the number of `RecordKind.UPDATE`.
SNAPSHOT, RUN, TOMBSTONE, UNREADABLE = (int(kind) for kind in RecordKind)

# The integer fields of an entry. A field `first_...` or `last_...` comes from the first or last record of the
# run that has a value for it. `start_said` is the start offset of the very first record, or -1.
STEPS: Final = (
    *("kind", "first_at", "first_ms", "last_at", "updates", "ours"),
    *("snapshot_epoch_first", "snapshot_epoch_last", "state_epoch"),
    *("leader_first", "leader_first_at", "leader_first_ms", "leader_last"),
    *("start_said", "start_first", "start_first_at", "start_first_ms", "start_last"),
    *("complete_first", "complete_last"),
    # Complete counts of the first record of a run that has a start offset, and of the record before it.
    *("complete_at_start", "complete_before_start"),
    # Hash of an update's content; 0 if the update has no state batches.
    *("digest_first", "digest_last"),
    # Whether InitializeShareGroupState may have written the snapshot; whether it is a cold snapshot.
    *("is_bare", "is_cold"),
    # 1 if the records between this reset and the entry before it were checked and dropped.
    "behind_gap",
    # Log offset of the last known tombstone up to this entry; -1 if there is none.
    "deleted_at",
)

HISTORIES = pa.schema([*PARTIALS, *(pa.field(f"step_{name}", pa.int64(), nullable=False) for name in STEPS)])

_NO_NAME: Name = (0, b"")


@dataclass(slots=True)
class Histories:
    """Entries of many share-partitions; the entries of one share-partition are in log order.

    Each entry has a row in `steps` and in `folded`, and its `key` is an index of `identities`.  Entries with
    equal `source` were compared before, and are not compared again.  `folded` is the partial state of an
    entry's records (see `coordinator.recovery.fold`).
    """

    identities: list[bytes]
    key: Ints
    steps: dict[str, Ints]
    source: Ints
    folded: PartialStates

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, name: str) -> Ints:
        return self.steps[name]

    @property
    def is_reset(self) -> Bools:
        """Which entries are resets."""
        found: Bools = self.steps["kind"] != RUN
        return found

    def previous_rows(self, wanted: Bools) -> Ints:
        """Return for each entry the row of the last wanted entry before it in its share-partition, or -1."""
        rows = np.arange(len(self))
        seen = np.maximum.accumulate(np.where(wanted, rows, NONE)) if len(self) else rows
        before = np.append(NONE, seen[:-1])[: len(self)]
        known = before >= 0
        known[known] = self.key[before[known]] == self.key[known]
        return np.where(known, before, NONE)

    def take(self, wanted: Bools | Ints) -> "Histories":
        """Return the selected entries, in the given order."""
        return Histories(
            self.identities,
            self.key[wanted],
            {name: column[wanted] for name, column in self.steps.items()},
            self.source[wanted],
            self.folded.take(wanted),
        )

    def sorted(self) -> "Histories":
        """Return the entries ordered by share-partition and log offset."""
        return self.take(np.lexsort((self.steps["last_at"], self.key)))

    def to_arrow(self, *, range_start: int, owner_epoch: int, claimed: bool) -> pa.RecordBatch:
        """Return the entries of one range and owner epoch as rows of `HISTORIES`."""
        whose = {"range_start": range_start, "owner_epoch": owner_epoch, "claimed": int(claimed)}
        columns = {
            **self.folded.numbers,
            **{name: np.full(len(self), value, np.int64) for name, value in whose.items()},
        }
        state_partition = int(columns["state_partition"][0]) if len(self) else 0
        names = [(state_partition, identity) for identity in self.identities]
        named = PartialStates(
            *(names, self.key, columns, self.folded.batches, self.folded.loose_batches),
            self.folded.unreadable,
        )
        partials = named.to_arrow()
        steps = [pa.array(self.steps[name]) for name in STEPS]
        return pa.record_batch([*partials.columns, *steps], schema=HISTORIES)


def histories_from_arrow(rows: pa.Table) -> Histories:
    """Read rows of `HISTORIES` of one state partition; each range and owner epoch is one source."""
    rows = rows.combine_chunks()
    order = np.argsort(column_to_ints(rows.column("last_log_offset")), kind="stable")
    folded = partials_from_arrow(rows.select(PARTIALS.names))
    steps = {name: column_to_ints(rows.column(f"step_{name}"))[order] for name in STEPS}
    whose = np.stack([folded["range_start"], folded["owner_epoch"], folded["claimed"]])
    _, source = np.unique(whose, axis=1, return_inverse=True)
    identities = [identity for _, identity in folded.names]
    return Histories(identities, folded.key, steps, source.reshape(-1).astype(np.int64), folded)


def histories_from_records(
    decoded: DecodedRecords, wanted: Bools, key: Ints, identities: list[bytes], *, state_partition: int
) -> Histories:
    """Return the histories of the selected records. `key` has the index into `identities` for each record."""
    rows = decoded.take(wanted)
    key = key[wanted]
    kind = rows.kind
    snapshot, update = kind == SNAPSHOT, kind == RUN
    said = snapshot | update
    none = np.full(len(rows), NONE, np.int64)
    start = np.where(said, rows.start_offset, none)
    leader = np.where(said, rows.leader_epoch, none)
    complete = np.where(said, rows.delivery_complete_count, none)
    epoch = np.where(said, rows.snapshot_epoch, none)
    digest = np.where(update & (rows.batch_count > 0), _update_digests(rows), 0)
    at = rows.log_offset
    renewed = snapshot & (rows.create_timestamp != rows.write_timestamp)
    steps = {
        "kind": kind,
        "first_at": at,
        "first_ms": rows.timestamp_ms,
        "last_at": at,
        "updates": update.astype(np.int64),
        "ours": (rows.owner_epoch >= 0).astype(np.int64),
        "snapshot_epoch_first": epoch,
        "snapshot_epoch_last": epoch,
        "state_epoch": np.where(snapshot, rows.state_epoch, none),
        "leader_first": leader,
        "leader_first_at": at,
        "leader_first_ms": rows.timestamp_ms,
        "leader_last": leader,
        "start_said": start,
        "start_first": start,
        "start_first_at": at,
        "start_first_ms": rows.timestamp_ms,
        "start_last": start,
        "complete_first": complete,
        "complete_last": complete,
        "complete_at_start": complete,
        "complete_before_start": none,
        "digest_first": digest,
        "digest_last": digest,
        "is_bare": (snapshot & ~renewed & (leader == 0) & (rows.batch_count == 0)).astype(np.int64),
        "is_cold": renewed.astype(np.int64),
        "behind_gap": np.zeros(len(rows), np.int64),
        "deleted_at": np.where(kind == TOMBSTONE, at, NONE),
    }
    unclaimed = np.zeros(len(rows), np.bool_)
    folded = partials_from_records(
        rows, key, [], state_partition=state_partition, range_start=0, claimed=unclaimed
    )
    return Histories(identities, key, steps, np.arange(len(rows)), folded)


def _update_digests(rows: DecodedRecords) -> Ints:
    """Return a 64-bit hash of each update's content."""
    batches = rows.batches
    mixed = _hash_rows(
        batches.first_offset, batches.last_offset, batches.delivery_state, batches.delivery_count
    )
    total = np.zeros(len(rows), np.uint64)
    np.add.at(total, batches.row, mixed)
    said = _hash_rows(
        rows.start_offset, rows.leader_epoch, rows.snapshot_epoch, rows.delivery_complete_count, total
    )
    return (said | np.uint64(1)).astype(np.int64)


def _hash_rows(*columns: "np.typing.NDArray[Any]") -> "np.typing.NDArray[np.uint64]":
    """Return a 64-bit hash of each row (the finaliser of SplitMix64, once for each column)."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found = found + column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found = found ^ (found >> np.uint64(31))
    return found


def concatenate_histories(parts: Sequence[Histories]) -> Histories:
    """Concatenate histories with equal `identities`.

    In the result, each of the given histories is one source.
    """
    return Histories(
        parts[0].identities,
        np.concatenate([part.key for part in parts]),
        {name: np.concatenate([part.steps[name] for part in parts]) for name in STEPS},
        np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        concatenate_partials([part.folded for part in parts]),
    )


def fold_groups(rows: PartialStates, group: Ints, groups: int) -> PartialStates:
    """Fold the rows of each group into one row; `group` has the number of each row's group."""
    nothing = np.zeros(len(rows), np.int64)
    columns = {**rows.numbers, "owner_epoch": nothing + NONE, "claimed": nothing}
    grouped = PartialStates(
        [_NO_NAME] * groups, group, columns, rows.batches, rows.loose_batches, rows.unreadable
    )
    return fold(grouped)


def merge_runs(histories: Histories) -> Histories:
    """Merge adjacent runs of a share-partition into one run; the entries must be sorted."""
    rows = len(histories)
    goes_on = np.zeros(rows, np.bool_)
    is_normalised = histories["kind"] == RUN
    goes_on[1:] = is_normalised[1:] & is_normalised[:-1] & (histories.key[1:] == histories.key[:-1])
    entry = np.cumsum(~goes_on) - 1
    entries = int(entry[-1]) + 1 if rows else 0
    folded = fold_groups(histories.folded, entry, entries) if rows else histories.folded
    if entries == rows:
        return Histories(histories.identities, histories.key, histories.steps, histories.source, folded)
    first = np.flatnonzero(~goes_on)
    last = np.append(first[1:], rows) - 1
    steps = {name: column[first] for name, column in histories.steps.items()}
    for name in ("last_at", "snapshot_epoch_last", "complete_last", "digest_last"):
        steps[name] = histories[name][last]
    steps["updates"] = np.add.reduceat(histories["updates"], first)
    for name in ("start", "leader"):
        begins, ends = _first_and_last_rows(entry, entries, histories[f"{name}_first"] != NONE)
        for column in (f"{name}_first", f"{name}_first_at", f"{name}_first_ms"):
            steps[column] = np.where(begins >= 0, histories[column][begins], steps[column])
        steps[f"{name}_last"] = np.where(ends >= 0, histories[f"{name}_last"][ends], steps[f"{name}_last"])
        if name == "start":
            steps["complete_at_start"] = histories["complete_at_start"][begins]
            # If the record is the first of its run, the record before it is the last of the previous run.
            from_before = (begins > first) & (histories["start_said"][begins] != NONE)
            before = np.where(
                from_before,
                histories["complete_last"][begins - 1],
                histories["complete_before_start"][begins],
            )
            steps["complete_before_start"] = np.where(begins >= 0, before, NONE)
    return Histories(histories.identities, histories.key[first], steps, histories.source[first], folded)


def _first_and_last_rows(entry: Ints, entries: int, wanted: Bools) -> tuple[Ints, Ints]:
    """Return the first and the last wanted row of each merged entry; -1 if it has none."""
    rows = np.flatnonzero(wanted)
    first, last = np.full(entries, NONE, np.int64), np.full(entries, NONE, np.int64)
    first[entry[rows[::-1]]] = rows[::-1]
    last[entry[rows]] = rows
    return first, last


def drop_inner_entries(histories: Histories) -> Histories:
    """Keep of each history the first and last reset, the run before them and the run after them."""
    reset = histories.is_reset
    has_reset_before = histories.previous_rows(reset) >= 0
    key = histories.key
    is_last = np.append(key[1:] != key[:-1], True)[: len(key)]
    # A run is followed by a reset or by nothing, so the last reset is the last entry or the one before it.
    run_is_last = np.append(is_last[1:] & ~reset[1:] & (key[1:] == key[:-1]), False)[: len(key)]
    last_reset = reset & (is_last | run_is_last)
    kept = np.where(reset, ~has_reset_before | last_reset, ~has_reset_before | is_last)
    gap = np.where(last_reset & has_reset_before, 1, histories["behind_gap"])
    deleted_at = histories["deleted_at"]
    before = histories.previous_rows(deleted_at != NONE)
    deleted_at = np.where((deleted_at == NONE) & (before >= 0), deleted_at[before], deleted_at)
    steps = {**histories.steps, "behind_gap": gap, "deleted_at": deleted_at}
    found = Histories(histories.identities, key, steps, histories.source, histories.folded)
    return found if kept.all() else found.take(kept)
