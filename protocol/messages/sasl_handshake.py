"""SaslHandshake (API key 17), versions 0 to 1: request and response.

Generated from the schemas by ``python -m protocol.codegen``; do not edit.
"""

from struct import Struct as Fields

from msgspec import Struct

from protocol.errors import DecodeError, EncodeError, TooManyElementsError, UnsupportedVersionError
from protocol.wire import ELEMENTS_MAX, MALFORMED, UNENCODABLE

_unpack_h = Fields(">h").unpack_from
_unpack_hi = Fields(">hi").unpack_from
_pack_h = Fields(">h").pack
_pack_hi = Fields(">hi").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 17
MIN_VERSION = 0
MAX_VERSION = 1


class SaslHandshakeRequest(Struct, gc=False):
    """The SaslHandshake request, versions 0 to 1."""

    # The SASL mechanism that the client wants.
    mechanism: str


class SaslHandshakeResponse(Struct, gc=False):
    """The SaslHandshake response, versions 0 to 1."""

    error_code: int = 0
    # The SASL mechanisms that are enabled.
    mechanisms: list[str] = []


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> SaslHandshakeRequest:
    """Decode the SaslHandshakeRequest from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of SaslHandshakeRequest")
    try:
        at = offset
        left = elements_max
        (n,) = _unpack_h(buf, at)
        at += 2
        if n < 0:
            raise DecodeError(f"length {n} before byte {at}")
        left -= n >> 6
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
        mechanism = buf[at : at + n].decode()
        at += n
        if at != len(buf):
            raise DecodeError(f"SaslHandshakeRequest ends at byte {at} of {len(buf)}")
        return SaslHandshakeRequest(mechanism)
    except MALFORMED as error:
        raise DecodeError(f"SaslHandshakeRequest: {error}") from error


def encode_request(message: SaslHandshakeRequest, version: int) -> bytes:
    """Encode the SaslHandshakeRequest. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of SaslHandshakeRequest")
    try:
        mechanism = message.mechanism.encode()
        return b"".join((_pack_h(len(mechanism)), mechanism))
    except UNENCODABLE as error:
        raise EncodeError(f"SaslHandshakeRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> SaslHandshakeResponse:
    """Decode the SaslHandshakeResponse from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of SaslHandshakeResponse")
    try:
        at = offset
        error_code, n = _unpack_hi(buf, at)
        at += 6
        if n < 0:
            raise DecodeError(f"length {n} before byte {at}")
        mechanisms: list[str] = []
        for _ in range(n):
            (n,) = _unpack_h(buf, at)
            at += 2
            if n < 0:
                raise DecodeError(f"length {n} before byte {at}")
            text = buf[at : at + n].decode()
            at += n
            mechanisms.append(text)
        if at != len(buf):
            raise DecodeError(f"SaslHandshakeResponse ends at byte {at} of {len(buf)}")
        return SaslHandshakeResponse(error_code, mechanisms)
    except MALFORMED as error:
        raise DecodeError(f"SaslHandshakeResponse: {error}") from error


def encode_response(message: SaslHandshakeResponse, version: int) -> bytes:
    """Encode the SaslHandshakeResponse. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of SaslHandshakeResponse")
    try:
        parts = [_pack_hi(message.error_code, len(message.mechanisms))]
        for mechanism in message.mechanisms:
            mechanism_bytes = mechanism.encode()
            parts += (_pack_h(len(mechanism_bytes)), mechanism_bytes)
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"SaslHandshakeResponse: {error}") from error
