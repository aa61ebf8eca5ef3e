"""ShareGroupDescribe (API key 77), version 1: request and response.

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

_unpack_16sB = Fields(">16sB").unpack_from
_unpack_boolB = Fields(">?B").unpack_from
_unpack_hB = Fields(">hB").unpack_from
_unpack_i = Fields(">i").unpack_from
_unpack_iB = Fields(">iB").unpack_from
_unpack_iiB = Fields(">iiB").unpack_from
_pack_boolx = Fields(">?x").pack
_pack_h = Fields(">h").pack
_pack_i = Fields(">i").pack
_pack_ii = Fields(">ii").pack
_pack_ix = Fields(">ix").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "Assignment",
    "DescribedGroup",
    "Member",
    "ShareGroupDescribeRequest",
    "ShareGroupDescribeResponse",
    "TopicPartitions",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 77
MIN_VERSION = 1
MAX_VERSION = 1


class ShareGroupDescribeRequest(Struct, gc=False):
    """The ShareGroupDescribe request, version 1."""

    group_ids: list[str]
    include_authorized_operations: bool


class TopicPartitions(Struct, gc=False):
    """An element of `Assignment.topic_partitions`."""

    topic_id: bytes
    topic_name: str
    partitions: list[int]


class Assignment(Struct, gc=False):
    """The value of `Member.assignment`."""

    topic_partitions: list[TopicPartitions]


class Member(Struct, gc=False):
    """An element of `DescribedGroup.members`."""

    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    assignment: Assignment


class DescribedGroup(Struct, gc=False):
    """An element of `ShareGroupDescribeResponse.groups`."""

    error_code: int
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: list[Member]
    authorized_operations: int


class ShareGroupDescribeResponse(Struct, gc=False):
    """The ShareGroupDescribe response, version 1."""

    throttle_time_ms: int
    groups: list[DescribedGroup]


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> ShareGroupDescribeRequest:
    """Decode the ShareGroupDescribeRequest from ``offset`` to the end of ``buf``."""
    if version != 1:
        raise UnsupportedVersionError(f"version {version} of ShareGroupDescribeRequest")
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
        group_ids: list[str] = []
        for _ in range(n - 1):
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
                left -= n >> 6
                if left < 0:
                    raise TooManyElementsError(f"more elements than allowed before byte {at}")
            text = buf[at + 1 : at + n].decode()
            at += n
            group_ids.append(text)
        include_authorized_operations, n = _unpack_boolB(buf, at)
        at += 2
        if n:
            at, left = skip_tags_within(buf, at - 1, left)
        if at != len(buf):
            raise DecodeError(f"ShareGroupDescribeRequest ends at byte {at} of {len(buf)}")
        return ShareGroupDescribeRequest(group_ids, include_authorized_operations)
    except MALFORMED as error:
        raise DecodeError(f"ShareGroupDescribeRequest: {error}") from error


def encode_request(message: ShareGroupDescribeRequest, version: int) -> bytes:
    """Encode the ShareGroupDescribeRequest. Raises EncodeError if a value has no wire form."""
    if version != 1:
        raise UnsupportedVersionError(f"version {version} of ShareGroupDescribeRequest")
    try:
        n = len(message.group_ids) + 1
        group_ids_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [group_ids_n]
        for group_id in message.group_ids:
            group_id_bytes = group_id.encode()
            n = len(group_id_bytes) + 1
            group_id_bytes_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (group_id_bytes_n, group_id_bytes)
        parts.append(_pack_boolx(message.include_authorized_operations))
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"ShareGroupDescribeRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> ShareGroupDescribeResponse:
    """Decode the ShareGroupDescribeResponse from ``offset`` to the end of ``buf``."""
    if version != 1:
        raise UnsupportedVersionError(f"version {version} of ShareGroupDescribeResponse")
    try:
        at = offset
        throttle_time_ms, n = _unpack_iB(buf, at)
        at += 5
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        groups: list[DescribedGroup] = []
        for _ in range(n - 1):
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
                n, at = read_string_length(buf, at)
            group_id = buf[at + 1 : at + n].decode()
            at += n
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
            group_state = buf[at + 1 : at + n].decode()
            at += n
            group_epoch, assignment_epoch, n = _unpack_iiB(buf, at)
            at += 8
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
            assignor_name = buf[at + 1 : at + n].decode()
            at += n
            n = buf[at]
            at += 1
            if not 0 < n < 128:
                n, at = read_length(buf, at - 1)
            members: list[Member] = []
            for _ in range(n - 1):
                n = buf[at]
                if not 0 < n < 128:
                    n, at = read_string_length(buf, at)
                member_id = buf[at + 1 : at + n].decode()
                at += n
                n = buf[at]
                at += 1
                if n > 127:
                    n, at = read_nullable_string_length(buf, at - 1)
                if not n:
                    rack_id = None
                else:
                    rack_id = buf[at : at + n - 1].decode()
                    at += n - 1
                member_epoch, n = _unpack_iB(buf, at)
                at += 4
                if not 0 < n < 128:
                    n, at = read_string_length(buf, at)
                client_id = buf[at + 1 : at + n].decode()
                at += n
                n = buf[at]
                if not 0 < n < 128:
                    n, at = read_string_length(buf, at)
                client_host = buf[at + 1 : at + n].decode()
                at += n
                n = buf[at]
                at += 1
                if not 0 < n < 128:
                    n, at = read_length(buf, at - 1)
                subscribed_topic_names: list[str] = []
                for _ in range(n - 1):
                    n = buf[at]
                    if not 0 < n < 128:
                        n, at = read_string_length(buf, at)
                    text = buf[at + 1 : at + n].decode()
                    at += n
                    subscribed_topic_names.append(text)
                n = buf[at]
                at += 1
                if not 0 < n < 128:
                    n, at = read_length(buf, at - 1)
                topic_partitions: list[TopicPartitions] = []
                for _ in range(n - 1):
                    topic_id, n = _unpack_16sB(buf, at)
                    at += 16
                    if not 0 < n < 128:
                        n, at = read_string_length(buf, at)
                    topic_name = buf[at + 1 : at + n].decode()
                    at += n
                    n = buf[at]
                    at += 1
                    if not 0 < n < 128:
                        n, at = read_length(buf, at - 1)
                    partitions: list[int] = []
                    for _ in range(n - 1):
                        (number,) = _unpack_i(buf, at)
                        at += 4
                        partitions.append(number)
                    if buf[at]:
                        at = skip_tags(buf, at)
                    else:
                        at += 1
                    topic_partitions.append(TopicPartitions(topic_id, topic_name, partitions))
                if buf[at]:
                    at = skip_tags(buf, at)
                else:
                    at += 1
                assignment = Assignment(topic_partitions)
                if buf[at]:
                    at = skip_tags(buf, at)
                else:
                    at += 1
                member = Member(
                    member_id,
                    rack_id,
                    member_epoch,
                    client_id,
                    client_host,
                    subscribed_topic_names,
                    assignment,
                )
                members.append(member)
            authorized_operations, n = _unpack_iB(buf, at)
            at += 5
            if n:
                at = skip_tags(buf, at - 1)
            described_group = DescribedGroup(
                error_code,
                error_message,
                group_id,
                group_state,
                group_epoch,
                assignment_epoch,
                assignor_name,
                members,
                authorized_operations,
            )
            groups.append(described_group)
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"ShareGroupDescribeResponse ends at byte {at} of {len(buf)}")
        return ShareGroupDescribeResponse(throttle_time_ms, groups)
    except MALFORMED as error:
        raise DecodeError(f"ShareGroupDescribeResponse: {error}") from error


def encode_response(message: ShareGroupDescribeResponse, version: int) -> bytes:
    """Encode the ShareGroupDescribeResponse. Raises EncodeError if a value has no wire form."""
    if version != 1:
        raise UnsupportedVersionError(f"version {version} of ShareGroupDescribeResponse")
    try:
        n = len(message.groups) + 1
        groups_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [_pack_i(message.throttle_time_ms), groups_n]
        for group in message.groups:
            if group.error_message is None:
                error_message = b"\x00"
            else:
                error_message = group.error_message.encode()
                n = len(error_message) + 1
                error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                error_message = error_message_n + error_message
            group_id = group.group_id.encode()
            n = len(group_id) + 1
            group_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            group_state = group.group_state.encode()
            n = len(group_state) + 1
            group_state_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            assignor_name = group.assignor_name.encode()
            n = len(assignor_name) + 1
            assignor_name_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            n = len(group.members) + 1
            members_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (
                _pack_h(group.error_code),
                error_message,
                group_id_n,
                group_id,
                group_state_n,
                group_state,
                _pack_ii(group.group_epoch, group.assignment_epoch),
                assignor_name_n,
                assignor_name,
                members_n,
            )
            for member in group.members:
                member_id = member.member_id.encode()
                n = len(member_id) + 1
                member_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                if member.rack_id is None:
                    rack_id = b"\x00"
                else:
                    rack_id = member.rack_id.encode()
                    n = len(rack_id) + 1
                    rack_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    rack_id = rack_id_n + rack_id
                client_id = member.client_id.encode()
                n = len(client_id) + 1
                client_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                client_host = member.client_host.encode()
                n = len(client_host) + 1
                client_host_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                n = len(member.subscribed_topic_names) + 1
                subscribed_topic_names_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                parts += (
                    member_id_n,
                    member_id,
                    rack_id,
                    _pack_i(member.member_epoch),
                    client_id_n,
                    client_id,
                    client_host_n,
                    client_host,
                    subscribed_topic_names_n,
                )
                for subscribed_topic_name in member.subscribed_topic_names:
                    subscribed_topic_name_bytes = subscribed_topic_name.encode()
                    n = len(subscribed_topic_name_bytes) + 1
                    subscribed_topic_name_bytes_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    parts += (subscribed_topic_name_bytes_n, subscribed_topic_name_bytes)
                n = len(member.assignment.topic_partitions) + 1
                topic_partitions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                parts.append(topic_partitions_n)
                for topic_partition in member.assignment.topic_partitions:
                    if len(topic_partition.topic_id) != 16:
                        raise EncodeError("topic_id is not 16 bytes long")
                    topic_name = topic_partition.topic_name.encode()
                    n = len(topic_name) + 1
                    topic_name_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    n = len(topic_partition.partitions) + 1
                    partitions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    parts += (topic_partition.topic_id, topic_name_n, topic_name, partitions_n)
                    parts += [_pack_i(partition) for partition in topic_partition.partitions]
                    parts.append(b"\x00")
                parts.append(b"\x00\x00")
            parts.append(_pack_ix(group.authorized_operations))
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"ShareGroupDescribeResponse: {error}") from error
