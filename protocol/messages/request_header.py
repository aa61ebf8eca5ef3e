"""RequestHeader, versions 1 to 2."""

from typing import Annotated

from msgspec import Struct

from protocol.fields import LEGACY, Int16, Int32
from protocol.message_codec import header_codec


class RequestHeader(Struct, gc=False):
    # The API key of the request.
    request_api_key: Int16
    # The version of that API.
    request_api_version: Int16
    # The server copies this number into the response.
    correlation_id: Int32
    # The client id that the client has configured.
    client_id: Annotated[str | None, LEGACY]


decode, encode = header_codec(RequestHeader, 1, 2, flexible_version=2)
