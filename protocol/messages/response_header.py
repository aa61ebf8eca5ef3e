"""ResponseHeader, versions 0 to 1."""

from msgspec import Struct

from protocol.fields import Int32
from protocol.message_codec import header_codec


class ResponseHeader(Struct, gc=False):
    # The correlation id of the request.
    correlation_id: Int32


decode, encode = header_codec(ResponseHeader, 0, 1, flexible_version=1)
