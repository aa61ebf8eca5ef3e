"""The authentication of a peer: carried to the broker and back, one request at a time, and proved afterwards.

What the broker said counts, and nothing that the peer said. But an answer without an error is no proof:
those in the middle of an exchange have none either, and how many there are depends on the mechanism. So
before a peer is led to the coordinator, the broker is asked something on the same connection: who is not
authenticated gets the error ILLEGAL_SASL_STATE for it, or no answer at all (Kafka's SaslServerAuthenticator).
"""

from struct import Struct

from coordinator.relay.frame_reader import SIZE_BYTES, EndOfStream, FrameReader, RequestHead
from coordinator.relay.request_memory import RequestMemory
from coordinator.relay.sasl import Exchange
from protocol.errors import ErrorCode
from protocol.messages import request_header, response_header

_DESCRIBE_CLUSTER = 60
# include_cluster_authorized_operations=false, no tags.
_DESCRIBE_CLUSTER_BODY = b"\0\0"
# Not one that a peer's authentication uses: the answer to our question cannot be taken for one to the peer's.
_CORRELATION_ID = 0x5EA5
# throttle_time_ms, error_code
_ANSWER = Struct(">ih")


async def authenticate(
    peer: FrameReader, broker: FrameReader, exchange: Exchange, request_memory: RequestMemory
) -> RequestHead:
    """Carry a SASL exchange to its end, and return how the request begins that is no part of it.

    That request is left where it is. Raises Ended when either side closes, and after a wrong password, when
    the peer has its answer. Raises OSError, ProtocolError, Refused.
    """
    while True:
        head = await peer.peek_head()
        if not exchange.is_next(head.api_key, head.api_version):
            return head
        with request_memory.reserve(head):
            request = await peer.frame()
            exchange.handle_request(request)
            await broker.end.send(request)
            del request
        answer = await broker.frame()
        exchange.handle_response(head.api_key, answer)
        await peer.end.send(answer)
        if exchange.failed:
            # The broker closes too, or waits for a second try that nobody makes.
            raise EndOfStream


async def is_authenticated(broker: FrameReader) -> bool:
    """Ask the broker whether the peer of this connection is authenticated. Raises OSError, ProtocolError."""
    try:
        await broker.end.send(_describe_cluster_request())
        answer = await broker.frame()
    except (EndOfStream, ConnectionError):
        return False
    header, at = response_header.decode(answer, SIZE_BYTES, 1)
    if header.correlation_id != _CORRELATION_ID or len(answer) < at + _ANSWER.size:
        return False
    _, error_code = _ANSWER.unpack_from(answer, at)
    return bool(error_code == ErrorCode.NONE)


def _describe_cluster_request() -> bytes:
    """Return a request for a description of the cluster, which needs no permission beyond being known."""
    header = request_header.RequestHeader(_DESCRIBE_CLUSTER, 0, _CORRELATION_ID, "share-coordinator-relay")
    body = request_header.encode(header, 2) + _DESCRIBE_CLUSTER_BODY
    return Struct(">i").pack(len(body)) + body
