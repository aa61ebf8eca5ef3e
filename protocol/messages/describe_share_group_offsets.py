"""DescribeShareGroupOffsets (API key 90), version 0: request and response."""

from msgspec import Struct

from protocol.fields import Int16, Int32, Int64, Uuid
from protocol.message_codec import api_codecs

API_KEY = 90
MIN_VERSION = 0
MAX_VERSION = 0
FLEXIBLE_VERSION = 0


class RequestedTopic(Struct, gc=False):
    topic_name: str
    partitions: list[Int32]


class RequestedGroup(Struct, gc=False):
    group_id: str
    # Null means all topics.
    topics: list[RequestedTopic] | None


class DescribeShareGroupOffsetsRequest(Struct, gc=False):
    groups: list[RequestedGroup]


class DescribedPartition(Struct, gc=False):
    partition_index: Int32
    # -1 if no record was read yet.
    start_offset: Int64
    leader_epoch: Int32
    error_code: Int16
    error_message: str | None


class DescribedTopic(Struct, gc=False):
    topic_name: str
    topic_id: Uuid
    partitions: list[DescribedPartition]


class DescribedGroup(Struct, gc=False):
    group_id: str
    topics: list[DescribedTopic]
    error_code: Int16
    error_message: str | None


class DescribeShareGroupOffsetsResponse(Struct, gc=False):
    throttle_time_ms: Int32
    groups: list[DescribedGroup]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    MIN_VERSION,
    MAX_VERSION,
    FLEXIBLE_VERSION,
)
