"""Dispatch a request frame by API and version, and encode the response frame.

If a frame is malformed, its connection is closed (`CloseConnection`).  An unexpected response, for example
one with a wrong correlation id or an empty coordinator, would end a broker's network thread.  Every
well-formed request gets a response, with an error code if needed.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from typing import Any

from coordinator.client.rpcs import READ, RPC_BY_API_KEY, SUMMARY, WRITE, Rpc
from coordinator.metrics import Metrics
from coordinator.process.clock import monotonic_seconds
from coordinator.serve.forwarding import FORWARDED_CLIENT_ID
from coordinator.serve.runtime.operations import FastPathExecutor
from coordinator.serve.server.error_responses import (
    CloseConnection,
    DecodedRequest,
    decode_frame,
    error_response,
    undecodable_request,
)
from coordinator.serve.server.find_coordinator import CoordinatorDirectory, EncodedPart, join_encoded_parts
from coordinator.serve.server.large_requests import (
    LARGE_FIND_BYTES,
    LARGE_FRAME_BYTES,
    LARGE_WRITE_BYTES,
    LargeRequestOrigin,
    LargeRequests,
    Respond,
    Steps,
)
from coordinator.serve.service import Service
from protocol.errors import DecodeError, ErrorCode
from protocol.messages import APIS, request_header, sasl_authenticate, sasl_handshake
from protocol.messages import api_versions as versions_api
from protocol.messages import find_coordinator as find_api
from protocol.wire import write_uvarint

_logger = logging.getLogger(__name__)

_HEADER_BEGIN = Struct(">hhi")
_CORRELATION_ID = Struct(">i")
_FLEXIBLE_HEADER_BEGIN = Struct(">hhih")
_SIZE_AND_CORRELATION_ID = Struct(">ii")

# The offset of the client id in a request header, and the client id of a coordinator that forwards a request.
_CLIENT_ID_AT = 10
_FORWARDED = FORWARDED_CLIENT_ID.encode()

# The client software names and versions that Kafka accepts in ApiVersions version 3 and later
# (ApiVersionsRequest).
_CLIENT_SOFTWARE_PATTERN = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")

# Maximum number of cached FindCoordinator responses, and of the bytes of a request and its response; the key
# is the request. A broker repeats FindCoordinator before every request, each time for few share-partitions.
CACHED_RESPONSES_MAX = 8_192
CACHED_BYTES_MAX = 1024


_SERVED_KEYS = (versions_api.API_KEY, find_api.API_KEY, *RPC_BY_API_KEY)
# Number of results of a large response that are encoded in one step, which takes about 1 ms.
_RESULTS_PER_STEP = 2_000
# Fast-path requests below these sizes are executed in one step.
_FAST_PATH_BYTES = {
    WRITE.api_key: LARGE_WRITE_BYTES,
    READ.api_key: LARGE_FRAME_BYTES,
    SUMMARY.api_key: LARGE_FRAME_BYTES,
}
_WRITE_KEY = WRITE.api_key.to_bytes(2, "big")
_SASL_KEYS = (sasl_handshake.API_KEY, sasl_authenticate.API_KEY)


class Api:
    """Handle the frames of all connections of a listener; `sasl` is True if clients log in.

    If a request has more elements than the service's limits allow, its connection is closed before decoding.
    """

    # A client is authenticated and authorized before its frames are passed to this class.
    is_authorized = True

    def __init__(
        self, service: Service, directory: CoordinatorDirectory, metrics: Metrics, *, sasl: bool = False
    ) -> None:
        self._service = service
        self._directory = directory
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._elements_max = service.limits.elements_max
        self._large = LargeRequests(service.limits.decoded_bytes_max, self._elements_max)
        self._fast_path_executor = service.fast_path_executor()
        self._versions = [
            versions_api.ApiVersion(api_key, APIS[api_key].min_version, APIS[api_key].max_version)
            for api_key in (*_SERVED_KEYS, *(_SASL_KEYS if sasl else ()))
        ]
        self._find_coordinator_cache: dict[bytes, EncodedPart] = {}
        self._cached_route_version = directory.route_version

    def handle(self, frame: bytes, origin: LargeRequestOrigin, respond: Respond) -> None:
        """Handle one request frame, without its size field; `respond` gets the response frame with its size.

        `respond` is called once, during this call or later, unless the client disconnects. Raises
        CloseConnection if the frame is malformed or the API is not supported.
        """
        if len(frame) < _HEADER_BEGIN.size:
            raise CloseConnection("truncated", "a frame is shorter than a request header")
        if self._large.has_request_of(origin):
            # Queue this request after the large request, so that the requests of one connection keep their
            # order.
            self._queue_large_request(frame, origin, respond)
            return
        api_key, _, _ = _HEADER_BEGIN.unpack_from(frame)
        if len(frame) < _FAST_PATH_BYTES.get(api_key, 0) and self._try_fast_path(frame, origin, respond):
            return
        if len(frame) >= (LARGE_FIND_BYTES if api_key == find_api.API_KEY else LARGE_FRAME_BYTES):
            self._queue_large_request(frame, origin, respond)
            return
        for _ in self._handle_request_in_steps(frame, origin, respond):
            pass

    def _queue_large_request(self, frame: bytes, origin: LargeRequestOrigin, respond: Respond) -> None:
        self._large.add(origin, len(frame), respond, partial(self._handle_queued_request, frame, origin))

    def _handle_queued_request(self, frame: bytes, origin: LargeRequestOrigin, respond: Respond) -> Steps:
        """Handle a large request, or a request that waited for a large request of its connection."""
        if frame[:2] == _WRITE_KEY:
            while (is_executed := self._try_fast_path(frame, origin, respond)) is None:
                yield
            if is_executed:
                return
        yield from self._handle_request_in_steps(frame, origin, respond)

    def _handle_request_in_steps(self, frame: bytes, origin: LargeRequestOrigin, respond: Respond) -> Steps:
        """Handle a request in steps of about a millisecond; the steps of a small request need no pause."""
        api_key, api_version, correlation_id = _HEADER_BEGIN.unpack_from(frame)
        rpc = RPC_BY_API_KEY.get(api_key)
        if rpc is not None:
            yield from self._handle_rpc(rpc, frame, api_version, correlation_id, origin, respond)
        elif api_key == find_api.API_KEY:
            yield from self._find_coordinator(frame, api_version, correlation_id, respond)
        elif api_key == versions_api.API_KEY:
            self.answer_api_versions(frame, respond)
        elif api_key in _SASL_KEYS:
            _answer_sasl_request(frame, origin, respond)
        else:
            raise CloseConnection("unknown_api", f"API key {api_key} is not supported")

    def _try_fast_path(self, frame: bytes, origin: LargeRequestOrigin, respond: Respond) -> bool | None:
        requests = self._fast_path_executor
        if requests is None or self._service.is_forwarding:
            return False
        return requests.try_execute(frame, origin, respond, self._loop.time())

    @property
    def fast_path_executor(self) -> FastPathExecutor | None:
        """Return the handler of fast-path requests of the compiled module, or None without the module."""
        return None if self._service.may_forward else self._fast_path_executor

    def _handle_rpc(
        self,
        rpc: Rpc,
        frame: bytes,
        api_version: int,
        correlation_id: int,
        origin: LargeRequestOrigin,
        respond: Respond,
    ) -> Steps:
        messages: Any = APIS[rpc.api_key].module
        if not messages.MIN_VERSION <= api_version <= messages.MAX_VERSION:
            raise CloseConnection("unsupported_version", f"{rpc.name} version {api_version} is not supported")
        began_s = self._loop.time()
        try:
            request = messages.decode_request(frame, _body_offset(frame), api_version, self._elements_max)
        except DecodeError as error:
            raise undecodable_request(f"{rpc.name} v{api_version}", error) from None

        def send_encoded_response(response: Any, body: bytes) -> None:
            respond(_SIZE_AND_CORRELATION_ID.pack(len(body) + 5, correlation_id) + b"\0" + body)
            self._metrics.record_request(
                rpc.api_key, _first_error_code(response), self._loop.time() - began_s
            )

        def send_response(response: Any) -> None:
            if len(frame) < LARGE_FRAME_BYTES:
                send_encoded_response(response, messages.encode_response(response, api_version))
            else:
                self._encode_next_step(
                    _encode_response_in_steps(rpc, response, api_version), [], response, send_encoded_response
                )

        service = self._service
        # The origin matters only if forwarding is on: a forwarded request is not forwarded again.
        forwarded = service.is_forwarding and frame.startswith(_FORWARDED, _CLIENT_ID_AT)
        return service.handle(rpc, request, origin, send_response, forwarded=forwarded)

    def _encode_next_step(
        self, steps: Iterator[bytes], pieces: list[bytes], response: Any, finish: Callable[[Any, bytes], None]
    ) -> None:
        """Encode the next part of a large response; send the response after the last part."""
        piece = next(steps, None)
        if piece is None:
            finish(response, b"".join(pieces))
            return
        pieces.append(piece)
        self._loop.call_soon(self._encode_next_step, steps, pieces, response, finish)

    def _find_coordinator(
        self, frame: bytes, api_version: int, correlation_id: int, respond: Respond
    ) -> Steps:
        """Respond to FindCoordinator, from the cache if an identical request was handled before."""
        began_s = monotonic_seconds()
        # The response depends on everything in the request except the correlation id.
        cache_key = frame[:4] + frame[8:] if len(frame) <= CACHED_BYTES_MAX else b""
        route_version = self._directory.route_version
        if self._cached_route_version != route_version:
            self._find_coordinator_cache.clear()
            self._cached_route_version = route_version
        found = self._find_coordinator_cache.get(cache_key)
        if found is None:
            parts = []
            request = decode_frame(frame, self._elements_max).message
            for part in self._directory.find_in_steps(request, api_version):
                parts.append(part)
                yield
            found = join_encoded_parts(parts, api_version)
            is_small = 0 < len(cache_key) <= CACHED_BYTES_MAX - len(found.encoded)
            if is_small and self._directory.route_version == route_version:
                if len(self._find_coordinator_cache) >= CACHED_RESPONSES_MAX:
                    self._find_coordinator_cache.clear()
                self._find_coordinator_cache[cache_key] = found
        respond(_SIZE_AND_CORRELATION_ID.pack(len(found.encoded) + 4, correlation_id) + found.encoded)
        self._metrics.record_request(find_api.API_KEY, found.error_code, monotonic_seconds() - began_s)

    def answer_api_versions(self, frame: bytes, respond: Respond) -> bool:
        """Respond with the supported APIs and versions; return False if the request is refused.

        As in Kafka, an unknown ApiVersions version gets only the range of ApiVersions, in response version 0.
        A client software name that Kafka rejects gets INVALID_REQUEST. Raises CloseConnection.
        """
        began_s = monotonic_seconds()
        _, api_version, correlation_id = _HEADER_BEGIN.unpack_from(frame)
        response = versions_api.ApiVersionsResponse(api_keys=self._versions)
        if not versions_api.MIN_VERSION <= api_version <= versions_api.MAX_VERSION:
            response.error_code = int(ErrorCode.UNSUPPORTED_VERSION)
            response.api_keys = [
                version for version in self._versions if version.api_key == versions_api.API_KEY
            ]
            request = DecodedRequest(versions_api.API_KEY, 0, correlation_id, None)
        else:
            request = decode_frame(frame)
            names = (request.message.client_software_name, request.message.client_software_version)
            if api_version >= 3 and not all(map(_CLIENT_SOFTWARE_PATTERN.fullmatch, names)):
                response = versions_api.ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
        respond(request.answer(response))
        seconds = monotonic_seconds() - began_s
        self._metrics.record_request(versions_api.API_KEY, response.error_code, seconds)
        return response.error_code == 0


def _answer_sasl_request(frame: bytes, origin: Any, respond: Respond) -> None:
    """Pass a SASL request to the SASL authenticator; without one, respond with ILLEGAL_SASL_STATE."""
    sasl_authenticator = getattr(origin, "sasl_authenticator", None)
    if sasl_authenticator is not None:
        sasl_authenticator.handle_authenticated(frame, origin, respond)
        return
    request = decode_frame(frame)
    respond(error_response(request, ErrorCode.ILLEGAL_SASL_STATE, "SASL is not used on this port"))


def _body_offset(frame: bytes) -> int:
    """Return the offset of the body after a flexible request header. Raises DecodeError."""
    if len(frame) > _FLEXIBLE_HEADER_BEGIN.size:
        client_id_length = _FLEXIBLE_HEADER_BEGIN.unpack_from(frame)[3]
        offset: int = _FLEXIBLE_HEADER_BEGIN.size + max(client_id_length, 0)
        # Usually there are no tagged fields, and the client id is not needed.
        if offset < len(frame) and client_id_length >= -1 and frame[offset] == 0:
            return offset + 1
    _, offset = request_header.decode(frame, 0, 2)
    return offset


def _encode_response_in_steps(rpc: Rpc, response: Any, api_version: int) -> Iterator[bytes]:
    """Yield an encoded response in parts: some elements of its arrays of topics and results at a time."""
    messages: Any = APIS[rpc.api_key].module
    yield write_uvarint(len(response.results) + 1)
    for topic in response.results:
        yield topic.topic_id + write_uvarint(len(topic.partitions) + 1)
        for begin in range(0, len(topic.partitions), _RESULTS_PER_STEP):
            results = topic.partitions[begin : begin + _RESULTS_PER_STEP]
            encoded = messages.encode_response(
                rpc.response([rpc.topic_result(topic.topic_id, results)]), api_version
            )
            # Skip the number of topics, the topic id and the number of results before the results, and the
            # tagged fields of the topic and of the response after them.
            yield encoded[17 + len(write_uvarint(len(results) + 1)) : -2]
        yield b"\0"
    yield b"\0"


def _first_error_code(response: Any) -> int:
    for topic in response.results:
        for result in topic.partitions:
            if result.error_code:
                return int(result.error_code)
    return 0
