"""Fold records into partial states, and partial states of adjacent log ranges into one (associatively).

A partial state describes the effect of a log range on one share-partition.  It has the fields of the state
that the range makes without earlier records, and the values that are needed to join it with the range before:

* its *effect*: updates continue the state before the range; a snapshot replaces it, except for the greatest
  leader epoch; a tombstone deletes it;
* -1 as start offset or leader epoch, if the updates of the range do not set it;
* the greatest start offset in the range. A shard removes the offsets of a batch below each start offset that
  is written with the batch or later. The last start offset is usually the greatest one. With brokers of
  Kafka 4.3 and older, the start offset may decrease;
* separately, the *loose* batches: those written before the first start offset of the range. The start offset
  before the range still applies to them.

The merge of batches is a maximum (`batch_overlay`), so it does not depend on their order.  Property tests
compare this with `coordinator.shard.state.apply_record`, for all divisions of a log into ranges.
"""

import numpy as np

from coordinator.recovery.batch_overlay import (
    LOWEST_OFFSET,
    join_batches,
    overlay_batches,
    remove_offsets_below,
)
from coordinator.recovery.decode import StateBatches
from coordinator.recovery.partials import PartialStates, batch_floors
from coordinator.recovery.records import Bools, Ints
from coordinator.recovery.schema import CONTINUES, FORGETS, NONE, REPLACES
from coordinator.shard.batches import NO_START_OFFSET
from coordinator.shard.state import NO_LEADER_EPOCH


def fold(rows: PartialStates) -> PartialStates:
    """Join all partial states of each share-partition and owner epoch, in the order of their rows.

    Takes O(n log n) time for n remaining batches, and O(n) for n rows.
    """
    if not len(rows):
        return rows
    group, groups = _number_groups(rows)
    return _Fold(rows, group, groups).result()


def convert_to_states(rows: PartialStates) -> PartialStates:
    """Convert partial states that begin at the start of the log to states; drop deleted share-partitions.

    Each share-partition must have one row.
    """
    continues = rows["effect"] == CONTINUES
    numbers = dict(rows.numbers)
    numbers["effect"] = np.where(continues, FORGETS, rows["effect"])
    unsaid = continues & (rows["leader_epoch"] == NO_LEADER_EPOCH)
    numbers["leader_epoch"] = np.where(unsaid, 0, rows["leader_epoch"])
    found = PartialStates(
        rows.names, rows.key, numbers, rows.batches, rows.loose_batches, rows.unreadable
    ).take(rows["exists"] != 0)
    # No start offset precedes the loose batches, so they are merged with the others.
    return fold(found) if len(found.loose_batches.row) else found


def _number_groups(rows: PartialStates) -> tuple[Ints, int]:
    """Number the pairs of share-partition and owner epoch from 0; return each row's number and the count."""
    owner, claimed = rows["owner_epoch"], rows["claimed"]
    classes, of_class = 1, np.int64(0)
    if not ((owner == owner[0]).all() and (claimed == claimed[0]).all()):
        pairs, inverse = np.unique(owner * 2 + claimed, return_inverse=True)
        classes, of_class = len(pairs), inverse
    combined = rows.key * classes + of_class
    present = np.zeros(len(rows.names) * classes, np.bool_)
    present[combined] = True
    number = np.cumsum(present) - 1
    return number[combined], int(number[-1]) + 1


class _Fold:
    """One fold; `group` has the number of each row's share-partition and owner epoch."""

    def __init__(self, rows: PartialStates, group: Ints, groups: int) -> None:
        self.rows = rows
        self.group = group
        self.groups = groups
        effect = rows["effect"]
        self.replaced_at = self._last_rows(np.flatnonzero(effect != CONTINUES))
        self.forgotten_at = self._last_rows(np.flatnonzero(effect == FORGETS))
        row = np.arange(len(rows))
        # The rows from the last snapshot or tombstone of their group on, without tombstones.
        self.made_of: Bools = (row >= self.replaced_at[group]) & (rows["exists"] != 0)
        self.survivors = np.flatnonzero(self.made_of)

    def _last_rows(self, rows: Ints) -> Ints:
        """Return for each group the last of the given rows; -1 if it has none."""
        last = np.full(self.groups, -1, np.int64)
        last[self.group[rows]] = rows
        return last

    def _first_rows(self, rows: Ints) -> Ints:
        """Return for each group the first of the given rows; -1 if it has none."""
        return self._last_rows(rows[::-1])

    def _pick_values(self, name: str, picked: Ints, otherwise: int) -> Ints:
        column = self.rows[name]
        return np.where(picked >= 0, column[picked], otherwise)

    def _sum_values(self, name: str, rows: Ints) -> Ints:
        total = np.zeros(self.groups, np.int64)
        np.add.at(total, self.group[rows], self.rows[name][rows])
        return total

    def _greatest_values(self, name: str, rows: Ints, least: int) -> Ints:
        greatest = np.full(self.groups, least, np.int64)
        np.maximum.at(greatest, self.group[rows], self.rows[name][rows])
        return greatest

    def result(self) -> PartialStates:
        """Return one partial state for each group."""
        rows, survivors = self.rows, self.survivors
        everything = np.arange(len(rows))
        last, first = self._last_rows(everything), self._first_rows(everything)
        base = self._first_rows(survivors)
        resets = rows["effect"][survivors] != CONTINUES
        self.start_named_at = self._last_rows(
            survivors[resets | (rows["start_offset"][survivors] != NO_START_OFFSET)]
        )
        led_at = self._last_rows(survivors[resets | (rows["leader_epoch"][survivors] != NO_LEADER_EPOCH)])
        counted_at = self._last_rows(survivors[resets | (rows["updates"][survivors] > 0)])
        remembered = np.flatnonzero(everything >= self.forgotten_at[self.group])
        effect = np.where(self.replaced_at >= 0, REPLACES, CONTINUES)
        effect[self.forgotten_at >= 0] = FORGETS
        start_offset = self._pick_values("start_offset", self.start_named_at, NO_START_OFFSET)
        start_offset_max = self._greatest_values("start_offset_max", survivors, LOWEST_OFFSET)
        numbers = {
            "state_partition": rows["state_partition"][last],
            "range_start": rows["range_start"][first],
            "owner_epoch": rows["owner_epoch"][last],
            "claimed": rows["claimed"][last],
            "last_log_offset": rows["last_log_offset"][last],
            "needed_from": self._pick_values("needed_from", np.where(base >= 0, base, last), NONE),
            "effect": effect,
            "exists": (base >= 0).astype(np.int64),
            "snapshot_epoch": self._pick_values("snapshot_epoch", base, 0),
            "state_epoch": self._pick_values("state_epoch", base, 0),
            # If there is no earlier state, the leader epoch is 0 until a record sets it.
            "leader_epoch": np.where(
                (led_at < 0) & (effect == FORGETS),
                0,
                self._pick_values("leader_epoch", led_at, NO_LEADER_EPOCH),
            ),
            "leader_epoch_max": self._greatest_values("leader_epoch_max", remembered, 0),
            "start_offset": start_offset,
            "start_offset_max": start_offset_max,
            "delivery_complete_count": self._pick_values("delivery_complete_count", counted_at, NONE),
            "create_timestamp": self._pick_values("create_timestamp", base, 0),
            "write_timestamp": self._pick_values("write_timestamp", base, 0),
            "last_write_ms": self._pick_values("last_write_ms", self._last_rows(survivors), 0),
            "records": self._sum_values("records", everything),
            "updates": self._sum_values("updates", survivors),
            "update_bytes": self._sum_values("update_bytes", survivors),
        }
        self.effect, self.floor = effect, batch_floors(start_offset)
        self.went_back = np.flatnonzero(start_offset_max > self.floor)
        batches, loose_batches = self._batches()
        unreadable = {
            int(self.group[row]): rows.unreadable[row] for row in sorted(rows.unreadable) if self.made_of[row]
        }
        return PartialStates(rows.names, rows.key[last], numbers, batches, loose_batches, unreadable)

    def _batches(self) -> tuple[StateBatches, StateBatches]:
        """Remove offsets below the start offsets, and merge batches; return anchored and loose batches.

        Anchored batches are all batches that are not loose.
        """
        rows = self.rows
        first_named_at = self._first_rows(
            self.survivors[
                (rows["effect"][self.survivors] != CONTINUES)
                | (rows["start_offset"][self.survivors] != NO_START_OFFSET)
            ]
        )
        # The last start offset is usually the greatest, and then applies to all batches.
        floor = self.floor[self.group]
        loose_floor = floor
        if len(self.went_back):
            floor, loose_floor = floor.copy(), floor.copy()
            for group in self.went_back.tolist():
                self._set_decreasing_floors(group, floor, loose_floor)
        anchored = self._clip_batches(rows.batches, floor)
        loose = self._clip_batches(rows.loose_batches, loose_floor)
        if len(loose.row):
            named = first_named_at[self.group[loose.row]]
            stays = self.effect[self.group[loose.row]] == CONTINUES
            stays &= (named < 0) | (loose.row <= named)
            anchored = join_batches(anchored, loose.take(~stays))
            loose = loose.take(stays)
        return self._merge_batches(anchored), self._merge_batches(loose)

    def _clip_batches(self, batches: StateBatches, floor: Ints) -> StateBatches:
        batches = batches.take(self.made_of[batches.row]) if not self.made_of.all() else batches
        return remove_offsets_below(batches, floor[batches.row])

    def _merge_batches(self, batches: StateBatches) -> StateBatches:
        return overlay_batches(batches._replace(row=self.group[batches.row]))

    def _set_decreasing_floors(self, group: int, floor: Ints, loose_floor: Ints) -> None:
        """Set the floor for the batches of each row of a group whose start offset decreased.

        The start offsets of all later rows apply to anchored batches; the start offset of their own row was
        applied before. The last start offset before loose batches also applies to them.
        """
        rows = self.rows
        members = self.survivors[self.group[self.survivors] == group]
        cut = LOWEST_OFFSET
        for row in members[::-1].tolist():
            floor[row] = cut
            cut = max(cut, int(rows["start_offset_max"][row]))
        named = LOWEST_OFFSET
        for row in members.tolist():
            loose_floor[row] = max(int(floor[row]), named)
            start_offset = int(rows["start_offset"][row])
            if rows["effect"][row] != CONTINUES or start_offset != NO_START_OFFSET:
                named = LOWEST_OFFSET if start_offset == NO_START_OFFSET else start_offset
