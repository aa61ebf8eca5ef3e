"""Compare parts of the compiled module with their Python equivalents: batches and records."""

from itertools import accumulate
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.recovery.parse import find_record_starts
from coordinator.recovery.records import PADDING_BYTES
from coordinator.shard import combine
from coordinator.shard.batches import merge_batches
from protocol import record_batch
from protocol.errors import DecodeError
from protocol.record_batch import HEADER_BYTES
from protocol.state_batches import StateBatch, pack
from tests.property.test_batches import ascending, batches, start_offsets

compiled = pytest.importorskip(
    "coordinator.fastpath._compiled", reason="it was not built: is there a C compiler?"
)

any_batches = (ascending | batches).map(pack)


@pytest.mark.slow
@settings(max_examples=500)
@given(ascending | batches, any_batches, start_offsets, start_offsets)
def test_compiled_merge_equals_combine(current: Any, written: bytes, start_offset: int, later: int) -> None:
    current_bytes = combine(b"", pack(current), start_offset)
    assert compiled.merge_batches(current_bytes, written, max(start_offset, later)) == combine(
        current_bytes, written, max(start_offset, later)
    )


def test_compiled_merge_returns_none_for_an_inverted_batch() -> None:
    for count in range(4):
        written = [StateBatch(9 - n, 9 - n, 2, 1) for n in range(count)]
        for at in range(count + 1):
            inverted = [*written[:at], StateBatch(3, 2, 2, 1), *written[at:]]
            assert compiled.merge_batches(b"", pack(inverted), -1) is None


@pytest.mark.slow
def test_compiled_merge_of_many_unordered_batches_is_fast() -> None:
    """Merge reversed, nested and shuffled batches in less time than Python does."""
    count = 100_000
    shapes = [
        [StateBatch(2 * n, 2 * n, 2, 1) for n in reversed(range(count))],
        [StateBatch(n, 2 * count - n, 2, 1 + n % 3) for n in range(count)],
        [StateBatch(n * 7_919 % count, n * 7_919 % count, 2, 1) for n in range(count)],
    ]
    began_s = process_time()
    for written in shapes:
        assert compiled.merge_batches(b"", pack(written), 50) == pack(merge_batches(written, 50))
    definition_s = process_time() - began_s
    began_s = process_time()
    for written in shapes:
        compiled.merge_batches(b"", pack(written), 50)
    assert process_time() - began_s < definition_s


def test_compiled_merge_of_extreme_values_equals_combine() -> None:
    """Merge overlapping batches with the least and greatest counts and states."""
    kinds = [(state, count) for state in (-128, -1, 0, 127) for count in (-(2**15), -1, 0, 1, 2**15 - 1)]
    ends = [(-(2**63), -(2**63)), (-(2**63), 2**63 - 1), (0, 9), (2**63 - 1, 2**63 - 1)]
    for first, last in ends:
        for kind in kinds:
            for other in kinds:
                current = pack([StateBatch(first, last, *kind)])
                written = pack([StateBatch(first, first, *other)])
                assert compiled.merge_batches(current, written, -1) == combine(current, written, -1)


# Lengths around the limits at which a varint needs one more byte.
lengths = st.sampled_from([0, 1, 57, 58, 59, 60, 63, 64, 65, 8_185, 8_191, 8_192, 9_000])
records = st.tuples(lengths.map(bytes), st.none() | lengths.map(lambda length: b"v" * length))


@given(st.integers(0, 2**62), st.integers(0, 2**42), st.lists(records, min_size=1, max_size=70))
def test_compiled_record_batch_equals_the_python_encoding(
    base_offset: int, timestamp_ms: int, written: Any
) -> None:
    expected = record_batch.encode_batch(base_offset, timestamp_ms, written)
    assert compiled.encode_batch(base_offset, timestamp_ms, written) == expected
    # A batch of the owner of a topic's partition: leader epoch, producer id and epoch, sequence.
    owner = ((("owner-epoch", (base_offset % 2**31).to_bytes(4)),), 7, base_offset, 2**15 - 1, 2**31 - 1)
    expected = record_batch.encode_batch(0, timestamp_ms, written, *owner)
    assert compiled.encode_batch(0, timestamp_ms, written, *owner) == expected


def test_record_batch_over_the_length_limit_is_refused() -> None:
    # The encoder never reads these zero bytes, so their pages use no memory.
    value = bytes(1 << 30)
    with pytest.raises(OverflowError, match="31 bits"):
        compiled.encode_batch(0, 0, [(b"k", value), (b"k", value)])


@given(
    st.lists(st.lists(records, min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=3),
    st.integers(-1, 1),
)
def test_compiled_record_starts_equal_those_of_python(
    written: list[Any], changes: list[tuple[int, int]], more_records: int
) -> None:
    encoded = [record_batch.encode_batch(0, 0, batch) for batch in written]
    ends = list(accumulate(map(len, encoded)))
    begins = [end - len(batch) + HEADER_BYTES for end, batch in zip(ends, encoded, strict=True)]
    counts = [len(batch) + more_records for batch in written]
    data = bytearray(b"".join(encoded) + bytes(PADDING_BYTES))
    for place, value in changes:
        data[place % ends[-1]] = value
    places = (begins, ends, counts)
    try:
        expected = find_record_starts(bytes(data), *places)
    except DecodeError:
        expected = None
    assert compiled.record_starts(bytes(data), *places) == expected
    if not changes:
        assert (expected is None) == (more_records != 0)
