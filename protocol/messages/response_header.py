"""ResponseHeader, versions 0 to 1.

Generated from the schemas by ``python -m protocol.codegen``; do not edit.
"""

from struct import Struct as Fields

from msgspec import Struct

from protocol.errors import DecodeError, EncodeError, UnsupportedVersionError
from protocol.wire import HEADER_ELEMENTS_MAX, MALFORMED, UNENCODABLE, skip_tags_within

_unpack_i = Fields(">i").unpack_from
_unpack_iB = Fields(">iB").unpack_from
_pack_i = Fields(">i").pack
_pack_ix = Fields(">ix").pack

__all__ = [
    "ResponseHeader",
    "decode",
    "encode",
]


class ResponseHeader(Struct, gc=False):
    """The ResponseHeader, versions 0 to 1."""

    # Copied from the request.
    correlation_id: int


def decode(buf: bytes, offset: int, header_version: int) -> tuple[ResponseHeader, int]:
    """Decode the ResponseHeader at ``offset``; return it and the position after it."""
    if not 0 <= header_version <= 1:
        raise UnsupportedVersionError(f"version {header_version} of ResponseHeader")
    try:
        if header_version >= 1:
            return _decode_v1(buf, offset, HEADER_ELEMENTS_MAX)
        return _decode_v0(buf, offset, HEADER_ELEMENTS_MAX)
    except MALFORMED as error:
        raise DecodeError(f"ResponseHeader: {error}") from error


def _decode_v0(buf: bytes, at: int, left: int) -> tuple[ResponseHeader, int]:
    (correlation_id,) = _unpack_i(buf, at)
    at += 4
    if at > len(buf):
        raise DecodeError(f"ResponseHeader ends at byte {at} of {len(buf)}")
    return ResponseHeader(correlation_id), at


def _decode_v1(buf: bytes, at: int, left: int) -> tuple[ResponseHeader, int]:
    correlation_id, n = _unpack_iB(buf, at)
    at += 5
    if n:
        at, left = skip_tags_within(buf, at - 1, left)
    if at > len(buf):
        raise DecodeError(f"ResponseHeader ends at byte {at} of {len(buf)}")
    return ResponseHeader(correlation_id), at


def encode(message: ResponseHeader, header_version: int) -> bytes:
    """Encode the ResponseHeader. Raises EncodeError if a value has no wire form."""
    if not 0 <= header_version <= 1:
        raise UnsupportedVersionError(f"version {header_version} of ResponseHeader")
    try:
        if header_version >= 1:
            return _encode_v1(message)
        return _encode_v0(message)
    except UNENCODABLE as error:
        raise EncodeError(f"ResponseHeader: {error}") from error


def _encode_v0(message: ResponseHeader) -> bytes:
    return _pack_i(message.correlation_id)


def _encode_v1(message: ResponseHeader) -> bytes:
    return _pack_ix(message.correlation_id)
