"""SaslAuthenticate (API key 36), versions 0 to 2: request and response.

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
    read_bytes_length,
    read_nullable_string_length,
    skip_tags,
    skip_tags_within,
    write_uvarint,
)

_unpack_hB = Fields(">hB").unpack_from
_unpack_hh = Fields(">hh").unpack_from
_unpack_i = Fields(">i").unpack_from
_unpack_q = Fields(">q").unpack_from
_unpack_qB = Fields(">qB").unpack_from
_pack_h = Fields(">h").pack
_pack_i = Fields(">i").pack
_pack_q = Fields(">q").pack
_pack_qx = Fields(">qx").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 36
MIN_VERSION = 0
MAX_VERSION = 2


class SaslAuthenticateRequest(Struct, gc=False):
    """The SaslAuthenticate request, versions 0 to 2."""

    # From the client's side of the mechanism.
    auth_bytes: bytes


class SaslAuthenticateResponse(Struct, gc=False):
    """The SaslAuthenticate response, versions 0 to 2."""

    error_code: int = 0
    error_message: str | None = ""
    # From the server's side of the mechanism.
    auth_bytes: bytes = b""
    # After this many ms the client has to authenticate again; 0 never (KIP-368).
    session_lifetime_ms: int = 0


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> SaslAuthenticateRequest:
    """Decode the SaslAuthenticateRequest from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 2:
        raise UnsupportedVersionError(f"version {version} of SaslAuthenticateRequest")
    try:
        if version >= 2:
            return _decode_request_v2(buf, offset, elements_max)
        return _decode_request_v1(buf, offset, elements_max)
    except MALFORMED as error:
        raise DecodeError(f"SaslAuthenticateRequest: {error}") from error


def _decode_request_v1(buf: bytes, at: int, left: int) -> SaslAuthenticateRequest:
    (n,) = _unpack_i(buf, at)
    at += 4
    if n < 0:
        raise DecodeError(f"length {n} before byte {at}")
    left -= n >> 6
    if left < 0:
        raise TooManyElementsError(f"more elements than allowed before byte {at}")
    auth_bytes = buf[at : at + n]
    at += n
    if at != len(buf):
        raise DecodeError(f"SaslAuthenticateRequest ends at byte {at} of {len(buf)}")
    return SaslAuthenticateRequest(auth_bytes)


def _decode_request_v2(buf: bytes, at: int, left: int) -> SaslAuthenticateRequest:
    n = buf[at]
    if not 0 < n < 128:
        n, at = read_bytes_length(buf, at)
        left -= n >> 6
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
    auth_bytes = buf[at + 1 : at + n]
    at += n
    if buf[at]:
        at, left = skip_tags_within(buf, at, left)
    else:
        at += 1
    if at != len(buf):
        raise DecodeError(f"SaslAuthenticateRequest ends at byte {at} of {len(buf)}")
    return SaslAuthenticateRequest(auth_bytes)


def encode_request(message: SaslAuthenticateRequest, version: int) -> bytes:
    """Encode the SaslAuthenticateRequest. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 2:
        raise UnsupportedVersionError(f"version {version} of SaslAuthenticateRequest")
    try:
        if version >= 2:
            return _encode_request_v2(message)
        return _encode_request_v1(message)
    except UNENCODABLE as error:
        raise EncodeError(f"SaslAuthenticateRequest: {error}") from error


def _encode_request_v1(message: SaslAuthenticateRequest) -> bytes:
    auth_bytes = message.auth_bytes
    return b"".join((_pack_i(len(auth_bytes)), auth_bytes))


def _encode_request_v2(message: SaslAuthenticateRequest) -> bytes:
    auth_bytes = message.auth_bytes
    n = len(auth_bytes) + 1
    auth_bytes_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
    return b"".join((auth_bytes_n, auth_bytes, b"\x00"))


def decode_response(buf: bytes, offset: int, version: int) -> SaslAuthenticateResponse:
    """Decode the SaslAuthenticateResponse from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 2:
        raise UnsupportedVersionError(f"version {version} of SaslAuthenticateResponse")
    try:
        if version >= 2:
            return _decode_response_v2(buf, offset)
        if version >= 1:
            return _decode_response_v1(buf, offset)
        return _decode_response_v0(buf, offset)
    except MALFORMED as error:
        raise DecodeError(f"SaslAuthenticateResponse: {error}") from error


def _decode_response_v0(buf: bytes, at: int) -> SaslAuthenticateResponse:
    error_code, n = _unpack_hh(buf, at)
    at += 4
    if n < -1:
        raise DecodeError(f"length {n} before byte {at}")
    if n < 0:
        error_message = None
    else:
        error_message = buf[at : at + n].decode()
        at += n
    (n,) = _unpack_i(buf, at)
    at += 4
    if n < 0:
        raise DecodeError(f"length {n} before byte {at}")
    auth_bytes = buf[at : at + n]
    at += n
    if at != len(buf):
        raise DecodeError(f"SaslAuthenticateResponse ends at byte {at} of {len(buf)}")
    return SaslAuthenticateResponse(error_code, error_message, auth_bytes)


def _decode_response_v1(buf: bytes, at: int) -> SaslAuthenticateResponse:
    error_code, n = _unpack_hh(buf, at)
    at += 4
    if n < -1:
        raise DecodeError(f"length {n} before byte {at}")
    if n < 0:
        error_message = None
    else:
        error_message = buf[at : at + n].decode()
        at += n
    (n,) = _unpack_i(buf, at)
    at += 4
    if n < 0:
        raise DecodeError(f"length {n} before byte {at}")
    auth_bytes = buf[at : at + n]
    at += n
    (session_lifetime_ms,) = _unpack_q(buf, at)
    at += 8
    if at != len(buf):
        raise DecodeError(f"SaslAuthenticateResponse ends at byte {at} of {len(buf)}")
    return SaslAuthenticateResponse(error_code, error_message, auth_bytes, session_lifetime_ms)


def _decode_response_v2(buf: bytes, at: int) -> SaslAuthenticateResponse:
    error_code, n = _unpack_hB(buf, at)
    at += 3
    if n > 127:
        n, at = read_nullable_string_length(buf, at - 1)
    if not n:
        error_message = None
    else:
        error_message = buf[at : at + n - 1].decode()
        at += n - 1
    n = buf[at]
    if not 0 < n < 128:
        n, at = read_bytes_length(buf, at)
    auth_bytes = buf[at + 1 : at + n]
    at += n
    session_lifetime_ms, n = _unpack_qB(buf, at)
    at += 9
    if n:
        at = skip_tags(buf, at - 1)
    if at != len(buf):
        raise DecodeError(f"SaslAuthenticateResponse ends at byte {at} of {len(buf)}")
    return SaslAuthenticateResponse(error_code, error_message, auth_bytes, session_lifetime_ms)


def encode_response(message: SaslAuthenticateResponse, version: int) -> bytes:
    """Encode the SaslAuthenticateResponse. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 2:
        raise UnsupportedVersionError(f"version {version} of SaslAuthenticateResponse")
    try:
        if version >= 2:
            return _encode_response_v2(message)
        if version >= 1:
            return _encode_response_v1(message)
        return _encode_response_v0(message)
    except UNENCODABLE as error:
        raise EncodeError(f"SaslAuthenticateResponse: {error}") from error


def _encode_response_v0(message: SaslAuthenticateResponse) -> bytes:
    if message.error_message is None:
        error_message = b"\xff\xff"
    else:
        error_message = message.error_message.encode()
        error_message = _pack_h(len(error_message)) + error_message
    auth_bytes = message.auth_bytes
    return b"".join((_pack_h(message.error_code), error_message, _pack_i(len(auth_bytes)), auth_bytes))


def _encode_response_v1(message: SaslAuthenticateResponse) -> bytes:
    if message.error_message is None:
        error_message = b"\xff\xff"
    else:
        error_message = message.error_message.encode()
        error_message = _pack_h(len(error_message)) + error_message
    auth_bytes = message.auth_bytes
    parts = [
        _pack_h(message.error_code),
        error_message,
        _pack_i(len(auth_bytes)),
        auth_bytes,
        _pack_q(message.session_lifetime_ms),
    ]
    return b"".join(parts)


def _encode_response_v2(message: SaslAuthenticateResponse) -> bytes:
    if message.error_message is None:
        error_message = b"\x00"
    else:
        error_message = message.error_message.encode()
        n = len(error_message) + 1
        error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        error_message = error_message_n + error_message
    auth_bytes = message.auth_bytes
    n = len(auth_bytes) + 1
    auth_bytes_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
    parts = [
        _pack_h(message.error_code),
        error_message,
        auth_bytes_n,
        auth_bytes,
        _pack_qx(message.session_lifetime_ms),
    ]
    return b"".join(parts)
