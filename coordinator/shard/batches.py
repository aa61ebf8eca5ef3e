"""Merge state batches: the rule for delivery progress.

Rule: *each offset at or above the start offset keeps the greatest (delivery count, delivery state) that
covers it; adjacent batches with equal values merge.*  The result is a maximum.  Therefore the order of
writes does not matter, and a repeated write changes nothing.

*Normalised* batches are ascending and disjoint, and adjacent equal batches are merged. States, responses and
the log contain them in the same wire form (`protocol.state_batches`, 20 bytes each), so they are only copied.
`combine` and `normalise` create them, in a single pass for the usual input: ascending batches above the
current ones. `merge_batches` defines the rule and handles every other input.

Source of the rule: PersisterStateBatchCombiner of Kafka 4.4; KIP-932.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from struct import Struct

from protocol.state_batches import BATCH_BYTES, StateBatch, pack, unpack

# The start offset of a state that has none yet; no batch is clipped.
NO_START_OFFSET = -1
_LOWEST_OFFSET = -(2**63)

_BATCH = Struct(">qqbhx")
_RANGE = Struct(">qq")


def combine(current: bytes, written: bytes, start_offset: int) -> bytes:
    """Merge written batches into current batches and clip the result at the start offset.

    Where batches overlap, the higher delivery count wins, then the higher delivery state::

        current       0 ────────────── 9     available, count 1
        written             4 ── 5           acknowledged, count 1
        start_offset     2
        result           2─3│4 ── 5│6 ─ 9

    `current` must be normalised; its start offset may be lower. The batches in `written` may be unordered and
    may overlap, but none may end before it begins.
    """
    current = clip(current, start_offset)
    written = normalise(written, start_offset)
    if not written:
        return current
    if not current:
        return written
    last = _BATCH.unpack_from(current, len(current) - BATCH_BYTES)
    first = _BATCH.unpack_from(written, 0)
    if last[1] < first[0]:
        if last[1] + 1 == first[0] and last[2:] == first[2:]:
            joined = _BATCH.pack(last[0], first[1], last[2], last[3])
            return current[:-BATCH_BYTES] + joined + written[BATCH_BYTES:]
        return current + written
    # A retried write is already part of the current batches.
    if current.find(written) % BATCH_BYTES == 0:
        return current
    return _merge_overlapping(current, written, start_offset)


def _merge_overlapping(current: bytes, written: bytes, start_offset: int) -> bytes:
    """Merge written batches into current batches of which only some overlap them; both are normalised.

    Current batches that end before the first written offset, or begin after the last one, are copied.
    `merge_batches` merges the other current batches, and one adjacent batch on each side, which may have the
    same values.
    """
    lowest = _BATCH.unpack_from(written, 0)[0]
    highest = _BATCH.unpack_from(written, len(written) - BATCH_BYTES)[1]
    count = len(current) // BATCH_BYTES
    begin = max(first_batch_index(current, lowest) - 1, 0)
    end = min(first_batch_index(current, highest) + 2, count)
    head, middle_part, tail = (
        current[: begin * BATCH_BYTES],
        current[begin * BATCH_BYTES : end * BATCH_BYTES],
        current[end * BATCH_BYTES :],
    )
    return head + pack(merge_batches((*unpack(middle_part), *unpack(written)), start_offset)) + tail


def clip(batches: bytes, start_offset: int) -> bytes:
    """Remove all offsets below the start offset from normalised batches; -1 removes nothing."""
    if not batches or start_offset == NO_START_OFFSET:
        return batches
    if _RANGE.unpack_from(batches, 0)[0] >= start_offset:
        return batches
    kept = first_batch_index(batches, start_offset)
    batches = batches[kept * BATCH_BYTES :]
    if batches:
        first, last, state, count = _BATCH.unpack_from(batches, 0)
        if first < start_offset:
            return _BATCH.pack(start_offset, last, state, count) + batches[BATCH_BYTES:]
    return bytes(batches)


def normalise(written: bytes, start_offset: int) -> bytes:
    """Return batches from a client as ascending, disjoint batches, merged and clipped at the start offset.

    A single pass handles ascending batches, merged or one per offset as share consumers send them.
    `merge_batches` handles every other input.
    """
    if not written:
        return b""
    floor = _lowest_offset(start_offset)
    merged: list[bytes] = []
    batches = _BATCH.iter_unpack(written)
    first, last, state, count = next(batches)
    if last < first:
        return pack(merge_batches(unpack(written), start_offset))
    for next_first, next_last, next_state, next_count in batches:
        if next_first == last + 1 and next_state == state and next_count == count and next_last > last:
            last = next_last
            continue
        if next_first <= last or next_last < next_first:
            return pack(merge_batches(unpack(written), start_offset))
        if last >= floor:
            merged.append(_BATCH.pack(max(first, floor), last, state, count))
        first, last, state, count = next_first, next_last, next_state, next_count
    if last >= floor:
        merged.append(_BATCH.pack(max(first, floor), last, state, count))
    return b"".join(merged)


def merge_batches(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Return normalised batches; each offset has its greatest (delivery count, delivery state).

    This function defines the rule and accepts any order and any overlap.  Batches that end before they begin
    are ignored: Kafka 4.3 and older could store them, but new writes with such a batch are refused earlier.
    The cost is O(n log n) for n batches.
    """
    floor = _lowest_offset(start_offset)
    waiting = sorted(
        (max(batch.first_offset, floor), batch)
        for batch in batches
        if batch.last_offset >= floor and batch.first_offset <= batch.last_offset
    )
    merged: list[StateBatch] = []
    covering: list[tuple[int, int, int]] = []  # (-count, -state, last_offset), the winner first
    next_batch = 0
    offset = floor

    # Sweep upwards.  Each iteration emits one range of offsets.  The range ends where its winning batch
    # ends or where another batch begins.
    while next_batch < len(waiting) or covering:
        if not covering:
            offset = waiting[next_batch][0]
        while next_batch < len(waiting) and waiting[next_batch][0] == offset:
            batch = waiting[next_batch][1]
            heappush(covering, (-batch.delivery_count, -batch.delivery_state, batch.last_offset))
            next_batch += 1
        count, state, last_offset = covering[0]
        if next_batch < len(waiting):
            last_offset = min(last_offset, waiting[next_batch][0] - 1)
        _append_merged(merged, StateBatch(offset, last_offset, -state, -count))
        offset = last_offset + 1
        while covering and covering[0][2] < offset:
            heappop(covering)
    return merged


def _append_merged(merged: list[StateBatch], batch: StateBatch) -> None:
    """Append a batch to normalised batches, or extend the last one if both are adjacent and equal."""
    assert batch.first_offset <= batch.last_offset
    if merged:
        last = merged[-1]
        assert last.last_offset < batch.first_offset
        if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
            merged[-1] = last._replace(last_offset=batch.last_offset)
            return
    merged.append(batch)


def find_inverted_batch(batches: bytes) -> StateBatch | None:
    """Return the first batch that ends before it begins, or None."""
    for first, last, state, count in _BATCH.iter_unpack(batches):
        if last < first:
            return StateBatch(first, last, state, count)
    return None


def _lowest_offset(start_offset: int) -> int:
    return _LOWEST_OFFSET if start_offset == NO_START_OFFSET else start_offset


def first_batch_index(batches: bytes, offset: int) -> int:
    """Return the index of the first of normalised batches that ends at or above a user-topic offset."""
    low, high = 0, len(batches) // BATCH_BYTES
    while low < high:
        middle = (low + high) // 2
        if _RANGE.unpack_from(batches, middle * BATCH_BYTES)[1] < offset:
            low = middle + 1
        else:
            high = middle
    return low
