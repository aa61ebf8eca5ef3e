"""DeleteShareGroupState (API key 86), version 0: request and response."""

from msgspec import Struct

from protocol.fields import Int16, Int32, Uuid
from protocol.message_codec import api_codecs

API_KEY = 86
MIN_VERSION = 0
MAX_VERSION = 0
FLEXIBLE_VERSION = 0


class PartitionData(Struct, gc=False):
    partition: Int32


class DeleteStateData(Struct, gc=False):
    topic_id: Uuid
    partitions: list[PartitionData]


class DeleteShareGroupStateRequest(Struct, gc=False):
    group_id: str
    topics: list[DeleteStateData]


class PartitionResult(Struct, gc=False):
    partition: Int32
    error_code: Int16 = 0
    error_message: str | None = None


class DeleteStateResult(Struct, gc=False):
    topic_id: Uuid
    partitions: list[PartitionResult]


class DeleteShareGroupStateResponse(Struct, gc=False):
    results: list[DeleteStateResult]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    DeleteShareGroupStateRequest, DeleteShareGroupStateResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
