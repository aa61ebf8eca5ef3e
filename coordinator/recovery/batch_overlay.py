"""Merge the state batches of many share-partitions with NumPy; equivalent to `coordinator.shard.batches`.

Each offset gets the greatest (delivery count, delivery state) of the batches that cover it. Adjacent batches
with equal values are then merged.  The result does not depend on the order of the batches.
"""

from itertools import pairwise

import numpy as np

from coordinator.recovery.decode import NO_BATCHES, StateBatches
from coordinator.recovery.records import Ints
from protocol.state_batches import BATCH_BYTES

# The floor of a share-partition without a start offset; no offset is below it.
LOWEST_OFFSET = int(np.iinfo(np.int64).min)
HIGHEST_OFFSET = int(np.iinfo(np.int64).max)

# A delivery state is a signed byte.
_STATE_BITS, _STATE_LOWEST = 8, -128


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


def packed_batches_by_row(batches: StateBatches, rows: int) -> list[bytes]:
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
    """Return sorted batches without overlaps, in which adjacent batches may have equal values.

    The offsets of each row are divided into pieces, in which no batch begins or ends. The pieces of a batch
    are covered by two blocks of 2^k pieces, which may overlap. The greatest value of each block is applied to
    both halves of the block, largest blocks first. So n batches take O(n log n) time.
    """
    row, first, last, state, count = batches
    bounded = np.flatnonzero(last < HIGHEST_OFFSET)
    piece_row = np.concatenate([row, row[bounded]])
    piece_first = np.concatenate([first, last[bounded] + 1])
    order = np.lexsort((piece_first, piece_row))
    piece_row, piece_first = piece_row[order], piece_first[order]
    is_new = np.append(True, (piece_row[1:] != piece_row[:-1]) | (piece_first[1:] != piece_first[:-1]))
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_new) - 1
    piece_row, piece_first = piece_row[is_new], piece_first[is_new]
    begin, end = number[: len(row)], np.searchsorted(piece_row, row, "right")
    end[bounded] = number[len(row) :]
    value = (count << _STATE_BITS) + state - _STATE_LOWEST
    level = np.frexp(end - begin)[1] - 1
    greatest = np.full(len(piece_row), LOWEST_OFFSET, np.int64)
    for each in range(int(level.max()), -1, -1):
        block = 1 << each
        greatest[block:] = np.maximum(greatest[block:], greatest[:-block])
        members = np.flatnonzero(level == each)
        np.maximum.at(greatest, begin[members], value[members])
        np.maximum.at(greatest, end[members] - block, value[members])
    is_row_end = np.append(piece_row[1:] != piece_row[:-1], True)
    piece_last = np.where(is_row_end, HIGHEST_OFFSET, np.append(piece_first[1:], 0) - 1)
    state = (greatest & ((1 << _STATE_BITS) - 1)) + _STATE_LOWEST
    pieces = StateBatches(piece_row, piece_first, piece_last, state, greatest >> _STATE_BITS)
    return pieces.take(greatest != LOWEST_OFFSET)


def renumber_rows(batches: StateBatches, new_row: Ints) -> StateBatches:
    """Return the batches with new row numbers; drop batches whose row has no new number (-1)."""
    found = batches._replace(row=new_row[batches.row])
    kept = found.row >= 0
    return found if kept.all() else found.take(kept)
