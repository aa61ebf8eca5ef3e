"""FindCoordinator (API key 10), versions 0 to 6: request and response.

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
    read_length,
    read_nullable_string_length,
    read_string_length,
    skip_tags,
    skip_tags_within,
    write_uvarint,
)

_unpack_b = Fields(">b").unpack_from
_unpack_bB = Fields(">bB").unpack_from
_unpack_h = Fields(">h").unpack_from
_unpack_hih = Fields(">hih").unpack_from
_unpack_i = Fields(">i").unpack_from
_unpack_iB = Fields(">iB").unpack_from
_unpack_ih = Fields(">ih").unpack_from
_unpack_ihB = Fields(">ihB").unpack_from
_unpack_ihh = Fields(">ihh").unpack_from
_pack_b = Fields(">b").pack
_pack_bx = Fields(">bx").pack
_pack_h = Fields(">h").pack
_pack_hih = Fields(">hih").pack
_pack_i = Fields(">i").pack
_pack_ih = Fields(">ih").pack
_pack_ihxx = Fields(">ihxx").pack
_pack_ix = Fields(">ix").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "Coordinator",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 10
MIN_VERSION = 0
MAX_VERSION = 6


class FindCoordinatorRequest(Struct, gc=False):
    """The FindCoordinator request, versions 0 to 6."""

    # The one key asked for.
    key: str = ""
    # 0 group, 1 transaction, 2 share.
    key_type: int = 0
    # The keys asked for.
    coordinator_keys: list[str] = []


class Coordinator(Struct, gc=False):
    """An element of `FindCoordinatorResponse.coordinators`."""

    # As it was asked for.
    key: str = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    error_code: int = 0
    error_message: str | None = ""


class FindCoordinatorResponse(Struct, gc=False):
    """The FindCoordinator response, versions 0 to 6."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    # One for each key asked for.
    coordinators: list[Coordinator] = []


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> FindCoordinatorRequest:
    """Decode the FindCoordinatorRequest from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 6:
        raise UnsupportedVersionError(f"version {version} of FindCoordinatorRequest")
    try:
        if version >= 4:
            return _decode_request_v6(buf, offset, elements_max)
        if version >= 3:
            return _decode_request_v3(buf, offset, elements_max)
        if version >= 1:
            return _decode_request_v2(buf, offset, elements_max)
        return _decode_request_v0(buf, offset, elements_max)
    except MALFORMED as error:
        raise DecodeError(f"FindCoordinatorRequest: {error}") from error


def _decode_request_v0(buf: bytes, at: int, left: int) -> FindCoordinatorRequest:
    (n,) = _unpack_h(buf, at)
    at += 2
    if n < 0:
        raise DecodeError(f"length {n} before byte {at}")
    left -= n >> 6
    if left < 0:
        raise TooManyElementsError(f"more elements than allowed before byte {at}")
    key = buf[at : at + n].decode()
    at += n
    if at != len(buf):
        raise DecodeError(f"FindCoordinatorRequest ends at byte {at} of {len(buf)}")
    return FindCoordinatorRequest(key)


def _decode_request_v2(buf: bytes, at: int, left: int) -> FindCoordinatorRequest:
    (n,) = _unpack_h(buf, at)
    at += 2
    if n < 0:
        raise DecodeError(f"length {n} before byte {at}")
    left -= n >> 6
    if left < 0:
        raise TooManyElementsError(f"more elements than allowed before byte {at}")
    key = buf[at : at + n].decode()
    at += n
    (key_type,) = _unpack_b(buf, at)
    at += 1
    if at != len(buf):
        raise DecodeError(f"FindCoordinatorRequest ends at byte {at} of {len(buf)}")
    return FindCoordinatorRequest(key, key_type)


def _decode_request_v3(buf: bytes, at: int, left: int) -> FindCoordinatorRequest:
    n = buf[at]
    if not 0 < n < 128:
        n, at = read_string_length(buf, at)
        left -= n >> 6
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
    key = buf[at + 1 : at + n].decode()
    at += n
    key_type, n = _unpack_bB(buf, at)
    at += 2
    if n:
        at, left = skip_tags_within(buf, at - 1, left)
    if at != len(buf):
        raise DecodeError(f"FindCoordinatorRequest ends at byte {at} of {len(buf)}")
    return FindCoordinatorRequest(key, key_type)


def _decode_request_v6(buf: bytes, at: int, left: int) -> FindCoordinatorRequest:
    key_type, n = _unpack_bB(buf, at)
    at += 2
    if not 0 < n < 128:
        n, at = read_length(buf, at - 1)
    left -= n - 1
    if left < 0:
        raise TooManyElementsError(f"more elements than allowed before byte {at}")
    coordinator_keys: list[str] = []
    for _ in range(n - 1):
        n = buf[at]
        if not 0 < n < 128:
            n, at = read_string_length(buf, at)
            left -= n >> 6
            if left < 0:
                raise TooManyElementsError(f"more elements than allowed before byte {at}")
        text = buf[at + 1 : at + n].decode()
        at += n
        coordinator_keys.append(text)
    if buf[at]:
        at, left = skip_tags_within(buf, at, left)
    else:
        at += 1
    if at != len(buf):
        raise DecodeError(f"FindCoordinatorRequest ends at byte {at} of {len(buf)}")
    return FindCoordinatorRequest("", key_type, coordinator_keys)


def encode_request(message: FindCoordinatorRequest, version: int) -> bytes:
    """Encode the FindCoordinatorRequest. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 6:
        raise UnsupportedVersionError(f"version {version} of FindCoordinatorRequest")
    try:
        if version >= 4:
            return _encode_request_v6(message)
        if version >= 3:
            return _encode_request_v3(message)
        if version >= 1:
            return _encode_request_v2(message)
        return _encode_request_v0(message)
    except UNENCODABLE as error:
        raise EncodeError(f"FindCoordinatorRequest: {error}") from error


def _encode_request_v0(message: FindCoordinatorRequest) -> bytes:
    if message.key_type or message.coordinator_keys:
        raise EncodeError("version 0 of FindCoordinatorRequest has no key_type, coordinator_keys")
    key = message.key.encode()
    return b"".join((_pack_h(len(key)), key))


def _encode_request_v2(message: FindCoordinatorRequest) -> bytes:
    if message.coordinator_keys:
        raise EncodeError("version 2 of FindCoordinatorRequest has no coordinator_keys")
    key = message.key.encode()
    return b"".join((_pack_h(len(key)), key, _pack_b(message.key_type)))


def _encode_request_v3(message: FindCoordinatorRequest) -> bytes:
    if message.coordinator_keys:
        raise EncodeError("version 3 of FindCoordinatorRequest has no coordinator_keys")
    key = message.key.encode()
    n = len(key) + 1
    key_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
    return b"".join((key_n, key, _pack_bx(message.key_type)))


def _encode_request_v6(message: FindCoordinatorRequest) -> bytes:
    if message.key:
        raise EncodeError("version 6 of FindCoordinatorRequest has no key")
    n = len(message.coordinator_keys) + 1
    coordinator_keys_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
    parts = [_pack_b(message.key_type), coordinator_keys_n]
    for coordinator_key in message.coordinator_keys:
        coordinator_key_bytes = coordinator_key.encode()
        n = len(coordinator_key_bytes) + 1
        coordinator_key_bytes_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts += (coordinator_key_bytes_n, coordinator_key_bytes)
    parts.append(b"\x00")
    return b"".join(parts)


def decode_response(buf: bytes, offset: int, version: int) -> FindCoordinatorResponse:
    """Decode the FindCoordinatorResponse from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 6:
        raise UnsupportedVersionError(f"version {version} of FindCoordinatorResponse")
    try:
        if version >= 4:
            return _decode_response_v6(buf, offset)
        if version >= 3:
            return _decode_response_v3(buf, offset)
        if version >= 1:
            return _decode_response_v2(buf, offset)
        return _decode_response_v0(buf, offset)
    except MALFORMED as error:
        raise DecodeError(f"FindCoordinatorResponse: {error}") from error


def _decode_response_v0(buf: bytes, at: int) -> FindCoordinatorResponse:
    error_code, node_id, n = _unpack_hih(buf, at)
    at += 8
    if n < 0:
        raise DecodeError(f"length {n} before byte {at}")
    host = buf[at : at + n].decode()
    at += n
    (port,) = _unpack_i(buf, at)
    at += 4
    if at != len(buf):
        raise DecodeError(f"FindCoordinatorResponse ends at byte {at} of {len(buf)}")
    return FindCoordinatorResponse(0, error_code, "", node_id, host, port)


def _decode_response_v2(buf: bytes, at: int) -> FindCoordinatorResponse:
    throttle_time_ms, error_code, n = _unpack_ihh(buf, at)
    at += 8
    if n < -1:
        raise DecodeError(f"length {n} before byte {at}")
    if n < 0:
        error_message = None
    else:
        error_message = buf[at : at + n].decode()
        at += n
    node_id, n = _unpack_ih(buf, at)
    at += 6
    if n < 0:
        raise DecodeError(f"length {n} before byte {at}")
    host = buf[at : at + n].decode()
    at += n
    (port,) = _unpack_i(buf, at)
    at += 4
    if at != len(buf):
        raise DecodeError(f"FindCoordinatorResponse ends at byte {at} of {len(buf)}")
    return FindCoordinatorResponse(throttle_time_ms, error_code, error_message, node_id, host, port)


def _decode_response_v3(buf: bytes, at: int) -> FindCoordinatorResponse:
    throttle_time_ms, error_code, n = _unpack_ihB(buf, at)
    at += 7
    if n > 127:
        n, at = read_nullable_string_length(buf, at - 1)
    if not n:
        error_message = None
    else:
        error_message = buf[at : at + n - 1].decode()
        at += n - 1
    node_id, n = _unpack_iB(buf, at)
    at += 4
    if not 0 < n < 128:
        n, at = read_string_length(buf, at)
    host = buf[at + 1 : at + n].decode()
    at += n
    port, n = _unpack_iB(buf, at)
    at += 5
    if n:
        at = skip_tags(buf, at - 1)
    if at != len(buf):
        raise DecodeError(f"FindCoordinatorResponse ends at byte {at} of {len(buf)}")
    return FindCoordinatorResponse(throttle_time_ms, error_code, error_message, node_id, host, port)


def _decode_response_v6(buf: bytes, at: int) -> FindCoordinatorResponse:
    throttle_time_ms, n = _unpack_iB(buf, at)
    at += 5
    if not 0 < n < 128:
        n, at = read_length(buf, at - 1)
    coordinators: list[Coordinator] = []
    for _ in range(n - 1):
        n = buf[at]
        if not 0 < n < 128:
            n, at = read_string_length(buf, at)
        key = buf[at + 1 : at + n].decode()
        at += n
        node_id, n = _unpack_iB(buf, at)
        at += 4
        if not 0 < n < 128:
            n, at = read_string_length(buf, at)
        host = buf[at + 1 : at + n].decode()
        at += n
        port, error_code, n = _unpack_ihB(buf, at)
        at += 7
        if n > 127:
            n, at = read_nullable_string_length(buf, at - 1)
        if not n:
            error_message = None
        else:
            error_message = buf[at : at + n - 1].decode()
            at += n - 1
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        coordinators.append(Coordinator(key, node_id, host, port, error_code, error_message))
    if buf[at]:
        at = skip_tags(buf, at)
    else:
        at += 1
    if at != len(buf):
        raise DecodeError(f"FindCoordinatorResponse ends at byte {at} of {len(buf)}")
    return FindCoordinatorResponse(throttle_time_ms, 0, "", 0, "", 0, coordinators)


def encode_response(message: FindCoordinatorResponse, version: int) -> bytes:
    """Encode the FindCoordinatorResponse. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 6:
        raise UnsupportedVersionError(f"version {version} of FindCoordinatorResponse")
    try:
        if version >= 4:
            return _encode_response_v6(message)
        if version >= 3:
            return _encode_response_v3(message)
        if version >= 1:
            return _encode_response_v2(message)
        return _encode_response_v0(message)
    except UNENCODABLE as error:
        raise EncodeError(f"FindCoordinatorResponse: {error}") from error


def _encode_response_v0(message: FindCoordinatorResponse) -> bytes:
    if message.coordinators:
        raise EncodeError("version 0 of FindCoordinatorResponse has no coordinators")
    host = message.host.encode()
    return b"".join((_pack_hih(message.error_code, message.node_id, len(host)), host, _pack_i(message.port)))


def _encode_response_v2(message: FindCoordinatorResponse) -> bytes:
    if message.coordinators:
        raise EncodeError("version 2 of FindCoordinatorResponse has no coordinators")
    if message.error_message is None:
        error_message = b"\xff\xff"
    else:
        error_message = message.error_message.encode()
        error_message = _pack_h(len(error_message)) + error_message
    host = message.host.encode()
    parts = [
        _pack_ih(message.throttle_time_ms, message.error_code),
        error_message,
        _pack_ih(message.node_id, len(host)),
        host,
        _pack_i(message.port),
    ]
    return b"".join(parts)


def _encode_response_v3(message: FindCoordinatorResponse) -> bytes:
    if message.coordinators:
        raise EncodeError("version 3 of FindCoordinatorResponse has no coordinators")
    if message.error_message is None:
        error_message = b"\x00"
    else:
        error_message = message.error_message.encode()
        n = len(error_message) + 1
        error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        error_message = error_message_n + error_message
    host = message.host.encode()
    n = len(host) + 1
    host_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
    parts = [
        _pack_ih(message.throttle_time_ms, message.error_code),
        error_message,
        _pack_i(message.node_id),
        host_n,
        host,
        _pack_ix(message.port),
    ]
    return b"".join(parts)


def _encode_response_v6(message: FindCoordinatorResponse) -> bytes:
    if message.error_code or message.node_id or message.host or message.port:
        raise EncodeError("version 6 of FindCoordinatorResponse has no error_code, node_id, host, port")
    n = len(message.coordinators) + 1
    coordinators_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
    parts = [_pack_i(message.throttle_time_ms), coordinators_n]
    for coordinator in message.coordinators:
        key = coordinator.key.encode()
        n = len(key) + 1
        key_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        host = coordinator.host.encode()
        n = len(host) + 1
        host_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        if coordinator.error_message is None:
            parts += (
                key_n,
                key,
                _pack_i(coordinator.node_id),
                host_n,
                host,
                _pack_ihxx(coordinator.port, coordinator.error_code),
            )
        else:
            error_message = coordinator.error_message.encode()
            n = len(error_message) + 1
            error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (
                key_n,
                key,
                _pack_i(coordinator.node_id),
                host_n,
                host,
                _pack_ih(coordinator.port, coordinator.error_code),
                error_message_n,
                error_message,
                b"\x00",
            )
    parts.append(b"\x00")
    return b"".join(parts)
