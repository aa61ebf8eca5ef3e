"""DeleteShareGroupOffsets (API key 92), version 0: request and response."""

from msgspec import Struct

from protocol.fields import Int16, Int32, Uuid
from protocol.message_codec import api_codecs

API_KEY = 92
MIN_VERSION = 0
MAX_VERSION = 0
FLEXIBLE_VERSION = 0


class RequestedTopic(Struct, gc=False):
    topic_name: str


class DeleteShareGroupOffsetsRequest(Struct, gc=False):
    group_id: str
    topics: list[RequestedTopic]


class TopicResult(Struct, gc=False):
    topic_name: str
    topic_id: Uuid
    error_code: Int16
    error_message: str | None


class DeleteShareGroupOffsetsResponse(Struct, gc=False):
    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None
    responses: list[TopicResult]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    MIN_VERSION,
    MAX_VERSION,
    FLEXIBLE_VERSION,
)
