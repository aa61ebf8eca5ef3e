"""Share-partition keys, and the records that store share-partition state on the log.

Records are byte-identical to Kafka's.  The key is an int16 record type and a key message.  The value is an
int16 version (always 0) and a value message.  A null value for a snapshot key is a tombstone.  Source:
ShareSnapshotKey/Value, ShareUpdateKey/Value and ShareCoordinatorRecordSerde of Kafka 4.4.

Undecodable records do not raise an exception.  An unknown record type is skipped, as in Kafka.  A value with
an unknown version or malformed bytes becomes an `UnreadableValue` of its share-partition.  Kafka stops the
whole state partition for such a value.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import msgspec

from protocol.errors import DecodeError
from protocol.messages import share_snapshot, share_update
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue

SNAPSHOT_TYPE = 0
UPDATE_TYPE = 1
VALUE_VERSION = 0

_TOPIC_ID_BYTES = 16
_TOPIC_ID_TEXT_CHARS_MAX = 24
_PARTITION_LOWEST, _PARTITION_HIGHEST = -(2**31), 2**31 - 1

# The characters that Java's String.trim() removes; Python's strip() removes a different set.
_TRIMMED_BY_JAVA = "".join(map(chr, range(0x21)))

_BASE64_URL = re.compile(r"[A-Za-z0-9_-]*")

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_VERSION = _INT16.pack(VALUE_VERSION)

# Size of the cache of encoded record keys (group and topic); each entry takes about 300 bytes.
CACHED_KEY_PREFIXES_MAX = 16_384
# Longer names are not cached, because a name may have 32,767 characters.
CACHED_NAME_CHARS_MAX = 255


class SharePartitionKey(NamedTuple):
    """The unit of state: one topic partition as consumed by one share group."""

    group_id: str
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.group_id}:{topic_id_text(self.topic_id)}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> "SharePartitionKey":
        """Parse `group:topicId:partition` from the right, because a group id may contain colons.

        Accepts what Kafka accepts: trailing colons are dropped, the partition may have a sign and leading
        zeros, and the topic id may have base64 padding. Raises ValueError with a message for any other text.
        Source: SharePartitionKey.getInstance of Kafka 4.4.
        """
        pieces = text.rstrip(":").split(":")
        if len(pieces) < 3:
            raise ValueError(f"{text!r} is not of the form group:topicId:partition")
        group_id = ":".join(pieces[:-2])
        if not group_id.strip(_TRIMMED_BY_JAVA):
            raise ValueError(f"{text!r} has no group id")
        return cls(group_id, parse_topic_id(pieces[-2]), _parse_partition(pieces[-1]))


def topic_id_text(topic_id: bytes) -> str:
    """Format a topic id as Kafka does: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(topic_id)[:22].decode("ascii")


def parse_topic_id(text: str) -> bytes:
    """Parse a topic id in Kafka's text format. Raises ValueError."""
    if len(text) > _TOPIC_ID_TEXT_CHARS_MAX:
        raise ValueError(f"{text!r} is too long for a topic id")
    bare = text.rstrip("=")
    # Padding must be complete or absent, as in Java's decoder.
    if (len(bare) != len(text) and len(text) % 4) or not _BASE64_URL.fullmatch(bare):
        raise ValueError(f"{text!r} is not a topic id in URL-safe base64")
    try:
        topic_id = urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except Base64Error:
        raise ValueError(f"{text!r} is not a topic id in URL-safe base64") from None
    if len(topic_id) != _TOPIC_ID_BYTES:
        raise ValueError(f"{text!r} is not a topic id of 16 bytes")
    return topic_id


def _parse_partition(text: str) -> int:
    digits = text[1:] if text[:1] in "+-" else text
    # Java accepts decimal digits of all scripts in the Basic Multilingual Plane; Python's int() accepts
    # those of all planes.
    if not digits.isdecimal() or max(digits) > "\uffff" or len(text) > 32:
        raise ValueError(f"{text!r} is not a partition number")
    partition = int(text)
    if not _PARTITION_LOWEST <= partition <= _PARTITION_HIGHEST:
        raise ValueError(f"{text!r} is out of range for a partition number")
    return partition


class UnreadableValue(msgspec.Struct, frozen=True):
    """A record value that this release cannot decode, with its original bytes."""

    value: bytes
    reason: str


StateValue = ShareSnapshotValue | ShareUpdateValue | UnreadableValue | None
_DecodeValue = Callable[[bytes, int], ShareSnapshotValue] | Callable[[bytes, int], ShareUpdateValue]


class StateRecord(NamedTuple):
    """One record of a share-partition; a value of None is a tombstone, which deletes its state."""

    key: SharePartitionKey
    value: StateValue


def encode_record(record: StateRecord) -> tuple[bytes, bytes | None]:
    """Return the key and value bytes of a record as Kafka's coordinator writes them."""
    key, value = record
    if isinstance(value, ShareUpdateValue):
        return (
            _key_prefix(UPDATE_TYPE, key.group_id, key.topic_id) + _INT32.pack(key.partition),
            _VERSION + share_update.encode_value(value),
        )
    key_bytes = _key_prefix(SNAPSHOT_TYPE, key.group_id, key.topic_id) + _INT32.pack(key.partition)
    if value is None:
        return key_bytes, None
    if isinstance(value, ShareSnapshotValue):
        return key_bytes, _VERSION + share_snapshot.encode_value(value)
    raise ValueError("a value that could not be read cannot be written")


def _key_prefix(record_type: int, group_id: str, topic_id: bytes) -> bytes:
    make = _cached_key_prefix if len(group_id) <= CACHED_NAME_CHARS_MAX else _make_key_prefix
    return make(record_type, group_id, topic_id)


def _make_key_prefix(record_type: int, group_id: str, topic_id: bytes) -> bytes:
    group = group_id.encode()
    return _INT16.pack(record_type) + _INT16.pack(len(group)) + group + topic_id


_cached_key_prefix = lru_cache(maxsize=CACHED_KEY_PREFIXES_MAX)(_make_key_prefix)


def decode_record(key: bytes | None, value: bytes | None) -> StateRecord | None:
    """Decode a record of the state log; return None for an unknown record type.

    Raises DecodeError only if the share-partition is unknown: the key is missing or truncated.
    """
    if key is None or len(key) < _INT16.size:
        raise DecodeError("a record of the state log has no key or one without a record type")
    (record_type,) = _INT16.unpack_from(key)
    if record_type == SNAPSHOT_TYPE:
        named = share_snapshot.decode_key(key, _INT16.size)
        share_partition = SharePartitionKey(named.group_id, named.topic_id, named.partition)
        if value is None:
            return StateRecord(share_partition, None)
        return StateRecord(share_partition, _decode_value(value, share_snapshot.decode_value))
    if record_type == UPDATE_TYPE:
        updated = share_update.decode_key(key, _INT16.size)
        share_partition = SharePartitionKey(updated.group_id, updated.topic_id, updated.partition)
        if value is None:
            return StateRecord(share_partition, UnreadableValue(b"", "a ShareUpdate without a value"))
        return StateRecord(share_partition, _decode_value(value, share_update.decode_value))
    return None


def _decode_value(
    value: bytes, decode: _DecodeValue
) -> ShareSnapshotValue | ShareUpdateValue | UnreadableValue:
    if len(value) < _INT16.size:
        return UnreadableValue(value, "a value without a version")
    (version,) = _INT16.unpack_from(value)
    if version != VALUE_VERSION:
        return UnreadableValue(value, f"value version {version}, this release knows {VALUE_VERSION}")
    try:
        return decode(value, _INT16.size)
    except DecodeError as error:
        return UnreadableValue(value, f"a value that does not parse: {error}")
