"""WriteShareGroupState (API key 85), versions 0 to 1: request and response.

Generated from the schemas by ``python -m protocol.codegen``; do not edit.
"""

from struct import Struct as Fields

from msgspec import Struct

from protocol.errors import DecodeError, EncodeError, TooManyElementsError, UnsupportedVersionError
from protocol.state_batches import NO_TAGS, read_untagged_within
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
_unpack_iiiqB = Fields(">iiiqB").unpack_from
_unpack_iiiqiB = Fields(">iiiqiB").unpack_from
_pack_ih = Fields(">ih").pack
_pack_ihxx = Fields(">ihxx").pack
_pack_iiiq = Fields(">iiiq").pack
_pack_iiiqi = Fields(">iiiqi").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "PartitionData",
    "PartitionResult",
    "WriteShareGroupStateRequest",
    "WriteShareGroupStateResponse",
    "WriteStateData",
    "WriteStateResult",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 85
MIN_VERSION = 0
MAX_VERSION = 1


class PartitionData(Struct, gc=False):
    """An element of `WriteStateData.partitions`."""

    partition: int
    state_epoch: int
    leader_epoch: int
    # -1: not written.
    start_offset: int
    # Offsets at or above the start offset whose delivery is complete; -1 unknown (KIP-1226).
    delivery_complete_count: int = -1
    state_batches: bytes = b""


class WriteStateData(Struct, gc=False):
    """An element of `WriteShareGroupStateRequest.topics`."""

    topic_id: bytes
    partitions: list[PartitionData]


class WriteShareGroupStateRequest(Struct, gc=False):
    """The WriteShareGroupState request, versions 0 to 1."""

    group_id: str
    topics: list[WriteStateData]


class PartitionResult(Struct, gc=False):
    """An element of `WriteStateResult.partitions`."""

    partition: int
    error_code: int = 0
    error_message: str | None = None


class WriteStateResult(Struct, gc=False):
    """An element of `WriteShareGroupStateResponse.results`."""

    topic_id: bytes
    partitions: list[PartitionResult]


class WriteShareGroupStateResponse(Struct, gc=False):
    """The WriteShareGroupState response, versions 0 to 1."""

    results: list[WriteStateResult]


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> WriteShareGroupStateRequest:
    """Decode the WriteShareGroupStateRequest from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of WriteShareGroupStateRequest")
    try:
        if version >= 1:
            return _decode_request_v1(buf, offset, elements_max)
        return _decode_request_v0(buf, offset, elements_max)
    except MALFORMED as error:
        raise DecodeError(f"WriteShareGroupStateRequest: {error}") from error


def _decode_request_v0(buf: bytes, at: int, left: int) -> WriteShareGroupStateRequest:
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
    topics: list[WriteStateData] = []
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
            partition, state_epoch, leader_epoch, start_offset, n = _unpack_iiiqB(buf, at)
            at += 21
            end = at + n * 20 - 20
            if (n == 2 and not buf[at + 19]) or (n < 128 and buf[at + 19 : end : 20] == NO_TAGS[n]):
                state_batches = buf[at:end]
                at = end
            else:
                state_batches, at, left = read_untagged_within(buf, at - 1, left)
            if buf[at]:
                at, left = skip_tags_within(buf, at, left)
            else:
                at += 1
            partition_data = PartitionData(
                partition,
                state_epoch,
                leader_epoch,
                start_offset,
                -1,
                state_batches,
            )
            partitions.append(partition_data)
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        topics.append(WriteStateData(topic_id, partitions))
    if buf[at]:
        at, left = skip_tags_within(buf, at, left)
    else:
        at += 1
    if at != len(buf):
        raise DecodeError(f"WriteShareGroupStateRequest ends at byte {at} of {len(buf)}")
    return WriteShareGroupStateRequest(group_id, topics)


def _decode_request_v1(buf: bytes, at: int, left: int) -> WriteShareGroupStateRequest:
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
    topics: list[WriteStateData] = []
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
            partition, state_epoch, leader_epoch, start_offset, delivery_complete_count, n = _unpack_iiiqiB(
                buf, at
            )
            at += 25
            end = at + n * 20 - 20
            if (n == 2 and not buf[at + 19]) or (n < 128 and buf[at + 19 : end : 20] == NO_TAGS[n]):
                state_batches = buf[at:end]
                at = end
            else:
                state_batches, at, left = read_untagged_within(buf, at - 1, left)
            if buf[at]:
                at, left = skip_tags_within(buf, at, left)
            else:
                at += 1
            partition_data = PartitionData(
                partition,
                state_epoch,
                leader_epoch,
                start_offset,
                delivery_complete_count,
                state_batches,
            )
            partitions.append(partition_data)
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        topics.append(WriteStateData(topic_id, partitions))
    if buf[at]:
        at, left = skip_tags_within(buf, at, left)
    else:
        at += 1
    if at != len(buf):
        raise DecodeError(f"WriteShareGroupStateRequest ends at byte {at} of {len(buf)}")
    return WriteShareGroupStateRequest(group_id, topics)


def encode_request(message: WriteShareGroupStateRequest, version: int) -> bytes:
    """Encode the WriteShareGroupStateRequest. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of WriteShareGroupStateRequest")
    try:
        if version >= 1:
            return _encode_request_v1(message)
        return _encode_request_v0(message)
    except UNENCODABLE as error:
        raise EncodeError(f"WriteShareGroupStateRequest: {error}") from error


def _encode_request_v0(message: WriteShareGroupStateRequest) -> bytes:
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
        for partition_data in topic.partitions:
            state_batches = partition_data.state_batches
            if len(state_batches) % 20:
                raise EncodeError("state_batches are not a whole number of 20-byte pieces")
            fixed_0 = _pack_iiiq(
                partition_data.partition,
                partition_data.state_epoch,
                partition_data.leader_epoch,
                partition_data.start_offset,
            )
            n = len(state_batches) // 20 + 1
            state_batches_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (fixed_0, state_batches_n, state_batches, b"\x00")
        parts.append(b"\x00")
    parts.append(b"\x00")
    return b"".join(parts)


def _encode_request_v1(message: WriteShareGroupStateRequest) -> bytes:
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
        for partition_data in topic.partitions:
            state_batches = partition_data.state_batches
            if len(state_batches) % 20:
                raise EncodeError("state_batches are not a whole number of 20-byte pieces")
            fixed_0 = _pack_iiiqi(
                partition_data.partition,
                partition_data.state_epoch,
                partition_data.leader_epoch,
                partition_data.start_offset,
                partition_data.delivery_complete_count,
            )
            n = len(state_batches) // 20 + 1
            state_batches_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (fixed_0, state_batches_n, state_batches, b"\x00")
        parts.append(b"\x00")
    parts.append(b"\x00")
    return b"".join(parts)


def decode_response(buf: bytes, offset: int, version: int) -> WriteShareGroupStateResponse:
    """Decode the WriteShareGroupStateResponse from ``offset`` to the end of ``buf``."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of WriteShareGroupStateResponse")
    try:
        at = offset
        n = buf[at]
        at += 1
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        results: list[WriteStateResult] = []
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
                if buf[at]:
                    at = skip_tags(buf, at)
                else:
                    at += 1
                partitions.append(PartitionResult(partition, error_code, error_message))
            if buf[at]:
                at = skip_tags(buf, at)
            else:
                at += 1
            results.append(WriteStateResult(topic_id, partitions))
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"WriteShareGroupStateResponse ends at byte {at} of {len(buf)}")
        return WriteShareGroupStateResponse(results)
    except MALFORMED as error:
        raise DecodeError(f"WriteShareGroupStateResponse: {error}") from error


def encode_response(message: WriteShareGroupStateResponse, version: int) -> bytes:
    """Encode the WriteShareGroupStateResponse. Raises EncodeError if a value has no wire form."""
    if not 0 <= version <= 1:
        raise UnsupportedVersionError(f"version {version} of WriteShareGroupStateResponse")
    try:
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
                    parts.append(_pack_ihxx(partition_result.partition, partition_result.error_code))
                else:
                    error_message = partition_result.error_message.encode()
                    n = len(error_message) + 1
                    error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    parts += (
                        _pack_ih(partition_result.partition, partition_result.error_code),
                        error_message_n,
                        error_message,
                        b"\x00",
                    )
            parts.append(b"\x00")
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"WriteShareGroupStateResponse: {error}") from error
