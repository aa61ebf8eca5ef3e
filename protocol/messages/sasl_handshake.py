"""SaslHandshake (API key 17), versions 0 to 1: request and response."""

from msgspec import Struct

from protocol.fields import Int16
from protocol.message_codec import api_codecs

API_KEY = 17
MIN_VERSION = 0
MAX_VERSION = 1
FLEXIBLE_VERSION = 2


class SaslHandshakeRequest(Struct, gc=False):
    # The SASL mechanism that the client has chosen.
    mechanism: str


class SaslHandshakeResponse(Struct, gc=False):
    error_code: Int16 = 0
    # The SASL mechanisms that are enabled.
    mechanisms: list[str] = []


decode_request, encode_request, decode_response, encode_response = api_codecs(
    SaslHandshakeRequest, SaslHandshakeResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
