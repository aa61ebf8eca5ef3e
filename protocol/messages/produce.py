"""Produce (API key 0), version 13: request and response.

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
    read_uvarint,
    skip_tags,
    skip_tags_within,
    write_uvarint,
)

_unpack_16sB = Fields(">16sB").unpack_from
_unpack_hiB = Fields(">hiB").unpack_from
_unpack_iB = Fields(">iB").unpack_from
_unpack_ihqqqB = Fields(">ihqqqB").unpack_from
_pack_hi = Fields(">hi").pack
_pack_i = Fields(">i").pack
_pack_ihqqq = Fields(">ihqqq").pack
_pack_ix = Fields(">ix").pack
_pack_ixx = Fields(">ixx").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "BatchIndexAndErrorMessage",
    "PartitionProduceData",
    "PartitionProduceResponse",
    "ProduceRequest",
    "ProduceResponse",
    "TopicProduceData",
    "TopicProduceResponse",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 0
MIN_VERSION = 13
MAX_VERSION = 13


class PartitionProduceData(Struct, gc=False):
    """An element of `TopicProduceData.partition_data`."""

    index: int
    # One record batch.
    records: bytes | None


class TopicProduceData(Struct, gc=False):
    """An element of `ProduceRequest.topic_data`."""

    topic_id: bytes
    partition_data: list[PartitionProduceData]


class ProduceRequest(Struct, gc=False):
    """The Produce request, version 13."""

    transactional_id: str | None
    # -1: all in-sync replicas.
    acks: int
    timeout_ms: int
    topic_data: list[TopicProduceData]


class BatchIndexAndErrorMessage(Struct, gc=False):
    """An element of `PartitionProduceResponse.record_errors`."""

    batch_index: int
    batch_index_error_message: str | None


class PartitionProduceResponse(Struct, gc=False):
    """An element of `TopicProduceResponse.partition_responses`."""

    index: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_errors: list[BatchIndexAndErrorMessage]
    error_message: str | None


class TopicProduceResponse(Struct, gc=False):
    """An element of `ProduceResponse.responses`."""

    topic_id: bytes
    partition_responses: list[PartitionProduceResponse]


class ProduceResponse(Struct, gc=False):
    """The Produce response, version 13."""

    responses: list[TopicProduceResponse]
    throttle_time_ms: int


def decode_request(buf: bytes, offset: int, version: int, elements_max: int = ELEMENTS_MAX) -> ProduceRequest:
    """Decode the ProduceRequest from ``offset`` to the end of ``buf``."""
    if version != 13:
        raise UnsupportedVersionError(f"version {version} of ProduceRequest")
    try:
        at = offset
        left = elements_max
        n = buf[at]
        at += 1
        if n > 127:
            n, at = read_nullable_string_length(buf, at - 1)
        if not n:
            transactional_id = None
        else:
            left -= n >> 6
            if left < 0:
                raise TooManyElementsError(f"more elements than allowed before byte {at}")
            transactional_id = buf[at : at + n - 1].decode()
            at += n - 1
        acks, timeout_ms, n = _unpack_hiB(buf, at)
        at += 7
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        left -= n - 1
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
        topic_data: list[TopicProduceData] = []
        for _ in range(n - 1):
            topic_id, n = _unpack_16sB(buf, at)
            at += 17
            if not 0 < n < 128:
                n, at = read_length(buf, at - 1)
            left -= n - 1
            if left < 0:
                raise TooManyElementsError(f"more elements than allowed before byte {at}")
            partition_data: list[PartitionProduceData] = []
            for _ in range(n - 1):
                index, n = _unpack_iB(buf, at)
                at += 5
                if n > 127:
                    n, at = read_uvarint(buf, at - 1)
                if not n:
                    records = None
                else:
                    left -= n >> 6
                    if left < 0:
                        raise TooManyElementsError(f"more elements than allowed before byte {at}")
                    records = buf[at : at + n - 1]
                    at += n - 1
                if buf[at]:
                    at, left = skip_tags_within(buf, at, left)
                else:
                    at += 1
                partition_data.append(PartitionProduceData(index, records))
            if buf[at]:
                at, left = skip_tags_within(buf, at, left)
            else:
                at += 1
            topic_data.append(TopicProduceData(topic_id, partition_data))
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"ProduceRequest ends at byte {at} of {len(buf)}")
        return ProduceRequest(transactional_id, acks, timeout_ms, topic_data)
    except MALFORMED as error:
        raise DecodeError(f"ProduceRequest: {error}") from error


def encode_request(message: ProduceRequest, version: int) -> bytes:
    """Encode the ProduceRequest. Raises EncodeError if a value has no wire form."""
    if version != 13:
        raise UnsupportedVersionError(f"version {version} of ProduceRequest")
    try:
        if message.transactional_id is None:
            transactional_id = b"\x00"
        else:
            transactional_id = message.transactional_id.encode()
            n = len(transactional_id) + 1
            transactional_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            transactional_id = transactional_id_n + transactional_id
        n = len(message.topic_data) + 1
        topic_data_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [transactional_id, _pack_hi(message.acks, message.timeout_ms), topic_data_n]
        for topic_data in message.topic_data:
            if len(topic_data.topic_id) != 16:
                raise EncodeError("topic_id is not 16 bytes long")
            n = len(topic_data.partition_data) + 1
            partition_data_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (topic_data.topic_id, partition_data_n)
            for partition_data in topic_data.partition_data:
                if partition_data.records is None:
                    parts.append(_pack_ixx(partition_data.index))
                else:
                    records = partition_data.records
                    n = len(records) + 1
                    records_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    parts += (_pack_i(partition_data.index), records_n, records, b"\x00")
            parts.append(b"\x00")
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"ProduceRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> ProduceResponse:
    """Decode the ProduceResponse from ``offset`` to the end of ``buf``."""
    if version != 13:
        raise UnsupportedVersionError(f"version {version} of ProduceResponse")
    try:
        at = offset
        n = buf[at]
        at += 1
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        responses: list[TopicProduceResponse] = []
        for _ in range(n - 1):
            topic_id, n = _unpack_16sB(buf, at)
            at += 17
            if not 0 < n < 128:
                n, at = read_length(buf, at - 1)
            partition_responses: list[PartitionProduceResponse] = []
            for _ in range(n - 1):
                index, error_code, base_offset, log_append_time_ms, log_start_offset, n = _unpack_ihqqqB(
                    buf, at
                )
                at += 31
                if not 0 < n < 128:
                    n, at = read_length(buf, at - 1)
                record_errors: list[BatchIndexAndErrorMessage] = []
                for _ in range(n - 1):
                    batch_index, n = _unpack_iB(buf, at)
                    at += 5
                    if n > 127:
                        n, at = read_nullable_string_length(buf, at - 1)
                    if not n:
                        batch_index_error_message = None
                    else:
                        batch_index_error_message = buf[at : at + n - 1].decode()
                        at += n - 1
                    if buf[at]:
                        at = skip_tags(buf, at)
                    else:
                        at += 1
                    record_errors.append(BatchIndexAndErrorMessage(batch_index, batch_index_error_message))
                n = buf[at]
                at += 1
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
                partition_produce_response = PartitionProduceResponse(
                    index,
                    error_code,
                    base_offset,
                    log_append_time_ms,
                    log_start_offset,
                    record_errors,
                    error_message,
                )
                partition_responses.append(partition_produce_response)
            if buf[at]:
                at = skip_tags(buf, at)
            else:
                at += 1
            responses.append(TopicProduceResponse(topic_id, partition_responses))
        throttle_time_ms, n = _unpack_iB(buf, at)
        at += 5
        if n:
            at = skip_tags(buf, at - 1)
        if at != len(buf):
            raise DecodeError(f"ProduceResponse ends at byte {at} of {len(buf)}")
        return ProduceResponse(responses, throttle_time_ms)
    except MALFORMED as error:
        raise DecodeError(f"ProduceResponse: {error}") from error


def encode_response(message: ProduceResponse, version: int) -> bytes:
    """Encode the ProduceResponse. Raises EncodeError if a value has no wire form."""
    if version != 13:
        raise UnsupportedVersionError(f"version {version} of ProduceResponse")
    try:
        n = len(message.responses) + 1
        responses_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [responses_n]
        for response in message.responses:
            if len(response.topic_id) != 16:
                raise EncodeError("topic_id is not 16 bytes long")
            n = len(response.partition_responses) + 1
            partition_responses_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (response.topic_id, partition_responses_n)
            for partition_response in response.partition_responses:
                fixed_0 = _pack_ihqqq(
                    partition_response.index,
                    partition_response.error_code,
                    partition_response.base_offset,
                    partition_response.log_append_time_ms,
                    partition_response.log_start_offset,
                )
                n = len(partition_response.record_errors) + 1
                record_errors_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                parts += (fixed_0, record_errors_n)
                for record_error in partition_response.record_errors:
                    if record_error.batch_index_error_message is None:
                        parts.append(_pack_ixx(record_error.batch_index))
                    else:
                        batch_index_error_message = record_error.batch_index_error_message.encode()
                        n = len(batch_index_error_message) + 1
                        batch_index_error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                        parts += (
                            _pack_i(record_error.batch_index),
                            batch_index_error_message_n,
                            batch_index_error_message,
                            b"\x00",
                        )
                if partition_response.error_message is None:
                    parts.append(b"\x00\x00")
                else:
                    error_message = partition_response.error_message.encode()
                    n = len(error_message) + 1
                    error_message_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    parts += (error_message_n, error_message, b"\x00")
            parts.append(b"\x00")
        parts.append(_pack_ix(message.throttle_time_ms))
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"ProduceResponse: {error}") from error
