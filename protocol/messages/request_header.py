"""RequestHeader, versions 1 to 2.

Generated from the schemas by ``python -m protocol.codegen``; do not edit.
"""

from struct import Struct as Fields

from msgspec import Struct

from protocol.errors import DecodeError, EncodeError, TooManyElementsError, UnsupportedVersionError
from protocol.wire import HEADER_ELEMENTS_MAX, MALFORMED, UNENCODABLE, skip_tags_within

_unpack_hhih = Fields(">hhih").unpack_from
_pack_hhih = Fields(">hhih").pack
_pack_hhihx = Fields(">hhihx").pack

__all__ = [
    "RequestHeader",
    "decode",
    "encode",
]


class RequestHeader(Struct, gc=False):
    """The RequestHeader, versions 1 to 2."""

    # Which API is called.
    request_api_key: int
    # The version of that API.
    request_api_version: int
    # Comes back in the answer.
    correlation_id: int
    # The name that the client gives itself.
    client_id: str | None


def decode(buf: bytes, offset: int, header_version: int) -> tuple[RequestHeader, int]:
    """Decode the RequestHeader at ``offset``; return it and the position after it."""
    if not 1 <= header_version <= 2:
        raise UnsupportedVersionError(f"version {header_version} of RequestHeader")
    try:
        if header_version >= 2:
            return _decode_v2(buf, offset, HEADER_ELEMENTS_MAX)
        return _decode_v1(buf, offset, HEADER_ELEMENTS_MAX)
    except MALFORMED as error:
        raise DecodeError(f"RequestHeader: {error}") from error


def _decode_v1(buf: bytes, at: int, left: int) -> tuple[RequestHeader, int]:
    request_api_key, request_api_version, correlation_id, n = _unpack_hhih(buf, at)
    at += 10
    if n < -1:
        raise DecodeError(f"length {n} before byte {at}")
    if n < 0:
        client_id = None
    else:
        left -= n >> 6
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
        client_id = buf[at : at + n].decode()
        at += n
    if at > len(buf):
        raise DecodeError(f"RequestHeader ends at byte {at} of {len(buf)}")
    return RequestHeader(request_api_key, request_api_version, correlation_id, client_id), at


def _decode_v2(buf: bytes, at: int, left: int) -> tuple[RequestHeader, int]:
    request_api_key, request_api_version, correlation_id, n = _unpack_hhih(buf, at)
    at += 10
    if n < -1:
        raise DecodeError(f"length {n} before byte {at}")
    if n < 0:
        client_id = None
    else:
        left -= n >> 6
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
        client_id = buf[at : at + n].decode()
        at += n
    if buf[at]:
        at, left = skip_tags_within(buf, at, left)
    else:
        at += 1
    if at > len(buf):
        raise DecodeError(f"RequestHeader ends at byte {at} of {len(buf)}")
    return RequestHeader(request_api_key, request_api_version, correlation_id, client_id), at


def encode(message: RequestHeader, header_version: int) -> bytes:
    """Encode the RequestHeader. Raises EncodeError if a value has no wire form."""
    if not 1 <= header_version <= 2:
        raise UnsupportedVersionError(f"version {header_version} of RequestHeader")
    try:
        if header_version >= 2:
            return _encode_v2(message)
        return _encode_v1(message)
    except UNENCODABLE as error:
        raise EncodeError(f"RequestHeader: {error}") from error


def _encode_v1(message: RequestHeader) -> bytes:
    parts: list[bytes] = []
    if message.client_id is None:
        fixed_0 = _pack_hhih(message.request_api_key, message.request_api_version, message.correlation_id, -1)
        parts.append(fixed_0)
    else:
        client_id = message.client_id.encode()
        fixed_0 = _pack_hhih(
            message.request_api_key,
            message.request_api_version,
            message.correlation_id,
            len(client_id),
        )
        parts += (fixed_0, client_id)
    return b"".join(parts)


def _encode_v2(message: RequestHeader) -> bytes:
    parts: list[bytes] = []
    if message.client_id is None:
        fixed_0 = _pack_hhihx(
            message.request_api_key,
            message.request_api_version,
            message.correlation_id,
            -1,
        )
        parts.append(fixed_0)
    else:
        client_id = message.client_id.encode()
        fixed_0 = _pack_hhih(
            message.request_api_key,
            message.request_api_version,
            message.correlation_id,
            len(client_id),
        )
        parts += (fixed_0, client_id, b"\x00")
    return b"".join(parts)
