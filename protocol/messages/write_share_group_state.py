"""WriteShareGroupState (API key 85), versions 0 to 1: request and response."""

from typing import Annotated

from msgspec import Struct

from protocol.fields import IGNORABLE, Int16, Int32, Int64, StateBatches, Uuid, Versions
from protocol.message_codec import api_codecs

API_KEY = 85
MIN_VERSION = 0
MAX_VERSION = 1
FLEXIBLE_VERSION = 0


class PartitionData(Struct, gc=False):
    partition: Int32
    state_epoch: Int32
    leader_epoch: Int32
    # -1 if the request does not change the start offset.
    start_offset: Int64
    # Offsets at or above the start offset whose delivery is complete; -1 if unknown (KIP-1226).
    delivery_complete_count: Annotated[Int32, Versions(1), IGNORABLE] = -1
    state_batches: StateBatches = b""


class WriteStateData(Struct, gc=False):
    topic_id: Uuid
    partitions: list[PartitionData]


class WriteShareGroupStateRequest(Struct, gc=False):
    group_id: str
    topics: list[WriteStateData]


class PartitionResult(Struct, gc=False):
    partition: Int32
    error_code: Int16 = 0
    error_message: str | None = None


class WriteStateResult(Struct, gc=False):
    topic_id: Uuid
    partitions: list[PartitionResult]


class WriteShareGroupStateResponse(Struct, gc=False):
    results: list[WriteStateResult]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    WriteShareGroupStateRequest, WriteShareGroupStateResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
