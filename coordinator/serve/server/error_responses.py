"""Encode the error response of an API, with one error code in all its fields, for unauthorized clients.

Sources: the `getErrorResponse` methods of Kafka's requests, and KafkaApis of 4.4 for missing CLUSTER_ACTION.
"""

from struct import Struct
from typing import Any, NamedTuple

from coordinator.client.rpcs import RPC_BY_API_KEY
from protocol.errors import DecodeError, ErrorCode, UnsupportedVersionError
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


def decode_frame(frame: bytes) -> DecodedRequest:
    """Decode a request frame of a client that is not authorized.

    Raises DecodeError, also for APIs and versions that are not served, and TooManyElementsError.
    """
    if len(frame) < _HEADER_BEGIN.size:
        raise DecodeError("a frame is shorter than a request header")
    api_key, version, correlation_id = _HEADER_BEGIN.unpack_from(frame)
    try:
        _, offset = request_header.decode(frame, 0, request_header_version(api_key, version))
        module: Any = APIS[api_key].module
        message = module.decode_request(frame, offset, version, UNTRUSTED_ELEMENTS_MAX)
        return DecodedRequest(api_key, version, correlation_id, message)
    except UnsupportedVersionError as error:
        raise DecodeError(str(error)) from None


def error_response(asked: DecodedRequest, error_code: ErrorCode, message: str) -> bytes:
    """Return the response frame with an error code."""
    return asked.answer(_error_result(asked, int(error_code), message))


def _error_result(asked: DecodedRequest, error_code: int, message: str) -> Any:
    request = asked.message
    rpc = RPC_BY_API_KEY.get(asked.api_key)
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
    if asked.api_key == find_coordinator.API_KEY:
        nobody: dict[str, Any] = {
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": error_code,
            "error_message": message,
        }
        if asked.version < 4:
            return FindCoordinatorResponse(**nobody)
        return FindCoordinatorResponse(
            coordinators=[Coordinator(key=key, **nobody) for key in request.coordinator_keys]
        )
    if asked.api_key == sasl_handshake.API_KEY:
        return sasl_handshake.SaslHandshakeResponse(error_code=error_code)
    if asked.api_key == sasl_authenticate.API_KEY:
        return sasl_authenticate.SaslAuthenticateResponse(error_code=error_code, error_message=message)
    assert asked.api_key == api_versions.API_KEY
    return api_versions.ApiVersionsResponse(error_code=error_code)
