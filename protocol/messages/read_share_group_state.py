"""ReadShareGroupState (API key 84), version 0: request and response."""

from msgspec import Struct

from protocol.fields import Int16, Int32, Int64, StateBatches, Uuid
from protocol.message_codec import api_codecs

API_KEY = 84
MIN_VERSION = 0
MAX_VERSION = 0
FLEXIBLE_VERSION = 0


class PartitionData(Struct, gc=False):
    partition: Int32
    leader_epoch: Int32


class ReadStateData(Struct, gc=False):
    topic_id: Uuid
    partitions: list[PartitionData]


class ReadShareGroupStateRequest(Struct, gc=False):
    group_id: str
    topics: list[ReadStateData]


class PartitionResult(Struct, gc=False):
    partition: Int32
    error_code: Int16 = 0
    error_message: str | None = None
    state_epoch: Int32 = 0
    # -1 if it is not known yet.
    start_offset: Int64 = 0
    state_batches: StateBatches = b""


class ReadStateResult(Struct, gc=False):
    topic_id: Uuid
    partitions: list[PartitionResult]


class ReadShareGroupStateResponse(Struct, gc=False):
    results: list[ReadStateResult]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    ReadShareGroupStateRequest, ReadShareGroupStateResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
