"""Metadata (API key 3), version 12: request and response."""

from msgspec import Struct

from protocol.fields import Int16, Int32, Uuid
from protocol.message_codec import api_codecs

API_KEY = 3
MIN_VERSION = 12
MAX_VERSION = 12
FLEXIBLE_VERSION = 12


class RequestedTopic(Struct, gc=False):
    # All bytes are zero if the topic is identified by its name.
    topic_id: Uuid
    name: str | None


class MetadataRequest(Struct, gc=False):
    # Null means all topics.
    topics: list[RequestedTopic] | None
    allow_auto_topic_creation: bool
    include_topic_authorized_operations: bool


class DescribedBroker(Struct, gc=False):
    node_id: Int32
    host: str
    port: Int32
    rack: str | None


class DescribedPartition(Struct, gc=False):
    error_code: Int16
    partition_index: Int32
    # -1 if there is no leader.
    leader_id: Int32
    leader_epoch: Int32
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    offline_replicas: list[Int32]


class DescribedTopic(Struct, gc=False):
    error_code: Int16
    name: str | None
    topic_id: Uuid
    is_internal: bool
    partitions: list[DescribedPartition]
    topic_authorized_operations: Int32


class MetadataResponse(Struct, gc=False):
    throttle_time_ms: Int32
    brokers: list[DescribedBroker]
    cluster_id: str | None
    controller_id: Int32
    topics: list[DescribedTopic]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    MetadataRequest, MetadataResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
