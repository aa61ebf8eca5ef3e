"""Merge the state batches of many share-partitions with NumPy; equivalent to `coordinator.shard.batches`.

Each offset gets the greatest (delivery count, delivery state) of the batches that cover it. Adjacent batches
with equal values are then merged.  The result does not depend on the order of the batches.
"""

from itertools import pairwise

import numpy as np

from coordinator.fastpath import compiled
from coordinator.recovery.decode import NO_BATCHES, StateBatches
from coordinator.recovery.records import Ints
from coordinator.shard.batches import NO_START_OFFSET, normalise
from protocol.state_batches import BATCH_BYTES

# The floor of a share-partition without a start offset; no offset is below it.
LOWEST_OFFSET = int(np.iinfo(np.int64).min)


def overlay_batches(batches: StateBatches) -> StateBatches:
    """Merge the batches with equal `row` into sorted, non-overlapping batches.

    Batches whose last offset is below their first offset are dropped.
    """
    batches = batches.take(batches.first_offset <= batches.last_offset)
    if not len(batches.row):
        return NO_BATCHES
    batches = batches.take(np.lexsort((batches.first_offset, batches.row)))
    overlaps = np.flatnonzero(
        (batches.row[1:] == batches.row[:-1]) & (batches.first_offset[1:] <= batches.last_offset[:-1])
    )
    if not len(overlaps):
        return _merge_adjacent_batches(batches)
    entangled = np.isin(batches.row, np.unique(batches.row[overlaps]))
    swept = _resolve_overlaps(batches.take(entangled))
    apart = StateBatches.join(batches.take(~entangled), swept)
    return _merge_adjacent_batches(apart.take(np.lexsort((apart.first_offset, apart.row))))


def merged_runs(batches: StateBatches, rows: int) -> list[bytes]:
    """Return the merged batches of each of `rows` rows in wire form."""
    merged = overlay_batches(batches)
    packed = merged.pack()
    ends = np.cumsum(np.bincount(merged.row, minlength=rows)) * BATCH_BYTES
    return [packed[begin:end] for begin, end in pairwise([0, *ends.tolist()])]


def remove_offsets_below(batches: StateBatches, floor: Ints) -> StateBatches:
    """Remove the offsets of each batch that are below its floor."""
    kept = batches.last_offset >= floor
    if not kept.all():
        batches, floor = batches.take(kept), floor[kept]
    return batches._replace(first_offset=np.maximum(batches.first_offset, floor))


def _merge_adjacent_batches(batches: StateBatches) -> StateBatches:
    """Merge adjacent batches with equal values; the input is sorted and does not overlap."""
    row, first, last, state, count = batches
    begins = np.ones(len(row), np.bool_)
    begins[1:] = (
        (row[1:] != row[:-1])
        | (first[1:] - 1 != last[:-1])
        | (state[1:] != state[:-1])
        | (count[1:] != count[:-1])
    )
    if begins.all():
        return batches
    ends = np.append(begins[1:], True)
    return StateBatches(row[begins], first[begins], last[ends], state[begins], count[begins])


def _resolve_overlaps(batches: StateBatches) -> StateBatches:
    """Merge the batches of each row as a write merges them."""
    packed, begins = batches.pack(), np.flatnonzero(np.diff(batches.row, prepend=-1))
    edges = (np.append(begins, len(batches.row)) * BATCH_BYTES).tolist()
    runs = [merge_run(packed[begin:end]) for begin, end in pairwise(edges)]
    row = np.repeat(batches.row[begins], [len(run) // BATCH_BYTES for run in runs])
    return StateBatches.unpack(row, b"".join(runs))


def merge_run(packed: bytes) -> bytes:
    """Merge batches in wire form."""
    if compiled is None:
        return normalise(packed, NO_START_OFFSET)
    run: bytes = compiled.merge_batches(b"", packed, NO_START_OFFSET)
    return run


def renumber_rows(batches: StateBatches, new_row: Ints) -> StateBatches:
    """Return the batches with new row numbers; drop batches whose row has no new number (-1)."""
    found = batches._replace(row=new_row[batches.row])
    kept = found.row >= 0
    return found if kept.all() else found.take(kept)
