"""Close connections for malformed requests, and encode error responses for unauthorized clients.

An error response has one error code in all its fields.

Sources: the `getErrorResponse` methods of Kafka's requests, and KafkaApis of 4.4 for missing CLUSTER_ACTION.
"""

from struct import Struct
from typing import Any, NamedTuple

from coordinator.client.rpcs import RPC_BY_API_KEY
from protocol.errors import DecodeError, ErrorCode, TooManyElementsError, UnsupportedVersionError
from protocol.messages import (
    APIS,
    api_versions,
    find_coordinator,
    request_header,
    request_header_version,
    response_header_version,
    sasl_authenticate,
    sasl_handshake,
)
from protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse

# Maximum number of elements in a request of an unauthorized client; see `protocol.wire.ELEMENTS_MAX`.
UNTRUSTED_ELEMENTS_MAX = 1_000

_HEADER_BEGIN = Struct(">hhi")
_SIZE_AND_CORRELATION_ID = Struct(">ii")


class CloseConnection(Exception):
    """The connection must be closed; the reason is a metric label, the message is logged.

    `advice`, if set, tells the operator what to do; it is logged at WARNING with a rate limit.
    """

    def __init__(self, reason: str, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.advice = advice


def undecodable_request(request: str, error: DecodeError) -> CloseConnection:
    """Return the reason to close a connection whose request cannot be decoded or has too many elements."""
    if isinstance(error, TooManyElementsError):
        return CloseConnection(
            "too_many_elements",
            f"{request}: {error}",
            "A request has more elements than request.max.elements allows; its connection was closed. "
            "Raise request.max.elements if the client is a broker.",
        )
    return CloseConnection("undecodable", f"{request}: {error}")


class DecodedRequest(NamedTuple):
    """A decoded request of any API."""

    api_key: int
    version: int
    correlation_id: int
    message: Any

    def answer(self, response: Any) -> bytes:
        """Return the response frame, with its size field, for an instance of the API's response class."""
        module: Any = APIS[self.api_key].module
        body: bytes = module.encode_response(response, self.version)
        if response_header_version(self.api_key, self.version):
            body = b"\0" + body
        return _SIZE_AND_CORRELATION_ID.pack(len(body) + 4, self.correlation_id) + body


def read_api_key(frame: bytes) -> int:
    """Return the API key of a frame, or -1 if the frame is too short."""
    return int.from_bytes(frame[:2], "big", signed=True) if len(frame) >= _HEADER_BEGIN.size else -1


def decode_frame(frame: bytes, elements_max: int = UNTRUSTED_ELEMENTS_MAX) -> DecodedRequest:
    """Decode a request frame; raise CloseConnection, also for APIs and versions that are not served."""
    if len(frame) < _HEADER_BEGIN.size:
        raise CloseConnection("truncated", "a frame is shorter than a request header")
    api_key, version, correlation_id = _HEADER_BEGIN.unpack_from(frame)
    try:
        _, offset = request_header.decode(frame, 0, request_header_version(api_key, version))
        module: Any = APIS[api_key].module
        message = module.decode_request(frame, offset, version, elements_max)
    except UnsupportedVersionError as error:
        raise CloseConnection("unsupported_version", str(error)) from None
    except DecodeError as error:
        raise undecodable_request(f"{APIS[api_key].name} v{version}", error) from None
    return DecodedRequest(api_key, version, correlation_id, message)


def error_response(decoded: DecodedRequest, error_code: ErrorCode, message: str) -> bytes:
    return decoded.answer(_error_result(decoded, int(error_code), message))


def _error_result(decoded: DecodedRequest, error_code: int, message: str) -> Any:
    request = decoded.message
    rpc = RPC_BY_API_KEY.get(decoded.api_key)
    if rpc is not None:
        return rpc.response(
            [
                rpc.topic_result(
                    topic.topic_id,
                    [rpc.partition_result(part.partition, error_code, message) for part in topic.partitions],
                )
                for topic in request.topics
            ]
        )
    if decoded.api_key == find_coordinator.API_KEY:
        no_coordinator: dict[str, Any] = {
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": error_code,
            "error_message": message,
        }
        if decoded.version < 4:
            return FindCoordinatorResponse(**no_coordinator)
        return FindCoordinatorResponse(
            coordinators=[Coordinator(key=key, **no_coordinator) for key in request.coordinator_keys]
        )
    if decoded.api_key == sasl_handshake.API_KEY:
        return sasl_handshake.SaslHandshakeResponse(error_code=error_code)
    if decoded.api_key == sasl_authenticate.API_KEY:
        return sasl_authenticate.SaslAuthenticateResponse(error_code=error_code, error_message=message)
    assert decoded.api_key == api_versions.API_KEY
    return api_versions.ApiVersionsResponse(error_code=error_code)
