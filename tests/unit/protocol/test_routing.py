"""The state partition of a share-partition, for keys that recorded responses do not cover."""

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import routing, state_records
from protocol.routing import java_hash, state_partition
from protocol.state_records import (
    CACHED_NAME_CHARS_MAX,
    SharePartitionKey,
    StateRecord,
    encode_record,
)


def java_string_hash(text: str, start: int) -> int:
    """Return the hash by the formula of String.hashCode: s[0]*31^(n-1) + s[1]*31^(n-2) + ... + s[n-1]."""
    units = text.encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return reduce(lambda value, unit: (31 * value + 256 * unit[0] + unit[1]) % 2**32, pairs, start)


@given(
    st.text(st.characters(exclude_categories=()), max_size=5),
    st.sampled_from([0, 1, 511, 512, 1023, 1024, 1025, 3000, 32_767]),
    st.integers(0, 2**32 - 1),
)
def test_java_hash_equals_string_hash_code_for_any_length(text: str, at_least: int, start: int) -> None:
    text = (text or "a") * (at_least // len(text or "a") + 1)
    assert java_hash(text, start) == java_string_hash(text, start)
    assert java_hash("", start) == start


@pytest.mark.parametrize(
    ("chars", "remembered"), [(CACHED_NAME_CHARS_MAX, 1), (CACHED_NAME_CHARS_MAX + 1, 0)]
)
def test_long_names_are_not_cached(chars: int, remembered: int) -> None:
    caches = (routing._cached_prefix_hash, state_records._cached_key_prefix)
    for cache in caches:
        cache.cache_clear()
    key = SharePartitionKey("g" * chars, bytes(16), 0)
    state_partition(key, 50)
    encode_record(StateRecord(key, None))
    assert [cache.cache_info().currsize for cache in caches] == [remembered] * 2


def test_hash_without_an_int32_absolute_value_maps_to_partition_0() -> None:
    key = SharePartitionKey("ABXENDB", bytes(range(16)), 0)
    assert java_hash(str(key)) == 0x80000000
    assert [state_partition(key, count) for count in (1, 3, 50)] == [0, 0, 0]
