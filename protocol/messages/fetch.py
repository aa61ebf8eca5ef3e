"""Fetch (API key 1), version 13: request and response."""

from msgspec import Struct

from protocol.fields import Int8, Int16, Int32, Int64, Uuid
from protocol.message_codec import api_codecs

API_KEY = 1
MIN_VERSION = 13
MAX_VERSION = 13
FLEXIBLE_VERSION = 13


class FetchPartition(Struct, gc=False):
    partition: Int32
    # -1 if it is unknown.
    current_leader_epoch: Int32
    fetch_offset: Int64
    # -1 if it is unknown.
    last_fetched_epoch: Int32
    # -1 unless a follower sends the request.
    log_start_offset: Int64
    partition_max_bytes: Int32


class FetchTopic(Struct, gc=False):
    topic_id: Uuid
    partitions: list[FetchPartition]


class ForgottenTopic(Struct, gc=False):
    topic_id: Uuid
    partitions: list[Int32]


class FetchRequest(Struct, gc=False):
    # -1 for a consumer.
    replica_id: Int32
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32
    # 0 means read uncommitted.
    isolation_level: Int8
    session_id: Int32
    # -1 means no fetch session.
    session_epoch: Int32
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic]
    rack_id: str


class AbortedTransaction(Struct, gc=False):
    producer_id: Int64
    first_offset: Int64


class PartitionData(Struct, gc=False):
    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64
    log_start_offset: Int64
    aborted_transactions: list[AbortedTransaction] | None
    preferred_read_replica: Int32
    records: bytes | None


class FetchableTopicResponse(Struct, gc=False):
    topic_id: Uuid
    partitions: list[PartitionData]


class FetchResponse(Struct, gc=False):
    throttle_time_ms: Int32
    error_code: Int16
    session_id: Int32
    responses: list[FetchableTopicResponse]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    FetchRequest, FetchResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
