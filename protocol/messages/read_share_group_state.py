"""ReadShareGroupState (API key 84), version 0: request and response.

Generated from the schemas by ``python -m protocol.codegen``; do not edit.
"""

from struct import Struct as Fields

from msgspec import Struct

from protocol.errors import DecodeError, EncodeError, TooManyElementsError, UnsupportedVersionError
from protocol.state_batches import NO_TAGS, read_untagged
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
_unpack_iqB = Fields(">iqB").unpack_from
_pack_ih = Fields(">ih").pack
_pack_ihxiq = Fields(">ihxiq").pack
_pack_iix = Fields(">iix").pack
_pack_iq = Fields(">iq").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "PartitionData",
    "PartitionResult",
    "ReadShareGroupStateRequest",
    "ReadShareGroupStateResponse",
    "ReadStateData",
    "ReadStateResult",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 84
MIN_VERSION = 0
MAX_VERSION = 0


class PartitionData(Struct, gc=False):
    """An element of `ReadStateData.partitions`."""

    partition: int
    leader_epoch: int


class ReadStateData(Struct, gc=False):
    """An element of `ReadShareGroupStateRequest.topics`."""

    topic_id: bytes
    partitions: list[PartitionData]


class ReadShareGroupStateRequest(Struct, gc=False):
    """The ReadShareGroupState request, version 0."""

    group_id: str
    topics: list[ReadStateData]


class PartitionResult(Struct, gc=False):
    """An element of `ReadStateResult.partitions`."""

    partition: int
    error_code: int = 0
    error_message: str | None = None
    state_epoch: int = 0
    # -1: not known yet.
    start_offset: int = 0
    state_batches: bytes = b""


class ReadStateResult(Struct, gc=False):
    """An element of `ReadShareGroupStateResponse.results`."""

    topic_id: bytes
    partitions: list[PartitionResult]


class ReadShareGroupStateResponse(Struct, gc=False):
    """The ReadShareGroupState response, version 0."""

    results: list[ReadStateResult]


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> ReadShareGroupStateRequest:
    """Decode the ReadShareGroupStateRequest from ``offset`` to the end of ``buf``."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of ReadShareGroupStateRequest")
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
        topics: list[ReadStateData] = []
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
            topics.append(ReadStateData(topic_id, partitions))
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"ReadShareGroupStateRequest ends at byte {at} of {len(buf)}")
        return ReadShareGroupStateRequest(group_id, topics)
    except MALFORMED as error:
        raise DecodeError(f"ReadShareGroupStateRequest: {error}") from error


def encode_request(message: ReadShareGroupStateRequest, version: int) -> bytes:
    """Encode the ReadShareGroupStateRequest. Raises EncodeError if a value has no wire form."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of ReadShareGroupStateRequest")
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
        raise EncodeError(f"ReadShareGroupStateRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> ReadShareGroupStateResponse:
    """Decode the ReadShareGroupStateResponse from ``offset`` to the end of ``buf``."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of ReadShareGroupStateResponse")
    try:
        at = offset
        n = buf[at]
        at += 1
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        results: list[ReadStateResult] = []
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
                state_epoch, start_offset, n = _unpack_iqB(buf, at)
                at += 13
                end = at + n * 20 - 20
                if (n == 2 and not buf[at + 19]) or (n < 128 and buf[at + 19 : end : 20] == NO_TAGS[n]):
                    state_batches = buf[at:end]
                    at = end
                else:
                    state_batches, at = read_untagged(buf, at - 1)
                if buf[at]:
                    at = skip_tags(buf, at)
                else:
                    at += 1
                partition_result = PartitionResult(
                    partition,
                    error_code,
                    error_message,
                    state_epoch,
                    start_offset,
                    state_batches,
                )
                partitions.append(partition_result)
            if buf[at]:
                at = skip_tags(buf, at)
            else:
                at += 1
            results.append(ReadStateResult(topic_id, partitions))
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"ReadShareGroupStateResponse ends at byte {at} of {len(buf)}")
        return ReadShareGroupStateResponse(results)
    except MALFORMED as error:
        raise DecodeError(f"ReadShareGroupStateResponse: {error}") from error


def encode_response(message: ReadShareGroupStateResponse, version: int) -> bytes:
    """Encode the ReadShareGroupStateResponse. Raises EncodeError if a value has no wire form."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of ReadShareGroupStateResponse")
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
                    state_batches = partition_result.state_batches
                    if len(state_batches) % 20:
                        raise EncodeError("state_batches are not a whole number of 20-byte pieces")
                    fixed_0 = _pack_ihxiq(
                        partition_result.partition,
                        partition_result.error_code,
                        partition_result.state_epoch,
                        partition_result.start_offset,
                    )
                    n = len(state_batches) // 20 + 1
                    state_batches_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    parts += (fixed_0, state_batches_n, state_batches, b"\x00")
                else:
                    error_message = partition_result.error_message.encode()
                    n = len(error_message) + 1
                    error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    state_batches = partition_result.state_batches
                    if len(state_batches) % 20:
                        raise EncodeError("state_batches are not a whole number of 20-byte pieces")
                    n = len(state_batches) // 20 + 1
                    state_batches_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    parts += (
                        _pack_ih(partition_result.partition, partition_result.error_code),
                        error_message_n,
                        error_message,
                        _pack_iq(partition_result.state_epoch, partition_result.start_offset),
                        state_batches_n,
                        state_batches,
                        b"\x00",
                    )
            parts.append(b"\x00")
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"ReadShareGroupStateResponse: {error}") from error
