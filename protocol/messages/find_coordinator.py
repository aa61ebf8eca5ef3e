"""FindCoordinator (API key 10), versions 0 to 6: request and response."""

from typing import Annotated

from msgspec import Struct

from protocol.fields import IGNORABLE, Int8, Int16, Int32, Versions
from protocol.message_codec import api_codecs

API_KEY = 10
MIN_VERSION = 0
MAX_VERSION = 6
FLEXIBLE_VERSION = 3


class FindCoordinatorRequest(Struct, gc=False):
    # The requested key, before version 4.
    key: Annotated[str, Versions(0, 3)] = ""
    # 0 means group, 1 transaction, 2 share.
    key_type: Annotated[Int8, Versions(1)] = 0
    # The requested keys, since version 4.
    coordinator_keys: Annotated[list[str], Versions(4)] = []


class Coordinator(Struct, gc=False):
    # The key in the request that this result is for.
    key: str = ""
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


class FindCoordinatorResponse(Struct, gc=False):
    throttle_time_ms: Annotated[Int32, Versions(1), IGNORABLE] = 0
    error_code: Annotated[Int16, Versions(0, 3)] = 0
    error_message: Annotated[str | None, Versions(1, 3), IGNORABLE] = ""
    node_id: Annotated[Int32, Versions(0, 3)] = 0
    host: Annotated[str, Versions(0, 3)] = ""
    port: Annotated[Int32, Versions(0, 3)] = 0
    # One element for each requested key, since version 4.
    coordinators: Annotated[list[Coordinator], Versions(4)] = []


decode_request, encode_request, decode_response, encode_response = api_codecs(
    FindCoordinatorRequest, FindCoordinatorResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
