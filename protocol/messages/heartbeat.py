"""Heartbeat (API key 12), version 4: request and response."""

from msgspec import Struct

from protocol.fields import Int16, Int32
from protocol.message_codec import api_codecs

API_KEY = 12
MIN_VERSION = 4
MAX_VERSION = 4
FLEXIBLE_VERSION = 4


class HeartbeatRequest(Struct, gc=False):
    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None


class HeartbeatResponse(Struct, gc=False):
    throttle_time_ms: Int32
    error_code: Int16


decode_request, encode_request, decode_response, encode_response = api_codecs(
    HeartbeatRequest, HeartbeatResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
