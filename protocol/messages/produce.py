"""Produce (API key 0), version 13: request and response."""

from msgspec import Struct

from protocol.fields import Int16, Int32, Int64, Uuid
from protocol.message_codec import api_codecs

API_KEY = 0
MIN_VERSION = 13
MAX_VERSION = 13
FLEXIBLE_VERSION = 13


class PartitionProduceData(Struct, gc=False):
    index: Int32
    # A single record batch.
    records: bytes | None


class TopicProduceData(Struct, gc=False):
    topic_id: Uuid
    partition_data: list[PartitionProduceData]


class ProduceRequest(Struct, gc=False):
    transactional_id: str | None
    # -1 means all in-sync replicas.
    acks: Int16
    timeout_ms: Int32
    topic_data: list[TopicProduceData]


class BatchIndexAndErrorMessage(Struct, gc=False):
    batch_index: Int32
    batch_index_error_message: str | None


class PartitionProduceResponse(Struct, gc=False):
    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Int64
    log_start_offset: Int64
    record_errors: list[BatchIndexAndErrorMessage]
    error_message: str | None


class TopicProduceResponse(Struct, gc=False):
    topic_id: Uuid
    partition_responses: list[PartitionProduceResponse]


class ProduceResponse(Struct, gc=False):
    responses: list[TopicProduceResponse]
    throttle_time_ms: Int32


decode_request, encode_request, decode_response, encode_response = api_codecs(
    ProduceRequest, ProduceResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
