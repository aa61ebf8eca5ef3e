"""DescribeShareGroupOffsets (API key 90), version 0: request and response.

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
    read_uvarint,
    skip_tags,
    skip_tags_within,
    write_uvarint,
)

_unpack_16sB = Fields(">16sB").unpack_from
_unpack_hB = Fields(">hB").unpack_from
_unpack_i = Fields(">i").unpack_from
_unpack_iB = Fields(">iB").unpack_from
_unpack_iqihB = Fields(">iqihB").unpack_from
_pack_h = Fields(">h").pack
_pack_hxx = Fields(">hxx").pack
_pack_i = Fields(">i").pack
_pack_iqih = Fields(">iqih").pack
_pack_iqihxx = Fields(">iqihxx").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "DescribeShareGroupOffsetsRequest",
    "DescribeShareGroupOffsetsResponse",
    "DescribedGroup",
    "DescribedPartition",
    "DescribedTopic",
    "RequestedGroup",
    "RequestedTopic",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 90
MIN_VERSION = 0
MAX_VERSION = 0


class RequestedTopic(Struct, gc=False):
    """An element of `RequestedGroup.topics`."""

    topic_name: str
    partitions: list[int]


class RequestedGroup(Struct, gc=False):
    """An element of `DescribeShareGroupOffsetsRequest.groups`."""

    group_id: str
    # Null: all topics.
    topics: list[RequestedTopic] | None


class DescribeShareGroupOffsetsRequest(Struct, gc=False):
    """The DescribeShareGroupOffsets request, version 0."""

    groups: list[RequestedGroup]


class DescribedPartition(Struct, gc=False):
    """An element of `DescribedTopic.partitions`."""

    partition_index: int
    # -1: no record was read yet.
    start_offset: int
    leader_epoch: int
    error_code: int
    error_message: str | None


class DescribedTopic(Struct, gc=False):
    """An element of `DescribedGroup.topics`."""

    topic_name: str
    topic_id: bytes
    partitions: list[DescribedPartition]


class DescribedGroup(Struct, gc=False):
    """An element of `DescribeShareGroupOffsetsResponse.groups`."""

    group_id: str
    topics: list[DescribedTopic]
    error_code: int
    error_message: str | None


class DescribeShareGroupOffsetsResponse(Struct, gc=False):
    """The DescribeShareGroupOffsets response, version 0."""

    throttle_time_ms: int
    groups: list[DescribedGroup]


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> DescribeShareGroupOffsetsRequest:
    """Decode the DescribeShareGroupOffsetsRequest from ``offset`` to the end of ``buf``."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DescribeShareGroupOffsetsRequest")
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
        groups: list[RequestedGroup] = []
        for _ in range(n - 1):
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
                left -= n >> 6
                if left < 0:
                    raise TooManyElementsError(f"more elements than allowed before byte {at}")
            group_id = buf[at + 1 : at + n].decode()
            at += n
            n = buf[at]
            at += 1
            if n > 127:
                n, at = read_uvarint(buf, at - 1)
            topics: list[RequestedTopic] | None = None
            if n:
                left -= n - 1
                if left < 0:
                    raise TooManyElementsError(f"more elements than allowed before byte {at}")
                topics = []
                for _ in range(n - 1):
                    n = buf[at]
                    if not 0 < n < 128:
                        n, at = read_string_length(buf, at)
                        left -= n >> 6
                        if left < 0:
                            raise TooManyElementsError(f"more elements than allowed before byte {at}")
                    topic_name = buf[at + 1 : at + n].decode()
                    at += n
                    n = buf[at]
                    at += 1
                    if not 0 < n < 128:
                        n, at = read_length(buf, at - 1)
                    left -= n - 1
                    if left < 0:
                        raise TooManyElementsError(f"more elements than allowed before byte {at}")
                    partitions: list[int] = []
                    for _ in range(n - 1):
                        (number,) = _unpack_i(buf, at)
                        at += 4
                        partitions.append(number)
                    if buf[at]:
                        at, left = skip_tags_within(buf, at, left)
                    else:
                        at += 1
                    topics.append(RequestedTopic(topic_name, partitions))
            if buf[at]:
                at, left = skip_tags_within(buf, at, left)
            else:
                at += 1
            groups.append(RequestedGroup(group_id, topics))
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"DescribeShareGroupOffsetsRequest ends at byte {at} of {len(buf)}")
        return DescribeShareGroupOffsetsRequest(groups)
    except MALFORMED as error:
        raise DecodeError(f"DescribeShareGroupOffsetsRequest: {error}") from error


def encode_request(message: DescribeShareGroupOffsetsRequest, version: int) -> bytes:
    """Encode the DescribeShareGroupOffsetsRequest. Raises EncodeError if a value has no wire form."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DescribeShareGroupOffsetsRequest")
    try:
        n = len(message.groups) + 1
        groups_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [groups_n]
        for group in message.groups:
            group_id = group.group_id.encode()
            n = len(group_id) + 1
            group_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (group_id_n, group_id)
            if group.topics is None:
                parts.append(b"\x00")
            else:
                n = len(group.topics) + 1
                topics_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                parts.append(topics_n)
                for topic in group.topics:
                    topic_name = topic.topic_name.encode()
                    n = len(topic_name) + 1
                    topic_name_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    n = len(topic.partitions) + 1
                    partitions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    parts += (topic_name_n, topic_name, partitions_n)
                    parts += [_pack_i(partition) for partition in topic.partitions]
                    parts.append(b"\x00")
            parts.append(b"\x00")
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"DescribeShareGroupOffsetsRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> DescribeShareGroupOffsetsResponse:
    """Decode the DescribeShareGroupOffsetsResponse from ``offset`` to the end of ``buf``."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DescribeShareGroupOffsetsResponse")
    try:
        at = offset
        throttle_time_ms, n = _unpack_iB(buf, at)
        at += 5
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        groups: list[DescribedGroup] = []
        for _ in range(n - 1):
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
            group_id = buf[at + 1 : at + n].decode()
            at += n
            n = buf[at]
            at += 1
            if not 0 < n < 128:
                n, at = read_length(buf, at - 1)
            topics: list[DescribedTopic] = []
            for _ in range(n - 1):
                n = buf[at]
                if not 0 < n < 128:
                    n, at = read_string_length(buf, at)
                topic_name = buf[at + 1 : at + n].decode()
                at += n
                topic_id, n = _unpack_16sB(buf, at)
                at += 17
                if not 0 < n < 128:
                    n, at = read_length(buf, at - 1)
                partitions: list[DescribedPartition] = []
                for _ in range(n - 1):
                    partition_index, start_offset, leader_epoch, described_partition_error_code, n = (
                        _unpack_iqihB(buf, at)
                    )
                    at += 19
                    if n > 127:
                        n, at = read_nullable_string_length(buf, at - 1)
                    if not n:
                        described_partition_error_message = None
                    else:
                        described_partition_error_message = buf[at : at + n - 1].decode()
                        at += n - 1
                    if buf[at]:
                        at = skip_tags(buf, at)
                    else:
                        at += 1
                    described_partition = DescribedPartition(
                        partition_index,
                        start_offset,
                        leader_epoch,
                        described_partition_error_code,
                        described_partition_error_message,
                    )
                    partitions.append(described_partition)
                if buf[at]:
                    at = skip_tags(buf, at)
                else:
                    at += 1
                topics.append(DescribedTopic(topic_name, topic_id, partitions))
            error_code, n = _unpack_hB(buf, at)
            at += 3
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
            groups.append(DescribedGroup(group_id, topics, error_code, error_message))
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"DescribeShareGroupOffsetsResponse ends at byte {at} of {len(buf)}")
        return DescribeShareGroupOffsetsResponse(throttle_time_ms, groups)
    except MALFORMED as error:
        raise DecodeError(f"DescribeShareGroupOffsetsResponse: {error}") from error


def encode_response(message: DescribeShareGroupOffsetsResponse, version: int) -> bytes:
    """Encode the DescribeShareGroupOffsetsResponse. Raises EncodeError if a value has no wire form."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DescribeShareGroupOffsetsResponse")
    try:
        n = len(message.groups) + 1
        groups_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [_pack_i(message.throttle_time_ms), groups_n]
        for group in message.groups:
            group_id = group.group_id.encode()
            n = len(group_id) + 1
            group_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            n = len(group.topics) + 1
            topics_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (group_id_n, group_id, topics_n)
            for topic in group.topics:
                topic_name = topic.topic_name.encode()
                n = len(topic_name) + 1
                topic_name_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                if len(topic.topic_id) != 16:
                    raise EncodeError("topic_id is not 16 bytes long")
                n = len(topic.partitions) + 1
                partitions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                parts += (topic_name_n, topic_name, topic.topic_id, partitions_n)
                for partition in topic.partitions:
                    if partition.error_message is None:
                        fixed_0 = _pack_iqihxx(
                            partition.partition_index,
                            partition.start_offset,
                            partition.leader_epoch,
                            partition.error_code,
                        )
                        parts.append(fixed_0)
                    else:
                        error_message = partition.error_message.encode()
                        fixed_0 = _pack_iqih(
                            partition.partition_index,
                            partition.start_offset,
                            partition.leader_epoch,
                            partition.error_code,
                        )
                        n = len(error_message) + 1
                        error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                        parts += (fixed_0, error_message_n, error_message, b"\x00")
                parts.append(b"\x00")
            if group.error_message is None:
                parts.append(_pack_hxx(group.error_code))
            else:
                error_message = group.error_message.encode()
                n = len(error_message) + 1
                error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                parts += (_pack_h(group.error_code), error_message_n, error_message, b"\x00")
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"DescribeShareGroupOffsetsResponse: {error}") from error
