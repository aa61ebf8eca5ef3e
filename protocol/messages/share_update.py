"""ShareUpdate (record type 1): key and value.

Generated from the schemas by ``python -m protocol.codegen``; do not edit.
"""

from struct import Struct as Fields

from msgspec import Struct

from protocol.errors import DecodeError, EncodeError
from protocol.state_batches import NO_TAGS, read_tagged, write_tagged
from protocol.wire import (
    MALFORMED,
    SHORT_UVARINTS,
    UNENCODABLE,
    read_uvarint,
    tagged_field_end,
    write_tags,
    write_uvarint,
)

_unpack_16si = Fields(">16si").unpack_from
_unpack_h = Fields(">h").unpack_from
_unpack_i = Fields(">i").unpack_from
_unpack_iiqB = Fields(">iiqB").unpack_from
_pack_16si = Fields(">16si").pack
_pack_h = Fields(">h").pack
_pack_i = Fields(">i").pack
_pack_iiq = Fields(">iiq").pack

__all__ = [
    "RECORD_TYPE",
    "VALUE_VERSION",
    "ShareUpdateKey",
    "ShareUpdateValue",
    "decode_key",
    "decode_value",
    "encode_key",
    "encode_value",
]

RECORD_TYPE = 1
VALUE_VERSION = 0


class ShareUpdateKey(Struct, gc=False):
    """The ShareUpdate record key, version 0."""

    group_id: str
    topic_id: bytes
    partition: int


class ShareUpdateValue(Struct, gc=False):
    """The ShareUpdate record value, version 0."""

    # That of the snapshot it adds to.
    snapshot_epoch: int
    leader_epoch: int
    # -1: not changed.
    start_offset: int
    state_batches: bytes
    # Offsets at or above the start offset whose delivery is complete; -1 unknown (KIP-1226).
    delivery_complete_count: int = -1
    # Tagged fields that the schema does not define, in the order of the record.
    unknown_tags: tuple[tuple[int, bytes], ...] = ()


def decode_key(buf: bytes, offset: int) -> ShareUpdateKey:
    """Decode the ShareUpdateKey from ``offset`` to the end of ``buf``."""
    try:
        at = offset
        (n,) = _unpack_h(buf, at)
        at += 2
        if n < 0:
            raise DecodeError(f"length {n} before byte {at}")
        group_id = buf[at : at + n].decode()
        at += n
        topic_id, partition = _unpack_16si(buf, at)
        at += 20
        if at != len(buf):
            raise DecodeError(f"ShareUpdateKey ends at byte {at} of {len(buf)}")
        return ShareUpdateKey(group_id, topic_id, partition)
    except MALFORMED as error:
        raise DecodeError(f"ShareUpdateKey: {error}") from error


def encode_key(message: ShareUpdateKey) -> bytes:
    """Encode the ShareUpdateKey. Raises EncodeError if a value has no wire form."""
    try:
        group_id = message.group_id.encode()
        if len(message.topic_id) != 16:
            raise EncodeError("topic_id is not 16 bytes long")
        return b"".join((_pack_h(len(group_id)), group_id, _pack_16si(message.topic_id, message.partition)))
    except UNENCODABLE as error:
        raise EncodeError(f"ShareUpdateKey: {error}") from error


def decode_value(buf: bytes, offset: int) -> ShareUpdateValue:
    """Decode the ShareUpdateValue from ``offset`` to the end of ``buf``."""
    try:
        at = offset
        snapshot_epoch, leader_epoch, start_offset, n = _unpack_iiqB(buf, at)
        at += 17
        end = at + n * 20 - 20
        if (n == 2 and not buf[at + 19]) or (n < 128 and buf[at + 19 : end : 20] == NO_TAGS[n]):
            state_batches = buf[at:end]
            at = end
        else:
            state_batches, at = read_tagged(buf, at - 1)
        delivery_complete_count = -1
        unknown_tags: tuple[tuple[int, bytes], ...] = ()
        if buf[at : at + 3] == b"\x01\x00\x04":
            (delivery_complete_count,) = _unpack_i(buf, at + 3)
            at += 7
        else:
            unknown: list[tuple[int, bytes]] = []
            last_tag = -1
            n, at = read_uvarint(buf, at)
            for _ in range(n):
                tag, at = read_uvarint(buf, at)
                if tag <= last_tag:
                    raise DecodeError(f"tag {tag} after tag {last_tag}")
                last_tag = tag
                n, at = read_uvarint(buf, at)
                end = tagged_field_end(buf, at, n)
                if tag == 0:
                    (delivery_complete_count,) = _unpack_i(buf, at)
                    at += 4
                else:
                    unknown.append((tag, buf[at:end]))
                    at = end
                if at != end:
                    raise DecodeError(f"tag {tag} ends at byte {at}, not at byte {end}")
            unknown_tags = tuple(unknown)
        if at != len(buf):
            raise DecodeError(f"ShareUpdateValue ends at byte {at} of {len(buf)}")
        return ShareUpdateValue(
            snapshot_epoch,
            leader_epoch,
            start_offset,
            state_batches,
            delivery_complete_count,
            unknown_tags,
        )
    except MALFORMED as error:
        raise DecodeError(f"ShareUpdateValue: {error}") from error


def encode_value(message: ShareUpdateValue) -> bytes:
    """Encode the ShareUpdateValue. Raises EncodeError if a value has no wire form."""
    try:
        state_batches = message.state_batches
        if len(state_batches) % 20:
            raise EncodeError("state_batches are not a whole number of 20-byte pieces")
        fixed_0 = _pack_iiq(message.snapshot_epoch, message.leader_epoch, message.start_offset)
        n = len(state_batches) // 20 + 1
        state_batches_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        if message.unknown_tags:
            tags: list[tuple[int, bytes]] = list(message.unknown_tags)
            if message.delivery_complete_count != -1:
                tags.append((0, _pack_i(message.delivery_complete_count)))
            tail = write_tags(tags)
        elif message.delivery_complete_count != -1:
            tail = b"\x01\x00\x04" + _pack_i(message.delivery_complete_count)
        else:
            tail = b"\x00"
        parts = [
            fixed_0,
            state_batches_n,
            state_batches if type(state_batches) is bytes else write_tagged(state_batches),
            tail,
        ]
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"ShareUpdateValue: {error}") from error
