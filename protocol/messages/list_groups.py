"""ListGroups (API key 16), version 5: request and response."""

from msgspec import Struct

from protocol.fields import Int16, Int32
from protocol.message_codec import api_codecs

API_KEY = 16
MIN_VERSION = 5
MAX_VERSION = 5
FLEXIBLE_VERSION = 5


class ListGroupsRequest(Struct, gc=False):
    states_filter: list[str]
    types_filter: list[str]


class ListedGroup(Struct, gc=False):
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class ListGroupsResponse(Struct, gc=False):
    throttle_time_ms: Int32
    error_code: Int16
    groups: list[ListedGroup]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    ListGroupsRequest, ListGroupsResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
