"""Fold the records of a state partition to states with NumPy, as `coordinator.shard.state.apply_record` does.

A row has the effect of one record of a share-partition, or of all its earlier records (a state). The states
after a chunk of the log are the fold of the rows of the states before it and of its records::

    states = fold(concatenate(states, rows_from_records(chunk)))

The merge of state batches takes the maximum for each offset (`batch_overlay`), so their order does not
matter. A shard removes the offsets of a state batch below each start offset that is written with the state
batch or later. The last start offset is usually the greatest start offset. With brokers of Kafka 4.3 and
older, the start offset may decrease.

Property tests compare folded states with a shard's states, for all divisions of a log into chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coordinator.recovery.batch_overlay import (
    LOWEST_OFFSET,
    overlay_batches,
    remove_offsets_below,
    renumber_rows,
)
from coordinator.recovery.decode import NO_BATCHES, DecodedRecords, RecordKind, StateBatches
from coordinator.recovery.records import Bools, Ints, column_to_ints
from coordinator.recovery.schema import NONE, STATE_BATCH, STATES
from coordinator.recovery.share_partitions import identity_columns, row_identity
from coordinator.shard.batches import NO_START_OFFSET
from coordinator.shard.state import NO_LEADER_EPOCH, RECORD_OVERHEAD_BYTES
from protocol.state_batches import BATCH_BYTES

# The effect of a row on the state before it.
CONTINUES = 0  # an update, or an unreadable record: continues the state
REPLACES = 1  # a snapshot or a folded state: replaces the state, except for the greatest leader epoch
FORGETS = 2  # a tombstone, or a deleted share-partition: deletes the state

# The columns of a row, except its state batches. `needed_from` is the log offset of the latest snapshot, or
# of the first record after a deletion. `start_offset_max` is the greatest start offset since the latest
# snapshot.
NUMBERS = (
    *("last_log_offset", "needed_from", "effect", "snapshot_epoch", "state_epoch", "leader_epoch"),
    *("leader_epoch_max", "start_offset", "start_offset_max", "delivery_complete_count"),
    *("create_timestamp", "write_timestamp", "last_write_ms", "records", "updates", "update_bytes"),
)


class StoredStates(NamedTuple):
    """The states of a state partition at a log offset, as rows of `CHECKPOINTED_STATES`.

    `summary` is the row of `RANGES` up to that log offset. After that log offset, records with the owner
    epoch `owner_epoch` are valid.
    `damages` has the fields of each damage before it.
    """

    states: pa.Table
    owner_epoch: int
    summary: dict[str, Any]
    damages: Sequence[Sequence[Any]] = ()


@dataclass(slots=True)
class StateRows:
    """Rows of share-partitions; the rows of one share-partition are in log order.

    `key` is the number of the share-partition. `numbers` has the columns `NUMBERS`; in an audit, also columns
    for the checks. The state batches of a folded row are merged; the state batches of a record may overlap
    and have any order.
    """

    key: Ints
    numbers: dict[str, Ints]
    batches: StateBatches
    unreadable: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, name: str) -> Ints:
        return self.numbers[name]

    def take(self, wanted: Bools | Ints) -> "StateRows":
        """Return the selected rows, in the given order."""
        if wanted.dtype == np.bool_:
            if wanted.all():
                return self
            wanted = np.flatnonzero(wanted)
        new_row = np.full(len(self), NONE, np.int64)
        new_row[wanted] = np.arange(len(wanted))
        return StateRows(
            self.key[wanted],
            {name: column[wanted] for name, column in self.numbers.items()},
            renumber_rows(self.batches, new_row),
            {int(new_row[row]): why for row, why in self.unreadable.items() if new_row[row] >= 0},
        )


def empty_rows(names: Sequence[str] = NUMBERS) -> StateRows:
    """Return an empty `StateRows` with these columns."""
    nothing = np.zeros(0, np.int64)
    return StateRows(nothing, dict.fromkeys(names, nothing), NO_BATCHES)


def concatenate_rows(parts: Sequence[StateRows]) -> StateRows:
    """Concatenate rows with the same columns."""
    if len(parts) == 1:
        return parts[0]
    begins = np.cumsum([0, *map(len, parts)]).tolist()[:-1]
    return StateRows(
        np.concatenate([part.key for part in parts]),
        {name: np.concatenate([part.numbers[name] for part in parts]) for name in parts[0].numbers},
        StateBatches.join(
            *(
                part.batches._replace(row=part.batches.row + begin)
                for part, begin in zip(parts, begins, strict=True)
            )
        ),
        {
            row + begin: why
            for part, begin in zip(parts, begins, strict=True)
            for row, why in part.unreadable.items()
        },
    )


def batch_floors(start_offset: Ints) -> Ints:
    """Return start offsets as floors; an unknown one (-1) becomes `LOWEST_OFFSET`, which removes no batch."""
    return np.where(start_offset == NO_START_OFFSET, LOWEST_OFFSET, start_offset)


def rows_from_records(decoded: DecodedRecords) -> StateRows:
    """Return one row for each record, with the record's `key`."""
    rows = len(decoded)
    kind = decoded.kind
    snapshot, update, tombstone = (
        kind == each for each in (RecordKind.SNAPSHOT, RecordKind.UPDATE, RecordKind.TOMBSTONE)
    )
    is_state = snapshot | update
    leader_epoch_max = np.maximum(np.where(is_state, decoded.leader_epoch, 0), 0)
    floor = batch_floors(decoded.start_offset)
    numbers = {
        "last_log_offset": decoded.log_offset,
        "needed_from": decoded.log_offset,
        "effect": np.select([snapshot, tombstone], [REPLACES, FORGETS], CONTINUES),
        "snapshot_epoch": np.where(is_state, decoded.snapshot_epoch, 0),
        "state_epoch": np.where(snapshot, decoded.state_epoch, 0),
        # In an update, -1 means that the leader epoch is unchanged; in a snapshot, it means that the leader
        # epoch is -1.
        "leader_epoch": np.where(is_state, decoded.leader_epoch, NO_LEADER_EPOCH),
        "leader_epoch_max": np.maximum(leader_epoch_max, np.where(snapshot, decoded.leader_epoch_max, 0)),
        "start_offset": np.where(is_state, decoded.start_offset, NO_START_OFFSET),
        "start_offset_max": np.where(is_state, floor, LOWEST_OFFSET),
        "delivery_complete_count": np.where(is_state, decoded.delivery_complete_count, NONE),
        "create_timestamp": np.where(snapshot, decoded.create_timestamp, 0),
        "write_timestamp": np.where(snapshot, decoded.write_timestamp, 0),
        "last_write_ms": np.where(tombstone, 0, decoded.timestamp_ms),
        "records": np.ones(rows, np.int64),
        "updates": update.astype(np.int64),
        "update_bytes": np.where(update, RECORD_OVERHEAD_BYTES + BATCH_BYTES * decoded.batch_count, 0),
    }
    batches = remove_offsets_below(decoded.batches, floor[decoded.batches.row])
    return StateRows(decoded.key, numbers, batches, dict(decoded.unreadable))


def fold(rows: StateRows, group: Ints | None = None) -> StateRows:
    """Fold the rows of each share-partition, or of each number in `group`, in the order of the rows.

    `group` has a number for each row; rows of one share-partition with equal numbers are folded to one row.
    The result is ordered by these numbers, without those that no row has. The function takes O(n log n) time
    for n remaining state batches, and O(n) time for n rows.
    """
    if not len(rows):
        return rows
    of_row = rows.key if group is None else group
    present = np.zeros(int(of_row.max()) + 1, np.bool_)
    present[of_row] = True
    number = np.cumsum(present) - 1
    return _GroupFold(rows, number[of_row], int(number[-1]) + 1).result()


class _GroupFold:
    """Folds rows with equal numbers in `group` to one row each (not share groups)."""

    def __init__(self, rows: StateRows, group: Ints, groups: int) -> None:
        self.rows = rows
        self.group = group
        self.groups = groups
        effect = rows["effect"]
        replaced_at = self._last_rows(np.flatnonzero(effect != CONTINUES))
        self.forgotten_at = self._last_rows(np.flatnonzero(effect == FORGETS))
        row = np.arange(len(rows))
        # Whether a row is at or after the last snapshot or tombstone of its group of rows, and no tombstone.
        self.made_of: Bools = (row >= replaced_at[group]) & (effect != FORGETS)
        self.survivors = np.flatnonzero(self.made_of)

    def _last_rows(self, rows: Ints) -> Ints:
        """Return for each group of rows the index of its last row among `rows`; -1 if it has none."""
        last = np.full(self.groups, -1, np.int64)
        last[self.group[rows]] = rows
        return last

    def _pick_values(self, name: str, picked: Ints, otherwise: int) -> Ints:
        column = self.rows[name]
        return np.where(picked >= 0, column[picked], otherwise)

    def _sum_values(self, name: str, rows: Ints) -> Ints:
        total = np.zeros(self.groups, np.int64)
        np.add.at(total, self.group[rows], self.rows[name][rows])
        return total

    def _maximum_by_group(self, name: str, rows: Ints, least: int) -> Ints:
        greatest = np.full(self.groups, least, np.int64)
        np.maximum.at(greatest, self.group[rows], self.rows[name][rows])
        return greatest

    def result(self) -> StateRows:
        """Return one folded row for each group of rows."""
        rows, survivors = self.rows, self.survivors
        everything = np.arange(len(rows))
        last = self._last_rows(everything)
        base = self._last_rows(survivors[::-1])
        resets = rows["effect"][survivors] == REPLACES
        named_at = self._last_rows(survivors[resets | (rows["start_offset"][survivors] != NO_START_OFFSET)])
        led_at = self._last_rows(survivors[resets | (rows["leader_epoch"][survivors] != NO_LEADER_EPOCH)])
        counted_at = self._last_rows(survivors[resets | (rows["updates"][survivors] > 0)])
        since_deletion = np.flatnonzero(everything > self.forgotten_at[self.group])
        remembered = np.flatnonzero(everything >= self.forgotten_at[self.group])
        start_offset = self._pick_values("start_offset", named_at, NO_START_OFFSET)
        start_offset_max = self._maximum_by_group("start_offset_max", survivors, LOWEST_OFFSET)
        numbers = {
            **{name: column[last] for name, column in rows.numbers.items() if name not in NUMBERS},
            "last_log_offset": rows["last_log_offset"][last],
            "needed_from": self._pick_values("needed_from", np.where(base >= 0, base, last), NONE),
            "effect": np.where(base >= 0, REPLACES, FORGETS),
            "snapshot_epoch": self._pick_values("snapshot_epoch", base, 0),
            "state_epoch": self._pick_values("state_epoch", base, 0),
            # Without earlier state, the leader epoch is 0 until a record sets it.
            "leader_epoch": self._pick_values("leader_epoch", led_at, 0),
            "leader_epoch_max": self._maximum_by_group("leader_epoch_max", remembered, 0),
            "start_offset": start_offset,
            "start_offset_max": start_offset_max,
            "delivery_complete_count": self._pick_values("delivery_complete_count", counted_at, NONE),
            "create_timestamp": self._pick_values("create_timestamp", base, 0),
            "write_timestamp": self._pick_values("write_timestamp", base, 0),
            "last_write_ms": self._pick_values("last_write_ms", self._last_rows(survivors), 0),
            "records": self._sum_values("records", since_deletion),
            "updates": self._sum_values("updates", survivors),
            "update_bytes": self._sum_values("update_bytes", survivors),
        }
        unreadable = {
            int(self.group[row]): rows.unreadable[row] for row in sorted(rows.unreadable) if self.made_of[row]
        }
        batches = self._merge_batches(batch_floors(start_offset), start_offset_max)
        return StateRows(rows.key[last], numbers, batches, unreadable)

    def _merge_batches(self, floor: Ints, start_offset_max: Ints) -> StateBatches:
        """Remove offsets below the start offsets, and merge the state batches of each group of rows."""
        # The last start offset is usually the greatest start offset, and is then the floor of all batches.
        floors = floor[self.group]
        for group in np.flatnonzero(start_offset_max != floor).tolist():
            self._set_decreasing_floors(group, floors)
        batches = self.rows.batches
        if not self.made_of.all():
            batches = batches.take(self.made_of[batches.row])
        batches = remove_offsets_below(batches, floors[batches.row])
        return overlay_batches(batches._replace(row=self.group[batches.row]))

    def _set_decreasing_floors(self, group: int, floors: Ints) -> None:
        """Set the floor for the batches of each row of a group of rows whose start offset decreased.

        The floor of a row is the greatest of the last start offset up to the row and all later start offsets.
        """
        rows = self.rows
        members = self.survivors[self.group[self.survivors] == group]
        named = LOWEST_OFFSET
        for row in members.tolist():
            start_offset = int(rows["start_offset"][row])
            if start_offset != NO_START_OFFSET:
                named = start_offset
            elif rows["effect"][row] == REPLACES:
                named = LOWEST_OFFSET
            floors[row] = named
        later = LOWEST_OFFSET
        for row in members[::-1].tolist():
            floors[row] = max(int(floors[row]), later)
            later = max(later, int(rows["start_offset_max"][row]))


def existing_states(rows: StateRows) -> StateRows:
    """Return folded rows without deleted share-partitions."""
    return rows.take(rows["effect"] != FORGETS)


def states_to_arrow(rows: StateRows, names: Sequence[bytes], state_partition: int) -> pa.RecordBatch:
    """Return the existing states as rows of `STATES`; `names` maps keys to record keys without their type."""
    rows = existing_states(rows)
    special = {
        **identity_columns([names[number] for number in rows.key.tolist()]),
        "state_partition": pa.array(np.full(len(rows), state_partition, np.int32)),
        "state_batches": batches_column(rows.batches, len(rows)),
        "start_went_back": pa.array(rows["start_offset_max"] > batch_floors(rows["start_offset"])),
        "unreadable": pa.array([rows.unreadable.get(row) for row in range(len(rows))], pa.string()),
    }
    columns = [
        special[column.name] if column.name in special else pa.array(rows[column.name]).cast(column.type)
        for column in STATES
    ]
    return pa.record_batch(columns, schema=STATES)


def states_from_arrow(table: pa.Table) -> tuple[StateRows, list[bytes]]:
    """Read rows of `CHECKPOINTED_STATES` of one state partition; also return their identities."""
    lists = table.column("state_batches").combine_chunks()
    items = lists.flatten()
    batches = StateBatches(
        column_to_ints(pc.list_parent_indices(lists)),
        *(column_to_ints(items.field(column.name)) for column in STATE_BATCH),
    )
    numbers = {name: column_to_ints(table.column(name)) for name in NUMBERS if name != "effect"}
    numbers["effect"] = np.full(len(table), REPLACES, np.int64)
    reasons = enumerate(table.column("unreadable").to_pylist())
    names = [row_identity(row) for row in table.select(["group_id", "topic_id", "partition"]).to_pylist()]
    rows = StateRows(
        np.arange(len(table)), numbers, batches, {row: why for row, why in reasons if why is not None}
    )
    return rows, names


def batches_column(batches: StateBatches, rows: int) -> pa.Array:
    """Return an Arrow column with a list of state batches for each of `rows` rows."""
    offsets = np.zeros(rows + 1, np.int32)
    offsets[1:] = np.cumsum(np.bincount(batches.row, minlength=rows))
    items = pa.StructArray.from_arrays(
        [pa.array(getattr(batches, column.name)).cast(column.type) for column in STATE_BATCH],
        fields=list(STATE_BATCH),
    )
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=STATES.field("state_batches").type)
