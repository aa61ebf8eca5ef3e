"""Test that the merge of state batches equals its definition for single offsets, also on optimized paths."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coordinator.shard.batches import NO_START_OFFSET, clip, combine, merge_batches, normalise
from protocol.state_batches import StateBatch, pack, unpack

# Few offsets, states and counts, so that batches often touch, overlap and have equal counts.
OFFSET_MAX = 24


@st.composite
def single_batch(draw: st.DrawFn) -> StateBatch:
    first = draw(st.integers(0, OFFSET_MAX))
    last = draw(st.integers(first, min(first + 6, OFFSET_MAX)))
    return StateBatch(first, last, draw(st.sampled_from([0, 2, 3, 4, 9])), draw(st.integers(0, 3)))


batches = st.lists(single_batch(), max_size=8)
# One batch for each offset, ascending, as if a consumer acknowledged single records.
ascending = st.builds(
    lambda start, kinds: [StateBatch(start + n, start + n, state, 1) for n, state in enumerate(kinds)],
    st.integers(0, OFFSET_MAX),
    st.lists(st.sampled_from([0, 2, 4]), max_size=12),
)
start_offsets = st.one_of(st.just(NO_START_OFFSET), st.integers(0, OFFSET_MAX + 2))


def merge_by_definition(covering: list[StateBatch], start_offset: int) -> dict[int, tuple[int, int]]:
    """Return the greatest (delivery count, delivery state) of each offset, computed offset by offset."""
    greatest: dict[int, tuple[int, int]] = {}
    for batch in covering:
        for offset in range(batch.first_offset, batch.last_offset + 1):
            if start_offset == NO_START_OFFSET or offset >= start_offset:
                value = (batch.delivery_count, batch.delivery_state)
                greatest[offset] = max(greatest.get(offset, value), value)
    return greatest


def assert_batches_equal(packed: bytes, expected: dict[int, tuple[int, int]]) -> None:
    found = unpack(packed)
    got = {
        offset: (batch.delivery_count, batch.delivery_state)
        for batch in found
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }
    assert got == expected
    assert sum(batch.last_offset - batch.first_offset + 1 for batch in found) == len(got), "disjoint"
    for one, following in pairwise(found):
        assert one.last_offset < following.first_offset, "ascending"
        joined = one.last_offset + 1 == following.first_offset and one[2:] == following[2:]
        assert not joined, "adjacent batches with equal count and state are not merged"


@given(batches, st.one_of(batches, ascending), start_offsets)
def test_combine_equals_the_definition_for_each_offset(
    current: list[StateBatch], written: list[StateBatch], start_offset: int
) -> None:
    current_bytes = normalise(pack(current), NO_START_OFFSET)
    assert_batches_equal(
        combine(current_bytes, pack(written), start_offset),
        merge_by_definition([*current, *written], start_offset),
    )


@given(st.lists(batches, max_size=5), start_offsets, st.randoms(use_true_random=False))
def test_merged_writes_do_not_depend_on_order_or_repetition(
    writes: list[list[StateBatch]], start_offset: int, random: object
) -> None:
    def combine_in_order(order: list[list[StateBatch]]) -> bytes:
        merged = b""
        for written in order:
            merged = combine(merged, pack(written), start_offset)
        return merged

    shuffled = list(writes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert combine_in_order(shuffled) == combine_in_order(writes)
    assert combine_in_order([*writes, *writes]) == combine_in_order(writes)


@given(st.one_of(batches, ascending), start_offsets)
def test_normalise_equals_a_merge_into_nothing(written: list[StateBatch], start_offset: int) -> None:
    assert normalise(pack(written), start_offset) == pack(merge_batches(written, start_offset))


@given(batches, start_offsets, start_offsets)
def test_clip_equals_a_merge_with_the_higher_start_offset(
    written: list[StateBatch], one: int, other: int
) -> None:
    lower, higher = sorted((one, other))
    current_bytes = normalise(pack(written), lower)
    assert clip(current_bytes, higher) == normalise(pack(written), higher)


@given(batches, st.integers(0, OFFSET_MAX))
def test_inverted_batch_covers_no_offset(written: list[StateBatch], first: int) -> None:
    inverted = StateBatch(first, first - 1, 2, 5)
    assert normalise(pack([*written, inverted]), NO_START_OFFSET) == normalise(pack(written), NO_START_OFFSET)
    assert normalise(pack([inverted]), NO_START_OFFSET) == b""
