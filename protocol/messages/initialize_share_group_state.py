"""InitializeShareGroupState (API key 83), version 0: request and response.

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
_unpack_iiqB = Fields(">iiqB").unpack_from
_pack_ih = Fields(">ih").pack
_pack_ihxx = Fields(">ihxx").pack
_pack_iiqx = Fields(">iiqx").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "InitializeShareGroupStateRequest",
    "InitializeShareGroupStateResponse",
    "InitializeStateData",
    "InitializeStateResult",
    "PartitionData",
    "PartitionResult",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 83
MIN_VERSION = 0
MAX_VERSION = 0


class PartitionData(Struct, gc=False):
    """An element of `InitializeStateData.partitions`."""

    partition: int
    state_epoch: int
    # -1: not known yet.
    start_offset: int


class InitializeStateData(Struct, gc=False):
    """An element of `InitializeShareGroupStateRequest.topics`."""

    topic_id: bytes
    partitions: list[PartitionData]


class InitializeShareGroupStateRequest(Struct, gc=False):
    """The InitializeShareGroupState request, version 0."""

    group_id: str
    topics: list[InitializeStateData]


class PartitionResult(Struct, gc=False):
    """An element of `InitializeStateResult.partitions`."""

    partition: int
    error_code: int = 0
    error_message: str | None = None


class InitializeStateResult(Struct, gc=False):
    """An element of `InitializeShareGroupStateResponse.results`."""

    topic_id: bytes
    partitions: list[PartitionResult]


class InitializeShareGroupStateResponse(Struct, gc=False):
    """The InitializeShareGroupState response, version 0."""

    results: list[InitializeStateResult]


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> InitializeShareGroupStateRequest:
    """Decode the InitializeShareGroupStateRequest from ``offset`` to the end of ``buf``."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of InitializeShareGroupStateRequest")
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
        topics: list[InitializeStateData] = []
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
                partition, state_epoch, start_offset, n = _unpack_iiqB(buf, at)
                at += 17
                if n:
                    at, left = skip_tags_within(buf, at - 1, left)
                partitions.append(PartitionData(partition, state_epoch, start_offset))
            if buf[at]:
                at, left = skip_tags_within(buf, at, left)
            else:
                at += 1
            topics.append(InitializeStateData(topic_id, partitions))
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"InitializeShareGroupStateRequest ends at byte {at} of {len(buf)}")
        return InitializeShareGroupStateRequest(group_id, topics)
    except MALFORMED as error:
        raise DecodeError(f"InitializeShareGroupStateRequest: {error}") from error


def encode_request(message: InitializeShareGroupStateRequest, version: int) -> bytes:
    """Encode the InitializeShareGroupStateRequest. Raises EncodeError if a value has no wire form."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of InitializeShareGroupStateRequest")
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
                _pack_iiqx(partition_data.partition, partition_data.state_epoch, partition_data.start_offset)
                for partition_data in topic.partitions
            ]
            parts.append(b"\x00")
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"InitializeShareGroupStateRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> InitializeShareGroupStateResponse:
    """Decode the InitializeShareGroupStateResponse from ``offset`` to the end of ``buf``."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of InitializeShareGroupStateResponse")
    try:
        at = offset
        n = buf[at]
        at += 1
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        results: list[InitializeStateResult] = []
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
            results.append(InitializeStateResult(topic_id, partitions))
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"InitializeShareGroupStateResponse ends at byte {at} of {len(buf)}")
        return InitializeShareGroupStateResponse(results)
    except MALFORMED as error:
        raise DecodeError(f"InitializeShareGroupStateResponse: {error}") from error


def encode_response(message: InitializeShareGroupStateResponse, version: int) -> bytes:
    """Encode the InitializeShareGroupStateResponse. Raises EncodeError if a value has no wire form."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of InitializeShareGroupStateResponse")
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
        raise EncodeError(f"InitializeShareGroupStateResponse: {error}") from error
