"""ReadShareGroupStateSummary (API key 87), versions 0 to 1: request and response."""

from typing import Annotated

from msgspec import Struct

from protocol.fields import IGNORABLE, Int16, Int32, Int64, Uuid, Versions
from protocol.message_codec import api_codecs

API_KEY = 87
MIN_VERSION = 0
MAX_VERSION = 1
FLEXIBLE_VERSION = 0


class PartitionData(Struct, gc=False):
    partition: Int32
    leader_epoch: Int32


class ReadStateSummaryData(Struct, gc=False):
    topic_id: Uuid
    partitions: list[PartitionData]


class ReadShareGroupStateSummaryRequest(Struct, gc=False):
    group_id: str
    topics: list[ReadStateSummaryData]


class PartitionResult(Struct, gc=False):
    partition: Int32
    error_code: Int16 = 0
    error_message: str | None = None
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    # -1 if it is not known yet.
    start_offset: Int64 = 0
    # Offsets at or above the start offset whose delivery is complete; -1 if unknown (KIP-1226).
    delivery_complete_count: Annotated[Int32, Versions(1), IGNORABLE] = -1


class ReadStateSummaryResult(Struct, gc=False):
    topic_id: Uuid
    partitions: list[PartitionResult]


class ReadShareGroupStateSummaryResponse(Struct, gc=False):
    results: list[ReadStateSummaryResult]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    MIN_VERSION,
    MAX_VERSION,
    FLEXIBLE_VERSION,
)
