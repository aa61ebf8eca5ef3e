"""Convert share-partitions between record keys and rows; select the valid one of several states.

An *identity* is a record key without its record type: group id, topic id and partition in Kafka's encoding.

A coordinator reads only the state partition that the hash of the share-partition selects, so only the state
in that state partition is valid. If the number of state partitions was changed, other state partitions may
have older states of the share-partition.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from coordinator.recovery.records import Ints
from coordinator.shard import ShareState
from protocol.routing import java_hash
from protocol.routing import state_partition as routed_to
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, parse_topic_id, topic_id_text

AnyT = TypeVar("AnyT")
Row = Mapping[str, Any]


# The fields of `ShareState` that are columns of `STATES` with the same name.
_FIELDS = (
    *("snapshot_epoch", "state_epoch", "leader_epoch", "leader_epoch_max", "start_offset"),
    *("delivery_complete_count", "create_timestamp", "write_timestamp", "updates", "update_bytes"),
    *("last_write_ms", "unreadable"),
)


def row_share_partition(row: Row) -> SharePartitionKey:
    """Return the share-partition of a row of `STATES`."""
    return SharePartitionKey(row["group_id"], parse_topic_id(row["topic_id"]), row["partition"])


def make_share_state(row: Mapping[str, Any]) -> ShareState:
    """Convert a row of `STATES` to a `ShareState`."""
    batches = pack(StateBatch(**batch) for batch in row["state_batches"])
    return ShareState(batches=batches, **{name: row[name] for name in _FIELDS})


def state_depends_on(row: Row, log_offset: int) -> bool:
    """Return whether a state may depend on the record at a log offset, because it has no later snapshot.

    A state without any snapshot (its first record is an update) depends on all records.
    """
    return not row["write_timestamp"] or row["needed_from"] <= log_offset


def count_state_partitions(numbers: Collection[int]) -> int | None:
    """Return the number of state partitions in `starts`; None if they are not numbered 0, 1, 2, ...

    without a gap.
    """
    known = set(numbers)
    return len(known) if known and known == set(range(len(known))) else None


def deduplicate(
    rows: Iterable[Row], state_partitions: int | None, convert: Callable[[Row], AnyT]
) -> tuple[dict[SharePartitionKey, AnyT], list[tuple[SharePartitionKey, int]]]:
    """Choose one row of `STATES` for each share-partition.

    The row in the state partition that the hash selects is chosen. If that state partition has none, or if
    the number of state partitions is not known, the newest row is chosen. Returns the results of `convert`
    for the chosen rows instead of the rows, because a dict takes kilobytes. Also returns the share-partition
    and state partition of each row that was not chosen.
    """
    chosen: dict[SharePartitionKey, AnyT] = {}
    ranks: dict[SharePartitionKey, tuple[bool, int, int]] = {}
    left: list[tuple[SharePartitionKey, int]] = []
    for row in rows:
        key = row_share_partition(row)
        is_placed = state_partitions is not None and is_in_hash_partition(row, state_partitions)
        rank = (is_placed, row["last_write_ms"], row["state_partition"])
        before = ranks.get(key)
        if before is not None:
            left.append((key, min(rank, before)[-1]))
            if rank < before:
                continue
        chosen[key], ranks[key] = convert(row), rank
    return chosen, left


def is_in_hash_partition(row: Row, state_partitions: int) -> bool:
    """Return whether a row of `STATES` is in the state partition that its hash selects."""
    state_partition: int = row["state_partition"]
    return routed_to(row_share_partition(row), state_partitions) == state_partition


_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
# Java's string hash of the characters of a topic id: the weights of the characters, modulo 2^32.
_TOPIC_CHARS, _HASH_MASK = 22, np.uint64(0xFFFF_FFFF)
_HASH_WEIGHTS = np.array([pow(31, power, 1 << 32) for power in reversed(range(_TOPIC_CHARS))], np.uint64)

# Cache the text, because many share-partitions have the same topic.
_topic_text = lru_cache(maxsize=10_000)(topic_id_text)


def parse_identity(identity: bytes) -> tuple[str, str, int]:
    """Return the group id, the topic id as text, and the partition of an identity."""
    group_id, topic_id, partition = identity_to_key(identity)
    return group_id, _topic_text(topic_id), partition


def record_key_identity(key: SharePartitionKey) -> bytes:
    """Return the identity of the share-partition of a record key."""
    group = key.group_id.encode()
    return len(group).to_bytes(2) + group + key.topic_id + key.partition.to_bytes(4, signed=True)


def row_identity(row: Row) -> bytes:
    """Return the identity of the share-partition of a row of `STATES`."""
    return record_key_identity(row_share_partition(row))


def split_identities(identities: Sequence[bytes]) -> tuple[list[str], NDArray[np.uint8], Ints]:
    """Return the group ids, the topic ids as rows of 22 characters, and the partitions of identities."""
    groups = [each[2:-20].decode() for each in identities]
    tails = np.frombuffer(b"".join([each[-20:] for each in identities]), np.uint8).reshape(-1, 20)
    padded = np.zeros((len(tails), 18), np.uint32)
    padded[:, :16] = tails[:, :16]
    words = padded[:, ::3] << 16 | padded[:, 1::3] << 8 | padded[:, 2::3]
    sextets = words[:, :, None] >> np.array([18, 12, 6, 0], np.uint32) & 63
    topics = _BASE64[sextets.reshape(-1, 24)[:, :_TOPIC_CHARS]]
    return groups, topics, tails[:, 16:].copy().view(">i4").ravel().astype(np.int64)


def identity_columns(identities: Sequence[bytes]) -> dict[str, pa.Array]:
    """Return the columns `group_id`, `topic_id` and `partition` of identities."""
    groups, topics, partitions = split_identities(identities)
    ends = pa.array(np.arange(len(groups) + 1, dtype=np.int32) * _TOPIC_CHARS).buffers()[1]
    return {
        "group_id": pa.array(groups, pa.string()),
        "topic_id": pa.StringArray.from_buffers(len(groups), ends, pa.py_buffer(topics.tobytes())),
        "partition": pa.array(partitions).cast(pa.int32()),
    }


def hash_partitions(identities: Sequence[bytes], state_partitions: int) -> Ints:
    """Return the state partition that the hash of each identity selects, as `protocol.routing` does."""
    groups, topics, partitions = split_identities(identities)
    hash_by_group = {group: java_hash(f"{group}:") for group in set(groups)}
    value = np.array([hash_by_group[group] for group in groups], np.uint64) * _HASH_WEIGHTS[0] * np.uint64(31)
    value = value + (topics * _HASH_WEIGHTS).sum(axis=1, dtype=np.uint64) & _HASH_MASK
    distinct, inverse = np.unique(partitions, return_inverse=True)
    suffixes = [f":{partition}" for partition in distinct.tolist()]
    factor = np.array([pow(31, len(suffix), 1 << 32) for suffix in suffixes], np.uint64)[inverse]
    value = (
        value * factor + np.array([java_hash(suffix) for suffix in suffixes], np.uint64)[inverse] & _HASH_MASK
    )
    # The absolute value of a signed integer; the least integer has none, so Kafka uses 0.
    absolute: Ints = np.abs(value.astype(np.uint32).view(np.int32).astype(np.int64))
    absolute[absolute == 1 << 31] = 0
    return absolute % state_partitions


def identity_to_key(identity: bytes) -> SharePartitionKey:
    """Decode an identity: the key of a record without its record type."""
    partition = int.from_bytes(identity[-4:], signed=True)
    return SharePartitionKey(identity[2:-20].decode(), identity[-20:-4], partition)
