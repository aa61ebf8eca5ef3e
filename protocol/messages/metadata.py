"""Metadata (API key 3), version 12: request and response.

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

_unpack_16sboolB = Fields(">16s?B").unpack_from
_unpack_16sB = Fields(">16sB").unpack_from
_unpack_boolboolB = Fields(">??B").unpack_from
_unpack_hB = Fields(">hB").unpack_from
_unpack_hiiiB = Fields(">hiiiB").unpack_from
_unpack_i = Fields(">i").unpack_from
_unpack_iB = Fields(">iB").unpack_from
_pack_16sbool = Fields(">16s?").pack
_pack_16sxx = Fields(">16sxx").pack
_pack_boolboolx = Fields(">??x").pack
_pack_h = Fields(">h").pack
_pack_hiii = Fields(">hiii").pack
_pack_i = Fields(">i").pack
_pack_ix = Fields(">ix").pack
_pack_ixx = Fields(">ixx").pack

__all__ = [
    "API_KEY",
    "MAX_VERSION",
    "MIN_VERSION",
    "DescribedBroker",
    "DescribedPartition",
    "DescribedTopic",
    "MetadataRequest",
    "MetadataResponse",
    "RequestedTopic",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

API_KEY = 3
MIN_VERSION = 12
MAX_VERSION = 12


class RequestedTopic(Struct, gc=False):
    """An element of `MetadataRequest.topics`."""

    # Zeros if the name is given.
    topic_id: bytes
    name: str | None


class MetadataRequest(Struct, gc=False):
    """The Metadata request, version 12."""

    # Null: all topics.
    topics: list[RequestedTopic] | None
    allow_auto_topic_creation: bool
    include_topic_authorized_operations: bool


class DescribedBroker(Struct, gc=False):
    """An element of `MetadataResponse.brokers`."""

    node_id: int
    host: str
    port: int
    rack: str | None


class DescribedPartition(Struct, gc=False):
    """An element of `DescribedTopic.partitions`."""

    error_code: int
    partition_index: int
    # -1: there is no leader.
    leader_id: int
    leader_epoch: int
    replica_nodes: list[int]
    isr_nodes: list[int]
    offline_replicas: list[int]


class DescribedTopic(Struct, gc=False):
    """An element of `MetadataResponse.topics`."""

    error_code: int
    name: str | None
    topic_id: bytes
    is_internal: bool
    partitions: list[DescribedPartition]
    topic_authorized_operations: int


class MetadataResponse(Struct, gc=False):
    """The Metadata response, version 12."""

    throttle_time_ms: int
    brokers: list[DescribedBroker]
    cluster_id: str | None
    controller_id: int
    topics: list[DescribedTopic]


def decode_request(
    buf: bytes,
    offset: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> MetadataRequest:
    """Decode the MetadataRequest from ``offset`` to the end of ``buf``."""
    if version != 12:
        raise UnsupportedVersionError(f"version {version} of MetadataRequest")
    try:
        at = offset
        left = elements_max
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
                topic_id, n = _unpack_16sB(buf, at)
                at += 17
                if n > 127:
                    n, at = read_nullable_string_length(buf, at - 1)
                if not n:
                    name = None
                else:
                    left -= n >> 6
                    if left < 0:
                        raise TooManyElementsError(f"more elements than allowed before byte {at}")
                    name = buf[at : at + n - 1].decode()
                    at += n - 1
                if buf[at]:
                    at, left = skip_tags_within(buf, at, left)
                else:
                    at += 1
                topics.append(RequestedTopic(topic_id, name))
        allow_auto_topic_creation, include_topic_authorized_operations, n = _unpack_boolboolB(buf, at)
        at += 3
        if n:
            at, left = skip_tags_within(buf, at - 1, left)
        if at != len(buf):
            raise DecodeError(f"MetadataRequest ends at byte {at} of {len(buf)}")
        return MetadataRequest(topics, allow_auto_topic_creation, include_topic_authorized_operations)
    except MALFORMED as error:
        raise DecodeError(f"MetadataRequest: {error}") from error


def encode_request(message: MetadataRequest, version: int) -> bytes:
    """Encode the MetadataRequest. Raises EncodeError if a value has no wire form."""
    if version != 12:
        raise UnsupportedVersionError(f"version {version} of MetadataRequest")
    try:
        parts: list[bytes] = []
        if message.topics is None:
            parts.append(b"\x00")
        else:
            n = len(message.topics) + 1
            topics_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts.append(topics_n)
            for topic in message.topics:
                if len(topic.topic_id) != 16:
                    raise EncodeError("topic_id is not 16 bytes long")
                if topic.name is None:
                    parts.append(_pack_16sxx(topic.topic_id))
                else:
                    name = topic.name.encode()
                    n = len(name) + 1
                    name_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                    parts += (topic.topic_id, name_n, name, b"\x00")
        fixed_0 = _pack_boolboolx(
            message.allow_auto_topic_creation,
            message.include_topic_authorized_operations,
        )
        parts.append(fixed_0)
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"MetadataRequest: {error}") from error


def decode_response(buf: bytes, offset: int, version: int) -> MetadataResponse:
    """Decode the MetadataResponse from ``offset`` to the end of ``buf``."""
    if version != 12:
        raise UnsupportedVersionError(f"version {version} of MetadataResponse")
    try:
        at = offset
        throttle_time_ms, n = _unpack_iB(buf, at)
        at += 5
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        brokers: list[DescribedBroker] = []
        for _ in range(n - 1):
            node_id, n = _unpack_iB(buf, at)
            at += 4
            if not 0 < n < 128:
                n, at = read_string_length(buf, at)
            host = buf[at + 1 : at + n].decode()
            at += n
            port, n = _unpack_iB(buf, at)
            at += 5
            if n > 127:
                n, at = read_nullable_string_length(buf, at - 1)
            if not n:
                rack = None
            else:
                rack = buf[at : at + n - 1].decode()
                at += n - 1
            if buf[at]:
                at = skip_tags(buf, at)
            else:
                at += 1
            brokers.append(DescribedBroker(node_id, host, port, rack))
        n = buf[at]
        at += 1
        if n > 127:
            n, at = read_nullable_string_length(buf, at - 1)
        if not n:
            cluster_id = None
        else:
            cluster_id = buf[at : at + n - 1].decode()
            at += n - 1
        controller_id, n = _unpack_iB(buf, at)
        at += 5
        if not 0 < n < 128:
            n, at = read_length(buf, at - 1)
        topics: list[DescribedTopic] = []
        for _ in range(n - 1):
            error_code, n = _unpack_hB(buf, at)
            at += 3
            if n > 127:
                n, at = read_nullable_string_length(buf, at - 1)
            if not n:
                name = None
            else:
                name = buf[at : at + n - 1].decode()
                at += n - 1
            topic_id, is_internal, n = _unpack_16sboolB(buf, at)
            at += 18
            if not 0 < n < 128:
                n, at = read_length(buf, at - 1)
            partitions: list[DescribedPartition] = []
            for _ in range(n - 1):
                described_partition_error_code, partition_index, leader_id, leader_epoch, n = _unpack_hiiiB(
                    buf, at
                )
                at += 15
                if not 0 < n < 128:
                    n, at = read_length(buf, at - 1)
                replica_nodes: list[int] = []
                for _ in range(n - 1):
                    (number,) = _unpack_i(buf, at)
                    at += 4
                    replica_nodes.append(number)
                n = buf[at]
                at += 1
                if not 0 < n < 128:
                    n, at = read_length(buf, at - 1)
                isr_nodes: list[int] = []
                for _ in range(n - 1):
                    (number,) = _unpack_i(buf, at)
                    at += 4
                    isr_nodes.append(number)
                n = buf[at]
                at += 1
                if not 0 < n < 128:
                    n, at = read_length(buf, at - 1)
                offline_replicas: list[int] = []
                for _ in range(n - 1):
                    (number,) = _unpack_i(buf, at)
                    at += 4
                    offline_replicas.append(number)
                if buf[at]:
                    at = skip_tags(buf, at)
                else:
                    at += 1
                described_partition = DescribedPartition(
                    described_partition_error_code,
                    partition_index,
                    leader_id,
                    leader_epoch,
                    replica_nodes,
                    isr_nodes,
                    offline_replicas,
                )
                partitions.append(described_partition)
            topic_authorized_operations, n = _unpack_iB(buf, at)
            at += 5
            if n:
                at = skip_tags(buf, at - 1)
            described_topic = DescribedTopic(
                error_code,
                name,
                topic_id,
                is_internal,
                partitions,
                topic_authorized_operations,
            )
            topics.append(described_topic)
        if buf[at]:
            at = skip_tags(buf, at)
        else:
            at += 1
        if at != len(buf):
            raise DecodeError(f"MetadataResponse ends at byte {at} of {len(buf)}")
        return MetadataResponse(throttle_time_ms, brokers, cluster_id, controller_id, topics)
    except MALFORMED as error:
        raise DecodeError(f"MetadataResponse: {error}") from error


def encode_response(message: MetadataResponse, version: int) -> bytes:
    """Encode the MetadataResponse. Raises EncodeError if a value has no wire form."""
    if version != 12:
        raise UnsupportedVersionError(f"version {version} of MetadataResponse")
    try:
        n = len(message.brokers) + 1
        brokers_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts = [_pack_i(message.throttle_time_ms), brokers_n]
        for broker in message.brokers:
            host = broker.host.encode()
            n = len(host) + 1
            host_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            if broker.rack is None:
                parts += (_pack_i(broker.node_id), host_n, host, _pack_ixx(broker.port))
            else:
                rack = broker.rack.encode()
                n = len(rack) + 1
                rack_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                parts += (_pack_i(broker.node_id), host_n, host, _pack_i(broker.port), rack_n, rack, b"\x00")
        if message.cluster_id is None:
            cluster_id = b"\x00"
        else:
            cluster_id = message.cluster_id.encode()
            n = len(cluster_id) + 1
            cluster_id_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            cluster_id = cluster_id_n + cluster_id
        n = len(message.topics) + 1
        topics_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
        parts += (cluster_id, _pack_i(message.controller_id), topics_n)
        for topic in message.topics:
            if topic.name is None:
                name = b"\x00"
            else:
                name = topic.name.encode()
                n = len(name) + 1
                name_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                name = name_n + name
            if len(topic.topic_id) != 16:
                raise EncodeError("topic_id is not 16 bytes long")
            n = len(topic.partitions) + 1
            partitions_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
            parts += (
                _pack_h(topic.error_code),
                name,
                _pack_16sbool(topic.topic_id, topic.is_internal),
                partitions_n,
            )
            for partition in topic.partitions:
                fixed_0 = _pack_hiii(
                    partition.error_code,
                    partition.partition_index,
                    partition.leader_id,
                    partition.leader_epoch,
                )
                n = len(partition.replica_nodes) + 1
                replica_nodes_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                parts += (fixed_0, replica_nodes_n)
                parts += [_pack_i(replica_node) for replica_node in partition.replica_nodes]
                n = len(partition.isr_nodes) + 1
                isr_nodes_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                parts.append(isr_nodes_n)
                parts += [_pack_i(isr_node) for isr_node in partition.isr_nodes]
                n = len(partition.offline_replicas) + 1
                offline_replicas_n = SHORT_UVARINTS[n] if n < 128 else write_uvarint(n)
                parts.append(offline_replicas_n)
                parts += [_pack_i(offline_replica) for offline_replica in partition.offline_replicas]
                parts.append(b"\x00")
            parts.append(_pack_ix(topic.topic_authorized_operations))
        parts.append(b"\x00")
        return b"".join(parts)
    except UNENCODABLE as error:
        raise EncodeError(f"MetadataResponse: {error}") from error
