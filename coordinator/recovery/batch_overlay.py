"""Merge the state batches of many share-partitions with NumPy; equivalent to `coordinator.shard.batches`.

Each offset gets the greatest (delivery count, delivery state) of the batches that cover it. Adjacent batches
with equal values are then merged.  The result does not depend on the order of the batches.
"""

import numpy as np

from coordinator.recovery.decode import NO_BATCHES, StateBatches
from coordinator.recovery.records import Ints
from coordinator.shard.batches import NO_START_OFFSET, merge_batches
from protocol.state_batches import StateBatch

# Overlapping batches are split at each offset where another batch begins or ends. If batches have on average
# more pieces than this limit, `merge_batches` is faster.
_PIECES_MAX = 64

_STATES = 256
_NOTHING = np.iinfo(np.int64).min

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
    apart = _concatenate(batches.take(~entangled), swept)
    return _merge_adjacent_batches(apart.take(np.lexsort((apart.first_offset, apart.row))))


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
    """Split batches where others begin or end, and keep for each piece the greatest value that covers it."""
    # Of batches with equal offsets, keep only the one with the greatest (delivery count, delivery state).
    weight = batches.delivery_count * _STATES + batches.delivery_state
    order = np.lexsort((weight, batches.last_offset, batches.first_offset, batches.row))
    batches, weight = batches.take(order), weight[order]
    same = (
        (batches.row[1:] == batches.row[:-1])
        & (batches.first_offset[1:] == batches.first_offset[:-1])
        & (batches.last_offset[1:] == batches.last_offset[:-1])
    )
    kept = np.append(~same, True)
    batches, weight = batches.take(kept), weight[kept]
    # Edges are the offsets at which batches of a row are split: last offsets, and the offsets before first
    # offsets.  The offset after a last offset is not used, because it may exceed int64.
    edge_row = np.concatenate([batches.row, batches.row])
    edge = np.concatenate([batches.first_offset - 1, batches.last_offset])
    order = np.lexsort((edge, edge_row))
    edge_row, edge = edge_row[order], edge[order]
    new = np.append(True, (edge_row[1:] != edge_row[:-1]) | (edge[1:] != edge[:-1]))
    place_of_edge = np.empty(len(order), np.int64)
    place_of_edge[order] = np.cumsum(new) - 1
    edge_row, edge = edge_row[new], edge[new]
    begin, end = place_of_edge[: len(batches.row)], place_of_edge[len(batches.row) :]
    pieces = end - begin
    if int(pieces.sum()) > _PIECES_MAX * len(pieces) or int(batches.first_offset.min()) == LOWEST_OFFSET:
        return _overlay_row_by_row(batches)
    # Piece i begins at the offset after edge i, and ends at edge i + 1.
    piece = np.repeat(begin - np.cumsum(pieces) + pieces, pieces) + np.arange(int(pieces.sum()))
    greatest = np.full(len(edge), _NOTHING, np.int64)
    np.maximum.at(greatest, piece, np.repeat(weight, pieces))
    covered = np.flatnonzero(greatest != _NOTHING)
    weight = greatest[covered]
    state = (weight + _STATES // 2) % _STATES - _STATES // 2
    return StateBatches(
        edge_row[covered], edge[covered] + 1, edge[covered + 1], state, (weight - state) // _STATES
    )


def _overlay_row_by_row(batches: StateBatches) -> StateBatches:
    """Resolve overlaps row by row with `merge_batches`."""
    found: list[StateBatches] = []
    edges = np.flatnonzero(np.diff(batches.row)) + 1
    for part in zip(*(np.split(column, edges) for column in batches), strict=True):
        row, *columns = part
        run = merge_batches(
            (StateBatch(*batch) for batch in zip(*(column.tolist() for column in columns), strict=True)),
            NO_START_OFFSET,
        )
        if run:
            made = np.array(run, np.int64)
            found.append(StateBatches(np.full(len(run), row[0], np.int64), *made.T))
    return _concatenate(*found)


def _concatenate(*parts: StateBatches) -> StateBatches:
    return StateBatches(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def join_batches(*parts: StateBatches) -> StateBatches:
    """Concatenate batches."""
    filled = [part for part in parts if len(part.row)]
    return _concatenate(*filled) if filled else NO_BATCHES


def renumber_rows(batches: StateBatches, new_row: Ints) -> StateBatches:
    """Return the batches with new row numbers; drop batches whose row has no new number (-1)."""
    found = batches._replace(row=new_row[batches.row])
    kept = found.row >= 0
    return found if kept.all() else found.take(kept)
