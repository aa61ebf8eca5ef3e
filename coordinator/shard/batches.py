"""State batches laid over one another: the one rule of delivery progress.

The rule is one sentence: *every offset at or above the start offset keeps the greatest (delivery
count, delivery state) that covers it; equal neighbours merge.*  Because it is a maximum, the order of
writes does not matter and a repeated write changes nothing.

Batches travel and rest in wire form (`protocol.state_batches`: 20 bytes each, ascending, disjoint),
so that answers, snapshots and updates are copies.  Only `combine` and `normalise` make such runs.
Both look at a run once and handle what nearly all traffic is (ascending batches, laid behind the
last one that is there); `merge_batches` is the definition and takes whatever is left.

Source of the rule: PersisterStateBatchCombiner of Kafka 4.4; KIP-932.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from struct import Struct

from protocol.state_batches import BATCH_BYTES, StateBatch, pack, unpack

# A start offset of -1 means "not known yet": nothing is below it.
NO_START_OFFSET = -1
_LOWEST_OFFSET = -(2**63)

_ONE = Struct(">qqbhx")
_RANGE = Struct(">qq")


def combine(current: bytes, written: bytes, start_offset: int) -> bytes:
    """Lay written batches over current ones and cut off what lies below the start offset.

    Where batches overlap, the higher delivery count wins, then the higher delivery state::

        current       0 ────────────── 9     available, count 1
        written             4 ── 5           acknowledged, count 1
        start_offset     2
        result           2─3│4 ── 5│6 ─ 9

    `current` must be a run made by this module (possibly with a lower start offset); `written` may be
    in any order and overlap itself, but no batch in it may end before it begins.
    """
    current = clip(current, start_offset)
    written = normalise(written, start_offset)
    if not written:
        return current
    if not current:
        return written
    last = _ONE.unpack_from(current, len(current) - BATCH_BYTES)
    first = _ONE.unpack_from(written, 0)
    if last[1] < first[0]:
        if last[1] + 1 == first[0] and last[2:] == first[2:]:
            joined = _ONE.pack(last[0], first[1], last[2], last[3])
            return current[:-BATCH_BYTES] + joined + written[BATCH_BYTES:]
        return current + written
    # A write that was sent again finds itself already there.
    if current.find(written) % BATCH_BYTES == 0:
        return current
    return _merge_within(current, written, start_offset)


def _merge_within(current: bytes, written: bytes, start_offset: int) -> bytes:
    """Lay written batches over current ones, touching only the stretch of current that they meet.

    Both runs are ascending and disjoint, so current splits into a head that ends before the first
    written offset, a tail that begins behind the last one, and the stretch between, which alone goes
    through the general path.  Neighbours of the cut stay in the stretch: they may merge with it.
    """
    lowest = _ONE.unpack_from(written, 0)[0]
    highest = _ONE.unpack_from(written, len(written) - BATCH_BYTES)[1]
    count = len(current) // BATCH_BYTES
    begin = max(_batches_ending_before(current, lowest) - 1, 0)
    end = min(_batches_ending_before(current, highest) + 2, count)
    head, stretch, tail = (
        current[: begin * BATCH_BYTES],
        current[begin * BATCH_BYTES : end * BATCH_BYTES],
        current[end * BATCH_BYTES :],
    )
    return head + pack(merge_batches((*unpack(stretch), *unpack(written)), start_offset)) + tail


def _batches_ending_before(batches: bytes, user_offset: int) -> int:
    """Count the batches of an ascending run whose last offset is below a user-topic offset."""
    low, high = 0, len(batches) // BATCH_BYTES
    while low < high:
        middle = (low + high) // 2
        if _RANGE.unpack_from(batches, middle * BATCH_BYTES)[1] < user_offset:
            low = middle + 1
        else:
            high = middle
    return low


def clip(batches: bytes, start_offset: int) -> bytes:
    """Cut an ascending run off below the start offset; a start offset of -1 cuts nothing."""
    if not batches or start_offset == NO_START_OFFSET:
        return batches
    if _RANGE.unpack_from(batches, 0)[0] >= start_offset:
        return batches
    kept = _batches_ending_before(batches, start_offset)
    batches = batches[kept * BATCH_BYTES :]
    if batches:
        first, last, state, count = _ONE.unpack_from(batches, 0)
        if first < start_offset:
            return _ONE.pack(start_offset, last, state, count) + batches[BATCH_BYTES:]
    return bytes(batches)


def normalise(written: bytes, start_offset: int) -> bytes:
    """Bring batches as a client sent them into a run: ascending, disjoint, merged, clipped.

    One pass does it for batches that come in ascending order, one per offset as share consumers send
    them or already merged; anything else goes through `merge_batches`.
    """
    if is_normalised(written):
        return clip(bytes(written), start_offset)
    floor = _lowest_offset(start_offset)
    run: list[bytes] = []
    batches = _ONE.iter_unpack(written)
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
            run.append(_ONE.pack(max(first, floor), last, state, count))
        first, last, state, count = next_first, next_last, next_state, next_count
    if last >= floor:
        run.append(_ONE.pack(max(first, floor), last, state, count))
    return b"".join(run)


def is_normalised(batches: bytes) -> bool:
    """Tell whether batches are ascending, disjoint, and merged as far as can be."""
    previous_last, previous_state, previous_count = _LOWEST_OFFSET - 1, -1, -1
    for first, last, state, count in _ONE.iter_unpack(batches):
        if first <= previous_last or last < first:
            return False
        if first == previous_last + 1 and state == previous_state and count == previous_count:
            return False
        previous_last, previous_state, previous_count = last, state, count
    return True


def merge_batches(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Give every covered offset its greatest (delivery count, delivery state), as a run.

    The general path, and the definition of the rule: any order, any overlap.  Batches that end before
    they begin cover nothing (Kafka 4.3 and older stored such; a write that holds one is refused
    before it comes here).  Takes O(n log n) for n batches.
    """
    floor = _lowest_offset(start_offset)
    waiting = sorted(
        (max(batch.first_offset, floor), batch)
        for batch in batches
        if batch.last_offset >= floor and batch.first_offset <= batch.last_offset
    )
    run: list[StateBatch] = []
    covering: list[tuple[int, int, int]] = []  # (-count, -state, last_offset), the winner first
    begun = 0
    offset = floor

    # Sweep upwards.  Each turn settles one stretch of offsets with one winner: it lasts until the
    # winner ends or until another batch begins.
    while begun < len(waiting) or covering:
        if not covering:
            offset = waiting[begun][0]
        while begun < len(waiting) and waiting[begun][0] == offset:
            batch = waiting[begun][1]
            heappush(covering, (-batch.delivery_count, -batch.delivery_state, batch.last_offset))
            begun += 1
        count, state, last_offset = covering[0]
        if begun < len(waiting):
            last_offset = min(last_offset, waiting[begun][0] - 1)
        _append(run, StateBatch(offset, last_offset, -state, -count))
        offset = last_offset + 1
        while covering and covering[0][2] < offset:
            heappop(covering)
    return run


def _append(run: list[StateBatch], batch: StateBatch) -> None:
    """Append a batch to a run, or stretch the last one if both form a single batch."""
    assert batch.first_offset <= batch.last_offset
    if run:
        last = run[-1]
        assert last.last_offset < batch.first_offset
        if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
            run[-1] = last._replace(last_offset=batch.last_offset)
            return
    run.append(batch)


def first_inverted(batches: bytes) -> StateBatch | None:
    """Return the first batch that ends before it begins, or None."""
    for first, last, state, count in _ONE.iter_unpack(batches):
        if last < first:
            return StateBatch(first, last, state, count)
    return None


def _lowest_offset(start_offset: int) -> int:
    return _LOWEST_OFFSET if start_offset == NO_START_OFFSET else start_offset
