"""Heartbeat (API key 12), version 4: request and response.

Generated from the schemas by ``python -m protocol.codegen``; do not edit.
"""

from struct import Struct as Fields

from msgspec import Struct

from protocol.errors import DecodeError, EncodeError, TooManyElementsError, UnsupportedVersionError
from protocol.wire import (
    ELEMENTS_MAX,
    MALFORMED,
    SHORT_UVARINTS,
    UNENCODABLE,
    read_nullable_string_length,
    read_string_length,
    skip_tags,
    skip_tags_within,
    write_uvarint,
)

_unpack_iB = Fields(">iB").unpack_from
_unpack_ihB = Fields(">ihB").unpack_from
_pack_i = Fields(">i").pack
_pack_ihx = Fields(">ihx").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 12
MIN_VERSION = 4
MAX_VERSION = 4


class HeartbeatRequest(Struct, gc=False):
    """The Heartbeat request, version 4."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


class HeartbeatResponse(Struct, gc=False):
    """The Heartbeat response, version 4."""

    throttle_time_ms: int
    error_code: int


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> HeartbeatRequest:
    """Decode the HeartbeatRequest from ``offset`` to the end of ``buf``."""
    if version != 4:
        raise UnsupportedVersionError(f"version {version} of HeartbeatRequest")
    try:
        at = offset
        left = elements_max
        n = buf[at]
        if not 0 < n < 128:
            n, at = read_string_length(buf, at)
            left -= n >> 6
            if left < 0:
                raise TooManyElementsError(f"more elements than allowed before byte {at}")
        group_id = buf[at + 1 : at + n].decode()
        at += n
        generation_id, n = _unpack_iB(buf, at)
        at += 4
        if not 0 < n < 128:
            n, at = read_string_length(buf, at)
            left -= n >> 6
            if left < 0:
                raise TooManyElementsError(f"more elements than allowed before byte {at}")
        member_id = buf[at + 1 : at + n].decode()
        at += n
        n = buf[at]
        at += 1
        if n > 127:
            n, at = read_nullable_string_length(buf, at - 1)
        if not n:
            group_instance_id = None
        else:
            left -= n >> 6
            if left < 0:
                raise TooManyElementsError(f"more elements than allowed before byte {at}")
            group_instance_id = buf[at : at + n - 1].decode()
            at += n - 1
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"HeartbeatRequest ends at byte {at} of {len(buf)}")
        return HeartbeatRequest(group_id, generation_id, member_id, group_instance_id)
    except MALFORMED as error:
        raise DecodeError(f"HeartbeatRequest: {error}") from error


def encode_request(message: HeartbeatRequest, version: int) -> bytes:
    """Encode the HeartbeatRequest. Raises EncodeError if a value has no wire form."""
    if version != 4:
        raise UnsupportedVersionError(f"version {version} of HeartbeatRequest")
    try:
        group_id = message.group_id.encode()
        n = len(group_id) + 1
        group_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        member_id = message.member_id.encode()
        n = len(member_id) + 1
        member_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts: list[bytes] = []
        if message.group_instance_id is None:
            parts += (
                group_id_n,
                group_id,
                _pack_i(message.generation_id),
                member_id_n,
                member_id,
                b"\x00\x00",
            )
        else:
            group_instance_id = message.group_instance_id.encode()
            n = len(group_instance_id) + 1
            group_instance_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (
                group_id_n,
                group_id,
                _pack_i(message.generation_id),
                member_id_n,
                member_id,
                group_instance_id_n,
                group_instance_id,
                b"\x00",
            )
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"HeartbeatRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> HeartbeatResponse:
    """Decode the HeartbeatResponse from ``offset`` to the end of ``buf``."""
    if version != 4:
        raise UnsupportedVersionError(f"version {version} of HeartbeatResponse")
    try:
        at = offset
        throttle_time_ms, error_code, n = _unpack_ihB(buf, at)
        at += 7
        if n:
            at = skip_tags(buf, at - 1)
        if at != len(buf):
            raise DecodeError(f"HeartbeatResponse ends at byte {at} of {len(buf)}")
        return HeartbeatResponse(throttle_time_ms, error_code)
    except MALFORMED as error:
        raise DecodeError(f"HeartbeatResponse: {error}") from error


def encode_response(message: HeartbeatResponse, version: int) -> bytes:
    """Encode the HeartbeatResponse. Raises EncodeError if a value has no wire form."""
    if version != 4:
        raise UnsupportedVersionError(f"version {version} of HeartbeatResponse")
    try:
        return _pack_ihx(message.throttle_time_ms, message.error_code)
    except UNENCODABLE as error:
        raise EncodeError(f"HeartbeatResponse: {error}") from error
