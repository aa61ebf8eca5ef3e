"""Compute the partition of the state topic for a share-partition.

The partition is `abs(hash) mod partitions`. The hash is Java's String.hashCode of `group:topicId:partition`.
The hash covers UTF-16 code units, so a character outside the Basic Multilingual Plane counts as two. The
least 32-bit integer has no absolute value, so Kafka uses 0 for this hash. Source: SharePartitionKey and
Utils.abs of Kafka.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from struct import unpack

from protocol.state_records import CACHED_NAME_CHARS_MAX, SharePartitionKey, topic_id_text

_MASK = 0xFFFFFFFF
_LOWEST = 0x80000000

# Size of the cache of prefix hashes (group and topic). Each entry takes about 200 bytes.
CACHED_PREFIXES_MAX = 16_384

# Powers of 31 for a chunk of UTF-16 code units. A weighted sum takes a third of the time of a loop.
_CHUNK_UNITS = 1_024
_WEIGHTS = tuple(pow(31, power, _MASK + 1) for power in reversed(range(_CHUNK_UNITS)))


def java_hash(text: str, start: int = 0) -> int:
    """Return Java's string hash as an unsigned 32-bit integer, continued from the hash `start`."""
    value = start
    units: Sequence[int]
    if text.isascii():
        units = text.encode("ascii")
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        units = unpack(f">{len(data) // 2}H", data)
    for begin in range(0, len(units), _CHUNK_UNITS):
        chunk = units[begin : begin + _CHUNK_UNITS]
        value *= pow(31, len(chunk), _MASK + 1)
        value = (value + sum(map(mul, chunk, _WEIGHTS[-len(chunk) :]))) & _MASK
    return value


def _prefix_hash(group_id: str, topic_id: bytes) -> int:
    hash_group = _long_group_hash if len(group_id) > CACHED_NAME_CHARS_MAX else _short_group_hash
    return java_hash(f":{topic_id_text(topic_id)}:", hash_group(group_id))


# A request repeats its group id for each share-partition, and hashing a long group id takes a millisecond.
_long_group_hash = lru_cache(maxsize=4)(java_hash)
_short_group_hash = lru_cache(maxsize=1_024)(java_hash)
_cached_prefix_hash = lru_cache(maxsize=CACHED_PREFIXES_MAX)(_prefix_hash)


def state_partition(key: SharePartitionKey, state_partitions: int) -> int:
    """Return the state partition (0 to state_partitions - 1) that stores a share-partition's state."""
    prefix_hash = _cached_prefix_hash if len(key.group_id) <= CACHED_NAME_CHARS_MAX else _prefix_hash
    value = prefix_hash(key.group_id, key.topic_id)
    for digit in str(key.partition).encode():
        value = (31 * value + digit) & _MASK
    if value >= _LOWEST:
        value = 0 if value == _LOWEST else _MASK + 1 - value
    return value % state_partitions
