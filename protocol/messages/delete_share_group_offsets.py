"""DeleteShareGroupOffsets (API key 92), version 0: request and response.

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

_unpack_16shB = Fields(">16shB").unpack_from
_unpack_ihB = Fields(">ihB").unpack_from
_pack_16sh = Fields(">16sh").pack
_pack_16shxx = Fields(">16shxx").pack
_pack_ih = Fields(">ih").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "DeleteShareGroupOffsetsRequest",
    "DeleteShareGroupOffsetsResponse",
    "RequestedTopic",
    "TopicResult",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 92
MIN_VERSION = 0
MAX_VERSION = 0


class RequestedTopic(Struct, gc=False):
    """An element of `DeleteShareGroupOffsetsRequest.topics`."""

    topic_name: str


class DeleteShareGroupOffsetsRequest(Struct, gc=False):
    """The DeleteShareGroupOffsets request, version 0."""

    group_id: str
    topics: list[RequestedTopic]


class TopicResult(Struct, gc=False):
    """An element of `DeleteShareGroupOffsetsResponse.responses`."""

    topic_name: str
    topic_id: bytes
    error_code: int
    error_message: str | None


class DeleteShareGroupOffsetsResponse(Struct, gc=False):
    """The DeleteShareGroupOffsets response, version 0."""

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    responses: list[TopicResult]


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> DeleteShareGroupOffsetsRequest:
    """Decode the DeleteShareGroupOffsetsRequest from ``offset`` to the end of ``buf``."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DeleteShareGroupOffsetsRequest")
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
        topics: list[RequestedTopic] = []
        for _ in range(n - 1):
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
                left -= n >> 6
                if left < 0:
                    raise TooManyElementsError(f"more elements than allowed before byte {at}")
            topic_name = buf[at + 1 : at + n].decode()
            at += n
            if buf[at]:
                at, left = skip_tags_within(buf, at, left)
            else:
                at += 1
            topics.append(RequestedTopic(topic_name))
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"DeleteShareGroupOffsetsRequest ends at byte {at} of {len(buf)}")
        return DeleteShareGroupOffsetsRequest(group_id, topics)
    except MALFORMED as error:
        raise DecodeError(f"DeleteShareGroupOffsetsRequest: {error}") from error


def encode_request(message: DeleteShareGroupOffsetsRequest, version: int) -> bytes:
    """Encode the DeleteShareGroupOffsetsRequest. Raises EncodeError if a value has no wire form."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DeleteShareGroupOffsetsRequest")
    try:
        group_id = message.group_id.encode()
        n = len(group_id) + 1
        group_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        n = len(message.topics) + 1
        topics_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [group_id_n, group_id, topics_n]
        for topic in message.topics:
            topic_name = topic.topic_name.encode()
            n = len(topic_name) + 1
            topic_name_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (topic_name_n, topic_name, b"\x00")
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"DeleteShareGroupOffsetsRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> DeleteShareGroupOffsetsResponse:
    """Decode the DeleteShareGroupOffsetsResponse from ``offset`` to the end of ``buf``."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DeleteShareGroupOffsetsResponse")
    try:
        at = offset
        throttle_time_ms, error_code, n = _unpack_ihB(buf, at)
        at += 7
        if n > 127:
            n, at = read_nullable_string_length(buf, at - 1)
        if not n:
            error_message = None
        else:
            error_message = buf[at : at + n - 1].decode()
            at += n - 1
        n = buf[at]
        at += 1
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        responses: list[TopicResult] = []
        for _ in range(n - 1):
            n = buf[at]
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
            topic_name = buf[at + 1 : at + n].decode()
            at += n
            topic_id, topic_result_error_code, n = _unpack_16shB(buf, at)
            at += 19
            if n > 127:
                n, at = read_nullable_string_length(buf, at - 1)
            if not n:
                topic_result_error_message = None
            else:
                topic_result_error_message = buf[at : at + n - 1].decode()
                at += n - 1
            if buf[at]:
                at = skip_tags(buf, at)
            else:
                at += 1
            topic_result = TopicResult(
                topic_name,
                topic_id,
                topic_result_error_code,
                topic_result_error_message,
            )
            responses.append(topic_result)
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"DeleteShareGroupOffsetsResponse ends at byte {at} of {len(buf)}")
        return DeleteShareGroupOffsetsResponse(throttle_time_ms, error_code, error_message, responses)
    except MALFORMED as error:
        raise DecodeError(f"DeleteShareGroupOffsetsResponse: {error}") from error


def encode_response(message: DeleteShareGroupOffsetsResponse, version: int) -> bytes:
    """Encode the DeleteShareGroupOffsetsResponse. Raises EncodeError if a value has no wire form."""
    if version != 0:
        raise UnsupportedVersionError(f"version {version} of DeleteShareGroupOffsetsResponse")
    try:
        if message.error_message is None:
            error_message = b"\x00"
        else:
            error_message = message.error_message.encode()
            n = len(error_message) + 1
            error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            error_message = error_message_n + error_message
        n = len(message.responses) + 1
        responses_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [_pack_ih(message.throttle_time_ms, message.error_code), error_message, responses_n]
        for response in message.responses:
            topic_name = response.topic_name.encode()
            n = len(topic_name) + 1
            topic_name_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            if len(response.topic_id) != 16:
                raise EncodeError("topic_id is not 16 bytes long")
            if response.error_message is None:
                parts += (topic_name_n, topic_name, _pack_16shxx(response.topic_id, response.error_code))
            else:
                error_message = response.error_message.encode()
                n = len(error_message) + 1
                error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                parts += (
                    topic_name_n,
                    topic_name,
                    _pack_16sh(response.topic_id, response.error_code),
                    error_message_n,
                    error_message,
                    b"\x00",
                )
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"DeleteShareGroupOffsetsResponse: {error}") from error
