"""AlterShareGroupOffsets (API key 91), version 0: request and response."""

from msgspec import Struct

from protocol.fields import Int16, Int32, Int64, Uuid
from protocol.message_codec import api_codecs

API_KEY = 91
MIN_VERSION = 0
MAX_VERSION = 0
FLEXIBLE_VERSION = 0


class RequestedPartition(Struct, gc=False):
    """An element of `RequestedTopic.partitions`."""

    partition_index: Int32
    start_offset: Int64


class RequestedTopic(Struct, gc=False):
    """An element of `AlterShareGroupOffsetsRequest.topics`."""

    topic_name: str
    partitions: list[RequestedPartition]


class AlterShareGroupOffsetsRequest(Struct, gc=False):
    """The AlterShareGroupOffsets request, version 0."""

    group_id: str
    topics: list[RequestedTopic]


class PartitionResult(Struct, gc=False):
    """An element of `TopicResult.partitions`."""

    partition_index: Int32
    error_code: Int16
    error_message: str | None


class TopicResult(Struct, gc=False):
    """An element of `AlterShareGroupOffsetsResponse.responses`."""

    topic_name: str
    topic_id: Uuid
    partitions: list[PartitionResult]


class AlterShareGroupOffsetsResponse(Struct, gc=False):
    """The AlterShareGroupOffsets response, version 0."""

    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None
    responses: list[TopicResult]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
