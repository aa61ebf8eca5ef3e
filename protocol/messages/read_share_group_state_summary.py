"""ReadShareGroupStateSummary (API key 87), versions 0 to 1: request and response.

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
_unpack_ihB = Fields(">ihB").unpack_from
_unpack_iiB = Fields(">iiB").unpack_from
_unpack_iiqB = Fields(">iiqB").unpack_from
_unpack_iiqiB = Fields(">iiqiB").unpack_from
_pack_ih = Fields(">ih").pack
_pack_ihxiiqix = Fields(">ihxiiqix").pack
_pack_ihxiiqx = Fields(">ihxiiqx").pack
_pack_iiqix = Fields(">iiqix").pack
_pack_iiqx = Fields(">iiqx").pack
_pack_iix = Fields(">iix").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "PartitionData",
    "PartitionResult",
    "ReadShareGroupStateSummaryRequest",
    "ReadShareGroupStateSummaryResponse",
    "ReadStateSummaryData",
    "ReadStateSummaryResult",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 87
MIN_VERSION = 0
MAX_VERSION = 1


class PartitionData(Struct, gc=False):
    """An element of `ReadStateSummaryData.partitions`."""

    partition: int
    leader_epoch: int


class ReadStateSummaryData(Struct, gc=False):
    """An element of `ReadShareGroupStateSummaryRequest.topics`."""

    topic_id: bytes
    partitions: list[PartitionData]


class ReadShareGroupStateSummaryRequest(Struct, gc=False):
    """The ReadShareGroupStateSummary request, versions 0 to 1."""

    group_id: str
    topics: list[ReadStateSummaryData]


class PartitionResult(Struct, gc=False):
    """An element of `ReadStateSummaryResult.partitions`."""

    partition: int
    error_code: int = 0
    error_message: str | None = None
    state_epoch: int = 0
    leader_epoch: int = 0
    # -1: not known yet.
    start_offset: int = 0
    # Offsets at or above the start offset whose delivery is complete; -1 unknown (KIP-1226).
    delivery_complete_count: int = -1


class ReadStateSummaryResult(Struct, gc=False):
    """An element of `ReadShareGroupStateSummaryResponse.results`."""

    topic_id: bytes
    partitions: list[PartitionResult]


class ReadShareGroupStateSummaryResponse(Struct, gc=False):
    """The ReadShareGroupStateSummary response, versions 0 to 1."""

    results: list[ReadStateSummaryResult]


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> ReadShareGroupStateSummaryRequest:
    """Decode the ReadShareGroupStateSummaryRequest from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of ReadShareGroupStateSummaryRequest")
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
        n = buf[at]
        at += 1
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        left -= n - 1
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
        topics: list[ReadStateSummaryData] = []
        for _ in range(n - 1):
            topic_id, n = _unpack_16sB(buf, at)
            at += 17
            if not 0 < n < 128:
                n, at = read_length(buf, at - 1)
            left -= n - 1
            if left < 0:
                raise TooManyElementsError(f"more elements than allowed before byte {at}")
            partitions: list[PartitionData] = []
            for _ in range(n - 1):
                partition, leader_epoch, n = _unpack_iiB(buf, at)
                at += 9
                if n:
                    at, left = skip_tags_within(buf, at - 1, left)
                partitions.append(PartitionData(partition, leader_epoch))
            if buf[at]:
                at, left = skip_tags_within(buf, at, left)
            else:
                at += 1
            topics.append(ReadStateSummaryData(topic_id, partitions))
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"ReadShareGroupStateSummaryRequest ends at byte {at} of {len(buf)}")
        return ReadShareGroupStateSummaryRequest(group_id, topics)
    except MALFORMED as error:
        raise DecodeError(f"ReadShareGroupStateSummaryRequest: {error}") from error


def encode_request(message: ReadShareGroupStateSummaryRequest, version: int) -> bytes:
    """Encode the ReadShareGroupStateSummaryRequest. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of ReadShareGroupStateSummaryRequest")
    try:
        group_id = message.group_id.encode()
        n = len(group_id) + 1
        group_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        n = len(message.topics) + 1
        topics_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [group_id_n, group_id, topics_n]
        for topic in message.topics:
            if len(topic.topic_id) != 16:
                raise EncodeError("topic_id is not 16 bytes long")
            n = len(topic.partitions) + 1
            partitions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (topic.topic_id, partitions_n)
            parts += [
                _pack_iix(partition_data.partition, partition_data.leader_epoch)
                for partition_data in topic.partitions
            ]
            parts.append(b"\x00")
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"ReadShareGroupStateSummaryRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> ReadShareGroupStateSummaryResponse:
    """Decode the ReadShareGroupStateSummaryResponse from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of ReadShareGroupStateSummaryResponse")
    try:
        if version >= 1:
            return _decode_response_v1(buf, offset)
        return _decode_response_v0(buf, offset)
    except MALFORMED as error:
        raise DecodeError(f"ReadShareGroupStateSummaryResponse: {error}") from error


def _decode_response_v0(buf: bytes, at: int) -> ReadShareGroupStateSummaryResponse:
    n = buf[at]
    at += 1
    if not 0 < n < 128:
        n, at = read_length(buf, at - 1)
    results: list[ReadStateSummaryResult] = []
    for _ in range(n - 1):
        topic_id, n = _unpack_16sB(buf, at)
        at += 17
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        partitions: list[PartitionResult] = []
        for _ in range(n - 1):
            partition, error_code, n = _unpack_ihB(buf, at)
            at += 7
            if n > 127:
                n, at = read_nullable_string_length(buf, at - 1)
            if not n:
                error_message = None
            else:
                error_message = buf[at : at + n - 1].decode()
                at += n - 1
            state_epoch, leader_epoch, start_offset, n = _unpack_iiqB(buf, at)
            at += 17
            if n:
                at = skip_tags(buf, at - 1)
            partition_result = PartitionResult(
                partition,
                error_code,
                error_message,
                state_epoch,
                leader_epoch,
                start_offset,
            )
            partitions.append(partition_result)
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        results.append(ReadStateSummaryResult(topic_id, partitions))
    if buf[at]:
        at = skip_tags(buf, at)
    else:
        at += 1
    if at != len(buf):
        raise DecodeError(f"ReadShareGroupStateSummaryResponse ends at byte {at} of {len(buf)}")
    return ReadShareGroupStateSummaryResponse(results)


def _decode_response_v1(buf: bytes, at: int) -> ReadShareGroupStateSummaryResponse:
    n = buf[at]
    at += 1
    if not 0 < n < 128:
        n, at = read_length(buf, at - 1)
    results: list[ReadStateSummaryResult] = []
    for _ in range(n - 1):
        topic_id, n = _unpack_16sB(buf, at)
        at += 17
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        partitions: list[PartitionResult] = []
        for _ in range(n - 1):
            partition, error_code, n = _unpack_ihB(buf, at)
            at += 7
            if n > 127:
                n, at = read_nullable_string_length(buf, at - 1)
            if not n:
                error_message = None
            else:
                error_message = buf[at : at + n - 1].decode()
                at += n - 1
            state_epoch, leader_epoch, start_offset, delivery_complete_count, n = _unpack_iiqiB(buf, at)
            at += 21
            if n:
                at = skip_tags(buf, at - 1)
            partition_result = PartitionResult(
                partition,
                error_code,
                error_message,
                state_epoch,
                leader_epoch,
                start_offset,
                delivery_complete_count,
            )
            partitions.append(partition_result)
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        results.append(ReadStateSummaryResult(topic_id, partitions))
    if buf[at]:
        at = skip_tags(buf, at)
    else:
        at += 1
    if at != len(buf):
        raise DecodeError(f"ReadShareGroupStateSummaryResponse ends at byte {at} of {len(buf)}")
    return ReadShareGroupStateSummaryResponse(results)


def encode_response(message: ReadShareGroupStateSummaryResponse, version: int) -> bytes:
    """Encode the ReadShareGroupStateSummaryResponse. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of ReadShareGroupStateSummaryResponse")
    try:
        if version >= 1:
            return _encode_response_v1(message)
        return _encode_response_v0(message)
    except UNENCODABLE as error:
        raise EncodeError(f"ReadShareGroupStateSummaryResponse: {error}") from error


def _encode_response_v0(message: ReadShareGroupStateSummaryResponse) -> bytes:
    n = len(message.results) + 1
    results_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
    parts = [results_n]
    for result in message.results:
        if len(result.topic_id) != 16:
            raise EncodeError("topic_id is not 16 bytes long")
        n = len(result.partitions) + 1
        partitions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts += (result.topic_id, partitions_n)
        for partition_result in result.partitions:
            if partition_result.error_message is None:
                fixed_0 = _pack_ihxiiqx(
                    partition_result.partition,
                    partition_result.error_code,
                    partition_result.state_epoch,
                    partition_result.leader_epoch,
                    partition_result.start_offset,
                )
                parts.append(fixed_0)
            else:
                error_message = partition_result.error_message.encode()
                n = len(error_message) + 1
                error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                fixed_3 = _pack_iiqx(
                    partition_result.state_epoch,
                    partition_result.leader_epoch,
                    partition_result.start_offset,
                )
                parts += (
                    _pack_ih(partition_result.partition, partition_result.error_code),
                    error_message_n,
                    error_message,
                    fixed_3,
                )
        parts.append(b"\x00")
    parts.append(b"\x00")
    return b"".join(parts)


def _encode_response_v1(message: ReadShareGroupStateSummaryResponse) -> bytes:
    n = len(message.results) + 1
    results_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
    parts = [results_n]
    for result in message.results:
        if len(result.topic_id) != 16:
            raise EncodeError("topic_id is not 16 bytes long")
        n = len(result.partitions) + 1
        partitions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts += (result.topic_id, partitions_n)
        for partition_result in result.partitions:
            if partition_result.error_message is None:
                fixed_0 = _pack_ihxiiqix(
                    partition_result.partition,
                    partition_result.error_code,
                    partition_result.state_epoch,
                    partition_result.leader_epoch,
                    partition_result.start_offset,
                    partition_result.delivery_complete_count,
                )
                parts.append(fixed_0)
            else:
                error_message = partition_result.error_message.encode()
                n = len(error_message) + 1
                error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                fixed_3 = _pack_iiqix(
                    partition_result.state_epoch,
                    partition_result.leader_epoch,
                    partition_result.start_offset,
                    partition_result.delivery_complete_count,
                )
                parts += (
                    _pack_ih(partition_result.partition, partition_result.error_code),
                    error_message_n,
                    error_message,
                    fixed_3,
                )
        parts.append(b"\x00")
    parts.append(b"\x00")
    return b"".join(parts)
