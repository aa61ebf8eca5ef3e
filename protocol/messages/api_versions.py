"""ApiVersions (API key 18), versions 0 to 4: request and response.

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
    read_string_length,
    read_uvarint,
    skip_tags,
    skip_tags_within,
    tagged_field_end,
    write_tags,
    write_uvarint,
)

_unpack_bool = Fields(">?").unpack_from
_unpack_hB = Fields(">hB").unpack_from
_unpack_hhB = Fields(">hhB").unpack_from
_unpack_hhh = Fields(">hhh").unpack_from
_unpack_hhhB = Fields(">hhhB").unpack_from
_unpack_hi = Fields(">hi").unpack_from
_unpack_i = Fields(">i").unpack_from
_unpack_q = Fields(">q").unpack_from
_pack_bool = Fields(">?").pack
_pack_h = Fields(">h").pack
_pack_hhh = Fields(">hhh").pack
_pack_hhhx = Fields(">hhhx").pack
_pack_hhx = Fields(">hhx").pack
_pack_hi = Fields(">hi").pack
_pack_i = Fields(">i").pack
_pack_q = Fields(">q").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "ApiVersion",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "FinalizedFeatureKey",
    "SupportedFeatureKey",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 18
MIN_VERSION = 0
MAX_VERSION = 4


class ApiVersionsRequest(Struct, gc=False):
    """The ApiVersions request, versions 0 to 4."""

    # The client library.
    client_software_name: str = ""
    # The version of the client library.
    client_software_version: str = ""


class ApiVersion(Struct, gc=False):
    """An element of `ApiVersionsResponse.api_keys`."""

    api_key: int
    min_version: int
    # Inclusive.
    max_version: int


class SupportedFeatureKey(Struct, gc=False):
    """An element of `ApiVersionsResponse.supported_features`."""

    name: str = ""
    min_version: int = 0
    # Inclusive.
    max_version: int = 0


class FinalizedFeatureKey(Struct, gc=False):
    """An element of `ApiVersionsResponse.finalized_features`."""

    name: str = ""
    max_version_level: int = 0
    min_version_level: int = 0


class ApiVersionsResponse(Struct, gc=False):
    """The ApiVersions response, versions 0 to 4."""

    error_code: int = 0
    # The APIs that are served here.
    api_keys: list[ApiVersion] = []
    throttle_time_ms: int = 0
    # The features that this node could run with.
    supported_features: list[SupportedFeatureKey] = []
    # Grows with each change of the finalized features; -1 unknown.
    finalized_features_epoch: int = -1
    # The features that the cluster runs with.
    finalized_features: list[FinalizedFeatureKey] = []
    # Of the move from ZooKeeper to KRaft.
    zk_migration_ready: bool = False


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> ApiVersionsRequest:
    """Decode the ApiVersionsRequest from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 4:
        raise UnsupportedVersionError(f"version {version} of ApiVersionsRequest")
    try:
        if version >= 3:
            return _decode_request_v4(buf, offset, elements_max)
        return _decode_request_v2(buf, offset, elements_max)
    except MALFORMED as error:
        raise DecodeError(f"ApiVersionsRequest: {error}") from error


def _decode_request_v2(buf: bytes, at: int, left: int) -> ApiVersionsRequest:
    if at != len(buf):
        raise DecodeError(f"ApiVersionsRequest ends at byte {at} of {len(buf)}")
    return ApiVersionsRequest()


def _decode_request_v4(buf: bytes, at: int, left: int) -> ApiVersionsRequest:
    n = buf[at]
    if not 0 < n < 128:
        n, at = read_string_length(buf, at)
        left -= n >> 6
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
    client_software_name = buf[at + 1 : at + n].decode()
    at += n
    n = buf[at]
    if not 0 < n < 128:
        n, at = read_string_length(buf, at)
        left -= n >> 6
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
    client_software_version = buf[at + 1 : at + n].decode()
    at += n
    if buf[at]:
        at, left = skip_tags_within(buf, at, left)
    else:
        at += 1
    if at != len(buf):
        raise DecodeError(f"ApiVersionsRequest ends at byte {at} of {len(buf)}")
    return ApiVersionsRequest(client_software_name, client_software_version)


def encode_request(message: ApiVersionsRequest, version: int) -> bytes:
    """Encode the ApiVersionsRequest. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 4:
        raise UnsupportedVersionError(f"version {version} of ApiVersionsRequest")
    try:
        if version >= 3:
            return _encode_request_v4(message)
        return _encode_request_v2(message)
    except UNENCODABLE as error:
        raise EncodeError(f"ApiVersionsRequest: {error}") from error


def _encode_request_v2(message: ApiVersionsRequest) -> bytes:
    return b"".join(())


def _encode_request_v4(message: ApiVersionsRequest) -> bytes:
    client_software_name = message.client_software_name.encode()
    n = len(client_software_name) + 1
    client_software_name_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
    client_software_version = message.client_software_version.encode()
    n = len(client_software_version) + 1
    client_software_version_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
    parts = [
        client_software_name_n,
        client_software_name,
        client_software_version_n,
        client_software_version,
        b"\x00",
    ]
    return b"".join(parts)


def decode_response(buf: bytes, offset: int, version: int) -> ApiVersionsResponse:
    """Decode the ApiVersionsResponse from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 4:
        raise UnsupportedVersionError(f"version {version} of ApiVersionsResponse")
    try:
        if version >= 3:
            return _decode_response_v4(buf, offset)
        if version >= 1:
            return _decode_response_v2(buf, offset)
        return _decode_response_v0(buf, offset)
    except MALFORMED as error:
        raise DecodeError(f"ApiVersionsResponse: {error}") from error


def _decode_response_v0(buf: bytes, at: int) -> ApiVersionsResponse:
    error_code, n = _unpack_hi(buf, at)
    at += 6
    if n < 0:
        raise DecodeError(f"length {n} before byte {at}")
    api_keys: list[ApiVersion] = []
    for _ in range(n):
        api_key, min_version, max_version = _unpack_hhh(buf, at)
        at += 6
        api_keys.append(ApiVersion(api_key, min_version, max_version))
    if at != len(buf):
        raise DecodeError(f"ApiVersionsResponse ends at byte {at} of {len(buf)}")
    return ApiVersionsResponse(error_code, api_keys)


def _decode_response_v2(buf: bytes, at: int) -> ApiVersionsResponse:
    error_code, n = _unpack_hi(buf, at)
    at += 6
    if n < 0:
        raise DecodeError(f"length {n} before byte {at}")
    api_keys: list[ApiVersion] = []
    for _ in range(n):
        api_key, min_version, max_version = _unpack_hhh(buf, at)
        at += 6
        api_keys.append(ApiVersion(api_key, min_version, max_version))
    (throttle_time_ms,) = _unpack_i(buf, at)
    at += 4
    if at != len(buf):
        raise DecodeError(f"ApiVersionsResponse ends at byte {at} of {len(buf)}")
    return ApiVersionsResponse(error_code, api_keys, throttle_time_ms)


def _decode_response_v4(buf: bytes, at: int) -> ApiVersionsResponse:
    error_code, n = _unpack_hB(buf, at)
    at += 3
    if not 0 < n < 128:
        n, at = read_length(buf, at - 1)
    api_keys: list[ApiVersion] = []
    for _ in range(n - 1):
        api_key, min_version, max_version, n = _unpack_hhhB(buf, at)
        at += 7
        if n:
            at = skip_tags(buf, at - 1)
        api_keys.append(ApiVersion(api_key, min_version, max_version))
    (throttle_time_ms,) = _unpack_i(buf, at)
    at += 4
    supported_features: list[SupportedFeatureKey] = []
    finalized_features_epoch = -1
    finalized_features: list[FinalizedFeatureKey] = []
    zk_migration_ready = False
    n, at = read_uvarint(buf, at)
    for _ in range(n):
        tag, at = read_uvarint(buf, at)
        n, at = read_uvarint(buf, at)
        end = tagged_field_end(buf, at, n)
        if tag == 0:
            n = buf[at]
            at += 1
            if not 0 < n < 128:
                n, at = read_length(buf, at - 1)
            supported_features = []
            for _ in range(n - 1):
                n = buf[at]
                if not 0 < n < 128:
                    n, at = read_string_length(buf, at)
                name = buf[at + 1 : at + n].decode()
                at += n
                min_version, max_version, n = _unpack_hhB(buf, at)
                at += 5
                if n:
                    at = skip_tags(buf, at - 1)
                supported_features.append(SupportedFeatureKey(name, min_version, max_version))
        elif tag == 1:
            (finalized_features_epoch,) = _unpack_q(buf, at)
            at += 8
        elif tag == 2:
            n = buf[at]
            at += 1
            if not 0 < n < 128:
                n, at = read_length(buf, at - 1)
            finalized_features = []
            for _ in range(n - 1):
                n = buf[at]
                if not 0 < n < 128:
                    n, at = read_string_length(buf, at)
                name = buf[at + 1 : at + n].decode()
                at += n
                max_version_level, min_version_level, n = _unpack_hhB(buf, at)
                at += 5
                if n:
                    at = skip_tags(buf, at - 1)
                finalized_features.append(FinalizedFeatureKey(name, max_version_level, min_version_level))
        elif tag == 3:
            (zk_migration_ready,) = _unpack_bool(buf, at)
            at += 1
        else:
            at = end
        if at != end:
            raise DecodeError(f"tag {tag} ends at byte {at}, not at byte {end}")
    if at != len(buf):
        raise DecodeError(f"ApiVersionsResponse ends at byte {at} of {len(buf)}")
    return ApiVersionsResponse(
        error_code,
        api_keys,
        throttle_time_ms,
        supported_features,
        finalized_features_epoch,
        finalized_features,
        zk_migration_ready,
    )


def encode_response(message: ApiVersionsResponse, version: int) -> bytes:
    """Encode the ApiVersionsResponse. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 4:
        raise UnsupportedVersionError(f"version {version} of ApiVersionsResponse")
    try:
        if version >= 3:
            return _encode_response_v4(message)
        if version >= 1:
            return _encode_response_v2(message)
        return _encode_response_v0(message)
    except UNENCODABLE as error:
        raise EncodeError(f"ApiVersionsResponse: {error}") from error


def _encode_response_v0(message: ApiVersionsResponse) -> bytes:
    parts = [_pack_hi(message.error_code, len(message.api_keys))]
    parts += [
        _pack_hhh(api_version.api_key, api_version.min_version, api_version.max_version)
        for api_version in message.api_keys
    ]
    return b"".join(parts)


def _encode_response_v2(message: ApiVersionsResponse) -> bytes:
    parts = [_pack_hi(message.error_code, len(message.api_keys))]
    parts += [
        _pack_hhh(api_version.api_key, api_version.min_version, api_version.max_version)
        for api_version in message.api_keys
    ]
    parts.append(_pack_i(message.throttle_time_ms))
    return b"".join(parts)


def _encode_response_v4(message: ApiVersionsResponse) -> bytes:
    n = len(message.api_keys) + 1
    api_keys_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
    parts = [_pack_h(message.error_code), api_keys_n]
    parts += [
        _pack_hhhx(api_version.api_key, api_version.min_version, api_version.max_version)
        for api_version in message.api_keys
    ]
    tags: list[tuple[int, bytes]] = []
    if message.supported_features:
        n = len(message.supported_features) + 1
        supported_features_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        supported_features_parts = [supported_features_n]
        for supported_feature in message.supported_features:
            name = supported_feature.name.encode()
            n = len(name) + 1
            name_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            fixed_2 = _pack_hhx(supported_feature.min_version, supported_feature.max_version)
            supported_features_parts += (name_n, name, fixed_2)
        tags.append((0, b"".join(supported_features_parts)))
    if message.finalized_features_epoch != -1:
        tags.append((1, _pack_q(message.finalized_features_epoch)))
    if message.finalized_features:
        n = len(message.finalized_features) + 1
        finalized_features_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        finalized_features_parts = [finalized_features_n]
        for finalized_feature in message.finalized_features:
            name = finalized_feature.name.encode()
            n = len(name) + 1
            name_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            fixed_2 = _pack_hhx(finalized_feature.max_version_level, finalized_feature.min_version_level)
            finalized_features_parts += (name_n, name, fixed_2)
        tags.append((2, b"".join(finalized_features_parts)))
    if message.zk_migration_ready:
        tags.append((3, _pack_bool(message.zk_migration_ready)))
    tail = write_tags(tags)
    parts += (_pack_i(message.throttle_time_ms), tail)
    return b"".join(parts)
