"""SaslAuthenticate (API key 36), versions 0 to 2: request and response."""

from typing import Annotated

from msgspec import Struct

from protocol.fields import IGNORABLE, Int16, Int64, Versions
from protocol.message_codec import api_codecs

API_KEY = 36
MIN_VERSION = 0
MAX_VERSION = 2
FLEXIBLE_VERSION = 2


class SaslAuthenticateRequest(Struct, gc=False):
    # The client's token of the SASL mechanism.
    auth_bytes: bytes


class SaslAuthenticateResponse(Struct, gc=False):
    error_code: Int16 = 0
    error_message: str | None = ""
    # The server's token of the SASL mechanism.
    auth_bytes: bytes = b""
    # The client must re-authenticate within this number of ms; 0 means never (KIP-368).
    session_lifetime_ms: Annotated[Int64, Versions(1), IGNORABLE] = 0


decode_request, encode_request, decode_response, encode_response = api_codecs(
    SaslAuthenticateRequest, SaslAuthenticateResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
