"""Forward a peer's SASL authentication to the broker, and verify afterwards that the broker accepted it.

Only the broker decides whether a login succeeds. A response without an error is no proof: intermediate
responses have no error either, and their number depends on the mechanism. Before a peer is routed to the
coordinator, the relay therefore sends a request on the same connection. If the peer is not authenticated, the
broker answers it with ILLEGAL_SASL_STATE or closes the connection (Kafka's SaslServerAuthenticator).
"""

from struct import Struct

from coordinator.serve.relay.frame_reader import SIZE_BYTES, EndOfStream, FrameReader, RequestHead
from coordinator.serve.relay.request_memory import RequestMemory
from coordinator.serve.relay.sasl import RelayedExchange
from protocol.errors import ErrorCode
from protocol.messages import request_header, response_header

_DESCRIBE_CLUSTER = 60
# include_cluster_authorized_operations=false, no tags.
_DESCRIBE_CLUSTER_BODY = b"\0\0"
# Identifies the response to the relay's own request.
_CORRELATION_ID = 0x5EA5
# throttle_time_ms, error_code
_ANSWER = Struct(">ih")


class LoginFailed(EndOfStream):
    """The broker refused a login, and the peer has the response."""


async def authenticate(
    peer: FrameReader, broker: FrameReader, exchange: RelayedExchange, request_memory: RequestMemory
) -> RequestHead:
    """Forward a SASL exchange, and return the start of the first request that is not part of it.

    That request stays in the buffer. Raises EndOfStream if either side closes, and LoginFailed after a failed
    login. Raises OSError, ProtocolError and RefusedConnection.
    """
    while True:
        head = await peer.peek_head()
        if not exchange.is_next(head.api_key, head.api_version):
            return head
        with request_memory.reserve_capacity(head):
            request = await peer.frame()
            exchange.handle_request(request)
            await broker.end.send(request)
            del request
        answer = await broker.frame()
        exchange.handle_response(head.api_key, answer)
        await peer.end.send(answer)
        if exchange.failed:
            # A peer gets one login attempt for each connection. After a failed login, the broker closes the
            # connection, too.
            raise LoginFailed


async def is_authenticated(broker: FrameReader) -> bool:
    """Query whether the broker has authenticated this connection's peer. Raises OSError, ProtocolError."""
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
    """Return a DescribeCluster request, which any authenticated user may send."""
    header = request_header.RequestHeader(_DESCRIBE_CLUSTER, 0, _CORRELATION_ID, "share-coordinator-relay")
    body = request_header.encode(header, 2) + _DESCRIBE_CLUSTER_BODY
    return Struct(">i").pack(len(body)) + body
