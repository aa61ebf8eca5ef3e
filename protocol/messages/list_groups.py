"""ListGroups (API key 16), version 5: request and response.

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
    skip_tags,
    skip_tags_within,
    write_uvarint,
)

_unpack_ihB = Fields(">ihB").unpack_from
_pack_ih = Fields(">ih").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListedGroup",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 16
MIN_VERSION = 5
MAX_VERSION = 5


class ListGroupsRequest(Struct, gc=False):
    """The ListGroups request, version 5."""

    states_filter: list[str]
    types_filter: list[str]


class ListedGroup(Struct, gc=False):
    """An element of `ListGroupsResponse.groups`."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class ListGroupsResponse(Struct, gc=False):
    """The ListGroups response, version 5."""

    throttle_time_ms: int
    error_code: int
    groups: list[ListedGroup]


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> ListGroupsRequest:
    """Decode the ListGroupsRequest from ``offset`` to the end of ``buf``."""
    if version != 5:
        raise UnsupportedVersionError(f"version {version} of ListGroupsRequest")
    try:
        at = offset
        left = elements_max
        n = buf[at]
        at += 1
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        left -= n - 1
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
        states_filter: list[str] = []
        for _ in range(n - 1):
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
                left -= n >> 6
                if left < 0:
                    raise TooManyElementsError(f"more elements than allowed before byte {at}")
            text = buf[at + 1 : at + n].decode()
            at += n
            states_filter.append(text)
        n = buf[at]
        at += 1
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        left -= n - 1
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
        types_filter: list[str] = []
        for _ in range(n - 1):
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
                left -= n >> 6
                if left < 0:
                    raise TooManyElementsError(f"more elements than allowed before byte {at}")
            text = buf[at + 1 : at + n].decode()
            at += n
            types_filter.append(text)
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"ListGroupsRequest ends at byte {at} of {len(buf)}")
        return ListGroupsRequest(states_filter, types_filter)
    except MALFORMED as error:
        raise DecodeError(f"ListGroupsRequest: {error}") from error


def encode_request(message: ListGroupsRequest, version: int) -> bytes:
    """Encode the ListGroupsRequest. Raises EncodeError if a value has no wire form."""
    if version != 5:
        raise UnsupportedVersionError(f"version {version} of ListGroupsRequest")
    try:
        n = len(message.states_filter) + 1
        states_filter_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [states_filter_n]
        for states_filter in message.states_filter:
            states_filter_bytes = states_filter.encode()
            n = len(states_filter_bytes) + 1
            states_filter_bytes_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (states_filter_bytes_n, states_filter_bytes)
        n = len(message.types_filter) + 1
        types_filter_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts.append(types_filter_n)
        for types_filter in message.types_filter:
            types_filter_bytes = types_filter.encode()
            n = len(types_filter_bytes) + 1
            types_filter_bytes_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (types_filter_bytes_n, types_filter_bytes)
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"ListGroupsRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> ListGroupsResponse:
    """Decode the ListGroupsResponse from ``offset`` to the end of ``buf``."""
    if version != 5:
        raise UnsupportedVersionError(f"version {version} of ListGroupsResponse")
    try:
        at = offset
        throttle_time_ms, error_code, n = _unpack_ihB(buf, at)
        at += 7
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        groups: list[ListedGroup] = []
        for _ in range(n - 1):
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
            group_id = buf[at + 1 : at + n].decode()
            at += n
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
            protocol_type = buf[at + 1 : at + n].decode()
            at += n
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
            group_state = buf[at + 1 : at + n].decode()
            at += n
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
            group_type = buf[at + 1 : at + n].decode()
            at += n
            if buf[at]:
                at = skip_tags(buf, at)
            else:
                at += 1
            groups.append(ListedGroup(group_id, protocol_type, group_state, group_type))
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"ListGroupsResponse ends at byte {at} of {len(buf)}")
        return ListGroupsResponse(throttle_time_ms, error_code, groups)
    except MALFORMED as error:
        raise DecodeError(f"ListGroupsResponse: {error}") from error


def encode_response(message: ListGroupsResponse, version: int) -> bytes:
    """Encode the ListGroupsResponse. Raises EncodeError if a value has no wire form."""
    if version != 5:
        raise UnsupportedVersionError(f"version {version} of ListGroupsResponse")
    try:
        n = len(message.groups) + 1
        groups_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [_pack_ih(message.throttle_time_ms, message.error_code), groups_n]
        for group in message.groups:
            group_id = group.group_id.encode()
            n = len(group_id) + 1
            group_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            protocol_type = group.protocol_type.encode()
            n = len(protocol_type) + 1
            protocol_type_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            group_state = group.group_state.encode()
            n = len(group_state) + 1
            group_state_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            group_type = group.group_type.encode()
            n = len(group_type) + 1
            group_type_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (
                group_id_n,
                group_id,
                protocol_type_n,
                protocol_type,
                group_state_n,
                group_state,
                group_type_n,
                group_type,
                b"\x00",
            )
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"ListGroupsResponse: {error}") from error
