"""Histories of share-partitions, in a form that joins: what a stretch of the log is for its neighbours.

A history is a list of entries: *resets* (a snapshot, a tombstone, a record that cannot be read) and *runs* of
updates between them.  What lies between two resets, a generation, is checked as soon as both are known, and
then forgotten, so of any stretch there remain at most four entries::

    records   u u S u u u S u S u u          u update, S snapshot
    entries   [run] [S]   ...   [S] [run]    first and last reset, and the runs outside of them

Two such histories that follow each other are one list, which is checked and shortened in the same way: only
pairs of entries that have not met before are looked at.  A single record is the shortest history, so chunks
of a range, ranges of a state partition, and ownerships all go through the one function `examine`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from coordinator.recovery.decode import Decoded, Kind
from coordinator.recovery.fold import fold
from coordinator.recovery.partials import Name, Partials, concatenated, partials_from_arrow, partials_of
from coordinator.recovery.records import Bools, Ints, numbers
from coordinator.recovery.schema import NONE, PARTIALS

HISTORIES_OUTPUT = "histories"

# An update has its own number among the kinds of records; a run of updates has the same.
SNAPSHOT, RUN, TOMBSTONE, UNREADABLE = (int(kind) for kind in Kind)

# Of an entry, each a number.  `first` and `last` are those of the first and last record of a run that has a
# number there at all, but for `start_said`, which is what the very first one has, or -1.
STEPS: Final = (
    *("kind", "first_at", "first_ms", "last_at", "updates", "ours"),
    *("snapshot_epoch_first", "snapshot_epoch_last", "state_epoch"),
    *("leader_first", "leader_first_at", "leader_first_ms", "leader_last"),
    *("start_said", "start_first", "start_first_at", "start_first_ms", "start_last"),
    *("complete_first", "complete_last"),
    # Of the first record of a run that has a start offset, and of the record of the run before it.
    *("complete_at_start", "complete_before_start"),
    # Of what an update says; 0 if it has no batches.
    *("digest_first", "digest_last"),
    # Of a snapshot: whether it is as an initialise writes it, or as the job that renews old snapshots does.
    *("is_bare", "is_cold"),
    # 1 if what lies between this reset and the entry before it has been checked and forgotten.
    "behind_gap",
    # Of the last tombstone up to it that is known, -1 if there is none.
    "deleted_at",
)

HISTORIES = pa.schema([*PARTIALS, *(pa.field(f"step_{name}", pa.int64(), nullable=False) for name in STEPS)])

_NO_NAME: Name = (0, b"")


@dataclass(slots=True)
class Histories:
    """Entries of many share-partitions, those of one in log order; a row each in `steps` and in `folded`.

    `key` indexes `identities`.  `source` tells which entries were together before: they are not compared
    again.  `folded` are the states that the entries make from nothing (see `coordinator.recovery.fold`).
    """

    identities: list[bytes]
    key: Ints
    steps: dict[str, Ints]
    source: Ints
    folded: Partials

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, name: str) -> Ints:
        return self.steps[name]

    @property
    def is_reset(self) -> Bools:
        """Which entries are resets."""
        found: Bools = self.steps["kind"] != RUN
        return found

    def previous(self, wanted: Bools) -> Ints:
        """Return, for each entry, the last wanted one before it of the same share-partition, or -1."""
        rows = np.arange(len(self))
        seen = np.maximum.accumulate(np.where(wanted, rows, NONE)) if len(self) else rows
        before = np.append(NONE, seen[:-1])[: len(self)]
        known = before >= 0
        known[known] = self.key[before[known]] == self.key[known]
        return np.where(known, before, NONE)

    def take(self, wanted: Bools | Ints) -> "Histories":
        """Return some of the entries, which may be given in another order."""
        return Histories(
            self.identities,
            self.key[wanted],
            {name: column[wanted] for name, column in self.steps.items()},
            self.source[wanted],
            self.folded.take(wanted),
        )

    def sorted(self) -> "Histories":
        """Return the entries by share-partition, in log order."""
        return self.take(np.lexsort((self.steps["last_at"], self.key)))

    def to_arrow(self, *, range_start: int, owner_epoch: int, claimed: bool) -> pa.RecordBatch:
        """Return the rows of `HISTORIES`, for entries of one range and ownership."""
        whose = {"range_start": range_start, "owner_epoch": owner_epoch, "claimed": int(claimed)}
        columns = {
            **self.folded.numbers,
            **{name: np.full(len(self), value, np.int64) for name, value in whose.items()},
        }
        state_partition = int(columns["state_partition"][0]) if len(self) else 0
        names = [(state_partition, identity) for identity in self.identities]
        named = Partials(
            *(names, self.key, columns, self.folded.batches, self.folded.loose_batches),
            self.folded.unreadable,
        )
        partials = named.to_arrow()
        steps = [pa.array(self.steps[name]) for name in STEPS]
        return pa.record_batch([*partials.columns, *steps], schema=HISTORIES)


def histories_from_arrow(rows: pa.Table) -> Histories:
    """Read rows of `HISTORIES` of one state partition; the source is the range and ownership."""
    rows = rows.combine_chunks()
    order = np.argsort(numbers(rows.column("last_log_offset")), kind="stable")
    folded = partials_from_arrow(rows.select(PARTIALS.names))
    steps = {name: numbers(rows.column(f"step_{name}"))[order] for name in STEPS}
    whose = np.stack([folded["range_start"], folded["owner_epoch"], folded["claimed"]])
    _, source = np.unique(whose, axis=1, return_inverse=True)
    identities = [identity for _, identity in folded.names]
    return Histories(identities, folded.key, steps, source.reshape(-1).astype(np.int64), folded)


def histories_of(
    decoded: Decoded, wanted: Bools, key: Ints, identities: list[bytes], *, state_partition: int
) -> Histories:
    """Make an entry of each wanted record; `key` numbers the share-partitions of all of them."""
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
    digest = np.where(update & (rows.batch_count > 0), _digests(rows), 0)
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
    folded = partials_of(rows, key, [], state_partition=state_partition, range_start=0, claimed=unclaimed)
    return Histories(identities, key, steps, np.arange(len(rows)), folded)


def _digests(rows: Decoded) -> Ints:
    """Return a number for what each update says: equal ones have the same."""
    batches = rows.batches
    mixed = _mixed(batches.first_offset, batches.last_offset, batches.delivery_state, batches.delivery_count)
    total = np.zeros(len(rows), np.uint64)
    np.add.at(total, batches.row, mixed)
    said = _mixed(
        rows.start_offset, rows.leader_epoch, rows.snapshot_epoch, rows.delivery_complete_count, total
    )
    return (said | np.uint64(1)).astype(np.int64)


def _mixed(*columns: "np.typing.NDArray[Any]") -> "np.typing.NDArray[np.uint64]":
    """Mix numbers to one of 64 bits (the finaliser of SplitMix64, once for each column)."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found = found + column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found = found ^ (found >> np.uint64(31))
    return found


def concatenated_histories(parts: Sequence[Histories]) -> Histories:
    """Put histories behind one another; they share their identities. Each is one source."""
    return Histories(
        parts[0].identities,
        np.concatenate([part.key for part in parts]),
        {name: np.concatenate([part.steps[name] for part in parts]) for name in STEPS},
        np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        concatenated([part.folded for part in parts]),
    )


def folded_as(rows: Partials, group: Ints, groups: int) -> Partials:
    """Fold rows to one of each group, in the order of the groups; each group has a row."""
    nothing = np.zeros(len(rows), np.int64)
    columns = {**rows.numbers, "owner_epoch": nothing + NONE, "claimed": nothing}
    grouped = Partials([_NO_NAME] * groups, group, columns, rows.batches, rows.loose_batches, rows.unreadable)
    return fold(grouped)


def merged_runs(histories: Histories) -> Histories:
    """Make one run of runs that follow each other; the entries must be sorted."""
    rows = len(histories)
    goes_on = np.zeros(rows, np.bool_)
    is_normalised = histories["kind"] == RUN
    goes_on[1:] = is_normalised[1:] & is_normalised[:-1] & (histories.key[1:] == histories.key[:-1])
    entry = np.cumsum(~goes_on) - 1
    entries = int(entry[-1]) + 1 if rows else 0
    folded = folded_as(histories.folded, entry, entries) if rows else histories.folded
    if entries == rows:
        return Histories(histories.identities, histories.key, histories.steps, histories.source, folded)
    first = np.flatnonzero(~goes_on)
    last = np.append(first[1:], rows) - 1
    steps = {name: column[first] for name, column in histories.steps.items()}
    for name in ("last_at", "snapshot_epoch_last", "complete_last", "digest_last"):
        steps[name] = histories[name][last]
    steps["updates"] = np.add.reduceat(histories["updates"], first)
    for name in ("start", "leader"):
        begins, ends = _outermost(entry, entries, histories[f"{name}_first"] != NONE)
        for column in (f"{name}_first", f"{name}_first_at", f"{name}_first_ms"):
            steps[column] = np.where(begins >= 0, histories[column][begins], steps[column])
        steps[f"{name}_last"] = np.where(ends >= 0, histories[f"{name}_last"][ends], steps[f"{name}_last"])
        if name == "start":
            steps["complete_at_start"] = histories["complete_at_start"][begins]
            # If the record is the first of a run, the record before it is the last of the run before that.
            from_before = (begins > first) & (histories["start_said"][begins] != NONE)
            before = np.where(
                from_before,
                histories["complete_last"][begins - 1],
                histories["complete_before_start"][begins],
            )
            steps["complete_before_start"] = np.where(begins >= 0, before, NONE)
    return Histories(histories.identities, histories.key[first], steps, histories.source[first], folded)


def _outermost(entry: Ints, entries: int, wanted: Bools) -> tuple[Ints, Ints]:
    """Return the first and the last wanted row of each entry, -1 where there is none."""
    rows = np.flatnonzero(wanted)
    first, last = np.full(entries, NONE, np.int64), np.full(entries, NONE, np.int64)
    first[entry[rows[::-1]]] = rows[::-1]
    last[entry[rows]] = rows
    return first, last


def shortened(histories: Histories) -> Histories:
    """Leave of each history the first and the last reset, and the runs outside of them."""
    reset = histories.is_reset
    has_reset_before = histories.previous(reset) >= 0
    key = histories.key
    is_last = np.append(key[1:] != key[:-1], True)[: len(key)]
    # A run is followed by a reset or by nothing, so the last reset is the last entry or the one before it.
    run_is_last = np.append(is_last[1:] & ~reset[1:] & (key[1:] == key[:-1]), False)[: len(key)]
    last_reset = reset & (is_last | run_is_last)
    kept = np.where(reset, ~has_reset_before | last_reset, ~has_reset_before | is_last)
    gap = np.where(last_reset & has_reset_before, 1, histories["behind_gap"])
    deleted_at = histories["deleted_at"]
    before = histories.previous(deleted_at != NONE)
    deleted_at = np.where((deleted_at == NONE) & (before >= 0), deleted_at[before], deleted_at)
    steps = {**histories.steps, "behind_gap": gap, "deleted_at": deleted_at}
    found = Histories(histories.identities, key, steps, histories.source, histories.folded)
    return found if kept.all() else found.take(kept)
