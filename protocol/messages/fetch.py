"""Fetch (API key 1), version 13: request and response.

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
    read_uvarint,
    skip_tags,
    skip_tags_within,
    write_uvarint,
)

_unpack_16sB = Fields(">16sB").unpack_from
_unpack_i = Fields(">i").unpack_from
_unpack_iB = Fields(">iB").unpack_from
_unpack_ihiB = Fields(">ihiB").unpack_from
_unpack_ihqqqB = Fields(">ihqqqB").unpack_from
_unpack_iiiibiiB = Fields(">iiiibiiB").unpack_from
_unpack_iiqiqiB = Fields(">iiqiqiB").unpack_from
_unpack_qqB = Fields(">qqB").unpack_from
_pack_i = Fields(">i").pack
_pack_ihi = Fields(">ihi").pack
_pack_ihqqq = Fields(">ihqqq").pack
_pack_iiiibii = Fields(">iiiibii").pack
_pack_iiqiqix = Fields(">iiqiqix").pack
_pack_ixx = Fields(">ixx").pack
_pack_qqx = Fields(">qqx").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "AbortedTransaction",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchableTopicResponse",
    "ForgottenTopic",
    "PartitionData",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 1
MIN_VERSION = 13
MAX_VERSION = 13


class FetchPartition(Struct, gc=False):
    """An element of `FetchTopic.partitions`."""

    partition: int
    # -1: unknown.
    current_leader_epoch: int
    fetch_offset: int
    # -1: unknown.
    last_fetched_epoch: int
    # -1 unless a follower fetches.
    log_start_offset: int
    partition_max_bytes: int


class FetchTopic(Struct, gc=False):
    """An element of `FetchRequest.topics`."""

    topic_id: bytes
    partitions: list[FetchPartition]


class ForgottenTopic(Struct, gc=False):
    """An element of `FetchRequest.forgotten_topics_data`."""

    topic_id: bytes
    partitions: list[int]


class FetchRequest(Struct, gc=False):
    """The Fetch request, version 13."""

    # -1: a consumer.
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    # 0: read uncommitted.
    isolation_level: int
    session_id: int
    # -1: no fetch session.
    session_epoch: int
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic]
    rack_id: str


class AbortedTransaction(Struct, gc=False):
    """An element of `PartitionData.aborted_transactions`."""

    producer_id: int
    first_offset: int


class PartitionData(Struct, gc=False):
    """An element of `FetchableTopicResponse.partitions`."""

    partition_index: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: list[AbortedTransaction] | None
    preferred_read_replica: int
    records: bytes | None


class FetchableTopicResponse(Struct, gc=False):
    """An element of `FetchResponse.responses`."""

    topic_id: bytes
    partitions: list[PartitionData]


class FetchResponse(Struct, gc=False):
    """The Fetch response, version 13."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    responses: list[FetchableTopicResponse]


def decode_request(buf: bytes, offset: int, version: int, elements_max: int = ELEMENTS_MAX) -> FetchRequest:
    """Decode the FetchRequest from ``offset`` to the end of ``buf``."""
    if version != 13:
        raise UnsupportedVersionError(f"version {version} of FetchRequest")
    try:
        at = offset
        left = elements_max
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, n = (
            _unpack_iiiibiiB(buf, at)
        )
        at += 26
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        left -= n - 1
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
        topics: list[FetchTopic] = []
        for _ in range(n - 1):
            topic_id, n = _unpack_16sB(buf, at)
            at += 17
            if not 0 < n < 128:
                n, at = read_length(buf, at - 1)
            left -= n - 1
            if left < 0:
                raise TooManyElementsError(f"more elements than allowed before byte {at}")
            partitions: list[FetchPartition] = []
            for _ in range(n - 1):
                (
                    partition,
                    current_leader_epoch,
                    fetch_offset,
                    last_fetched_epoch,
                    log_start_offset,
                    partition_max_bytes,
                    n,
                ) = _unpack_iiqiqiB(buf, at)
                at += 33
                if n:
                    at, left = skip_tags_within(buf, at - 1, left)
                fetch_partition = FetchPartition(
                    partition,
                    current_leader_epoch,
                    fetch_offset,
                    last_fetched_epoch,
                    log_start_offset,
                    partition_max_bytes,
                )
                partitions.append(fetch_partition)
            if buf[at]:
                at, left = skip_tags_within(buf, at, left)
            else:
                at += 1
            topics.append(FetchTopic(topic_id, partitions))
        n = buf[at]
        at += 1
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        left -= n - 1
        if left < 0:
            raise TooManyElementsError(f"more elements than allowed before byte {at}")
        forgotten_topics_data: list[ForgottenTopic] = []
        for _ in range(n - 1):
            topic_id, n = _unpack_16sB(buf, at)
            at += 17
            if not 0 < n < 128:
                n, at = read_length(buf, at - 1)
            left -= n - 1
            if left < 0:
                raise TooManyElementsError(f"more elements than allowed before byte {at}")
            forgotten_topic_partitions: list[int] = []
            for _ in range(n - 1):
                (number,) = _unpack_i(buf, at)
                at += 4
                forgotten_topic_partitions.append(number)
            if buf[at]:
                at, left = skip_tags_within(buf, at, left)
            else:
                at += 1
            forgotten_topics_data.append(ForgottenTopic(topic_id, forgotten_topic_partitions))
        n = buf[at]
        if not 0 < n < 128:
            n, at = read_string_length(buf, at)
            left -= n >> 6
            if left < 0:
                raise TooManyElementsError(f"more elements than allowed before byte {at}")
        rack_id = buf[at + 1 : at + n].decode()
        at += n
        if buf[at]:
            at, left = skip_tags_within(buf, at, left)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"FetchRequest ends at byte {at} of {len(buf)}")
        return FetchRequest(
            replica_id,
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation_level,
            session_id,
            session_epoch,
            topics,
            forgotten_topics_data,
            rack_id,
        )
    except MALFORMED as error:
        raise DecodeError(f"FetchRequest: {error}") from error


def encode_request(message: FetchRequest, version: int) -> bytes:
    """Encode the FetchRequest. Raises EncodeError if a value has no wire form."""
    if version != 13:
        raise UnsupportedVersionError(f"version {version} of FetchRequest")
    try:
        fixed_0 = _pack_iiiibii(
            message.replica_id,
            message.max_wait_ms,
            message.min_bytes,
            message.max_bytes,
            message.isolation_level,
            message.session_id,
            message.session_epoch,
        )
        n = len(message.topics) + 1
        topics_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [fixed_0, topics_n]
        for topic in message.topics:
            if len(topic.topic_id) != 16:
                raise EncodeError("topic_id is not 16 bytes long")
            n = len(topic.partitions) + 1
            partitions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (topic.topic_id, partitions_n)
            parts += [
                _pack_iiqiqix(
                    fetch_partition.partition,
                    fetch_partition.current_leader_epoch,
                    fetch_partition.fetch_offset,
                    fetch_partition.last_fetched_epoch,
                    fetch_partition.log_start_offset,
                    fetch_partition.partition_max_bytes,
                )
                for fetch_partition in topic.partitions
            ]
            parts.append(b"\x00")
        n = len(message.forgotten_topics_data) + 1
        forgotten_topics_data_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts.append(forgotten_topics_data_n)
        for forgotten_topics_data in message.forgotten_topics_data:
            if len(forgotten_topics_data.topic_id) != 16:
                raise EncodeError("topic_id is not 16 bytes long")
            n = len(forgotten_topics_data.partitions) + 1
            partitions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (forgotten_topics_data.topic_id, partitions_n)
            parts += [_pack_i(partition) for partition in forgotten_topics_data.partitions]
            parts.append(b"\x00")
        rack_id = message.rack_id.encode()
        n = len(rack_id) + 1
        rack_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts += (rack_id_n, rack_id, b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"FetchRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> FetchResponse:
    """Decode the FetchResponse from ``offset`` to the end of ``buf``."""
    if version != 13:
        raise UnsupportedVersionError(f"version {version} of FetchResponse")
    try:
        at = offset
        throttle_time_ms, error_code, session_id, n = _unpack_ihiB(buf, at)
        at += 11
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        responses: list[FetchableTopicResponse] = []
        for _ in range(n - 1):
            topic_id, n = _unpack_16sB(buf, at)
            at += 17
            if not 0 < n < 128:
                n, at = read_length(buf, at - 1)
            partitions: list[PartitionData] = []
            for _ in range(n - 1):
                (
                    partition_index,
                    partition_data_error_code,
                    high_watermark,
                    last_stable_offset,
                    log_start_offset,
                    n,
                ) = _unpack_ihqqqB(buf, at)
                at += 31
                if n > 127:
                    n, at = read_uvarint(buf, at - 1)
                aborted_transactions: list[AbortedTransaction] | None = None
                if n:
                    aborted_transactions = []
                    for _ in range(n - 1):
                        producer_id, first_offset, n = _unpack_qqB(buf, at)
                        at += 17
                        if n:
                            at = skip_tags(buf, at - 1)
                        aborted_transactions.append(AbortedTransaction(producer_id, first_offset))
                preferred_read_replica, n = _unpack_iB(buf, at)
                at += 5
                if n > 127:
                    n, at = read_uvarint(buf, at - 1)
                if not n:
                    records = None
                else:
                    records = buf[at : at + n - 1]
                    at += n - 1
                if buf[at]:
                    at = skip_tags(buf, at)
                else:
                    at += 1
                partition_data = PartitionData(
                    partition_index,
                    partition_data_error_code,
                    high_watermark,
                    last_stable_offset,
                    log_start_offset,
                    aborted_transactions,
                    preferred_read_replica,
                    records,
                )
                partitions.append(partition_data)
            if buf[at]:
                at = skip_tags(buf, at)
            else:
                at += 1
            responses.append(FetchableTopicResponse(topic_id, partitions))
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"FetchResponse ends at byte {at} of {len(buf)}")
        return FetchResponse(throttle_time_ms, error_code, session_id, responses)
    except MALFORMED as error:
        raise DecodeError(f"FetchResponse: {error}") from error


def encode_response(message: FetchResponse, version: int) -> bytes:
    """Encode the FetchResponse. Raises EncodeError if a value has no wire form."""
    if version != 13:
        raise UnsupportedVersionError(f"version {version} of FetchResponse")
    try:
        fixed_0 = _pack_ihi(message.throttle_time_ms, message.error_code, message.session_id)
        n = len(message.responses) + 1
        responses_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [fixed_0, responses_n]
        for response in message.responses:
            if len(response.topic_id) != 16:
                raise EncodeError("topic_id is not 16 bytes long")
            n = len(response.partitions) + 1
            partitions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (response.topic_id, partitions_n)
            for partition in response.partitions:
                fixed_0 = _pack_ihqqq(
                    partition.partition_index,
                    partition.error_code,
                    partition.high_watermark,
                    partition.last_stable_offset,
                    partition.log_start_offset,
                )
                parts.append(fixed_0)
                if partition.aborted_transactions is None:
                    parts.append(b"\x00")
                else:
                    n = len(partition.aborted_transactions) + 1
                    aborted_transactions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    parts.append(aborted_transactions_n)
                    parts += [
                        _pack_qqx(aborted_transaction.producer_id, aborted_transaction.first_offset)
                        for aborted_transaction in partition.aborted_transactions
                    ]
                if partition.records is None:
                    parts.append(_pack_ixx(partition.preferred_read_replica))
                else:
                    records = partition.records
                    n = len(records) + 1
                    records_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    parts += (_pack_i(partition.preferred_read_replica), records_n, records, b"\x00")
            parts.append(b"\x00")
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"FetchResponse: {error}") from error
