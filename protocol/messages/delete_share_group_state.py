"""DeleteShareGroupState (API key 86), version 0: request and response.

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
_unpack_iB = Fields(">iB").unpack_from
_unpack_ihB = Fields(">ihB").unpack_from
_pack_ih = Fields(">ih").pack
_pack_ihxx = Fields(">ihxx").pack
_pack_ix = Fields(">ix").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "DeleteShareGroupStateRequest",
    "DeleteShareGroupStateResponse",
    "DeleteStateData",
    "DeleteStateResult",
    "PartitionData",
    "PartitionResult",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 86
MIN_VERSION = 0
MAX_VERSION = 0


class PartitionData(Struct, gc=False):
    """An element of `DeleteStateData.partitions`."""

    partition: int


class DeleteStateData(Struct, gc=False):
    """An element of `DeleteShareGroupStateRequest.topics`."""

    topic_id: bytes
    partitions: list[PartitionData]


class DeleteShareGroupStateRequest(Struct, gc=False):
    """The DeleteShareGroupState request, version 0."""

    group_id: str
    topics: list[DeleteStateData]


class PartitionResult(Struct, gc=False):
    """An element of `DeleteStateResult.partitions`."""

    partition: int
    error_code: int = 0
    error_message: str | None = None


class DeleteStateResult(Struct, gc=False):
    """An element of `DeleteShareGroupStateResponse.results`."""

    topic_id: bytes
    partitions: list[PartitionResult]


class DeleteShareGroupStateResponse(Struct, gc=False):
    """The DeleteShareGroupState response, version 0."""

    results: list[DeleteStateResult]


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> DeleteShareGroupStateRequest:
    """Decode the DeleteShareGroupStateRequest from ``offset`` to the end of ``buf``."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DeleteShareGroupStateRequest")
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
        topics: list[DeleteStateData] = []
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
                partition, n = _unpack_iB(buf, at)
                at += 5
                if n:
                    at, left = skip_tags_within(buf, at - 1, left)
                partitions.append(PartitionData(partition))
            if buf[at]:
                at, left = skip_tags_within(buf, at, left)
            else:
                at += 1
            topics.append(DeleteStateData(topic_id, partitions))
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"DeleteShareGroupStateRequest ends at byte {at} of {len(buf)}")
        return DeleteShareGroupStateRequest(group_id, topics)
    except MALFORMED as error:
        raise DecodeError(f"DeleteShareGroupStateRequest: {error}") from error


def encode_request(message: DeleteShareGroupStateRequest, version: int) -> bytes:
    """Encode the DeleteShareGroupStateRequest. Raises EncodeError if a value has no wire form."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DeleteShareGroupStateRequest")
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
            parts += [_pack_ix(partition_data.partition) for partition_data in topic.partitions]
            parts.append(b"\x00")
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"DeleteShareGroupStateRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> DeleteShareGroupStateResponse:
    """Decode the DeleteShareGroupStateResponse from ``offset`` to the end of ``buf``."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DeleteShareGroupStateResponse")
    try:
        at = offset
        n = buf[at]
        at += 1
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        results: list[DeleteStateResult] = []
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
            results.append(DeleteStateResult(topic_id, partitions))
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"DeleteShareGroupStateResponse ends at byte {at} of {len(buf)}")
        return DeleteShareGroupStateResponse(results)
    except MALFORMED as error:
        raise DecodeError(f"DeleteShareGroupStateResponse: {error}") from error


def encode_response(message: DeleteShareGroupStateResponse, version: int) -> bytes:
    """Encode the DeleteShareGroupStateResponse. Raises EncodeError if a value has no wire form."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DeleteShareGroupStateResponse")
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
        raise EncodeError(f"DeleteShareGroupStateResponse: {error}") from error
