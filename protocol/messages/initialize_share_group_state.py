"""InitializeShareGroupState (API key 83), version 0: request and response."""

from msgspec import Struct

from protocol.fields import Int16, Int32, Int64, Uuid
from protocol.message_codec import api_codecs

API_KEY = 83
MIN_VERSION = 0
MAX_VERSION = 0
FLEXIBLE_VERSION = 0


class PartitionData(Struct, gc=False):
    partition: Int32
    state_epoch: Int32
    # -1 if it is not known yet.
    start_offset: Int64


class InitializeStateData(Struct, gc=False):
    topic_id: Uuid
    partitions: list[PartitionData]


class InitializeShareGroupStateRequest(Struct, gc=False):
    group_id: str
    topics: list[InitializeStateData]


class PartitionResult(Struct, gc=False):
    partition: Int32
    error_code: Int16 = 0
    error_message: str | None = None


class InitializeStateResult(Struct, gc=False):
    topic_id: Uuid
    partitions: list[PartitionResult]


class InitializeShareGroupStateResponse(Struct, gc=False):
    results: list[InitializeStateResult]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    MIN_VERSION,
    MAX_VERSION,
    FLEXIBLE_VERSION,
)
