"""One connection to one node: send requests, and match responses by their order.

Any number of callers may use a connection concurrently.  Up to `requests_in_flight_max` requests are sent
without waiting for responses, and a server responds in request order.  A response that is unexpected,
malformed or too late closes the connection.  All pending requests then fail, because later responses could
not be matched.
"""

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, Self, cast

from coordinator.client.errors import (
    AuthenticationFailed,
    ClientClosed,
    Disconnected,
    ShareCoordinatorError,
    TimedOut,
    UnsupportedVersion,
)
from coordinator.client.login import log_in
from coordinator.client.rpcs import RPC_BY_REQUEST
from coordinator.client.security import ClientSecurity
from coordinator.errors import ConfigError
from protocol.errors import DecodeError, ErrorCode, FrameError
from protocol.frames import FrameReader
from protocol.messages import (
    APIS,
    api_versions,
    find_coordinator,
    request_header,
    request_header_version,
    response_header,
    response_header_version,
)
from protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_API_KEYS: dict[type, int] = {
    ApiVersionsRequest: api_versions.API_KEY,
    find_coordinator.FindCoordinatorRequest: find_coordinator.API_KEY,
    **{request: rpc.api_key for request, rpc in RPC_BY_REQUEST.items()},
}

# Fraction of the session lifetime after which the client re-authenticates; Kafka's clients do so before 0.9.
_REAUTHENTICATE_AFTER = 0.85

_CORRELATION_IDS = 1 << 31
# Size in bytes of the size prefix of a frame.
_SIZE_BYTES = 4
_NO_SLOT = nullcontext()


class ConnectionLimits(NamedTuple):
    """The limits of one connection. Times are in seconds."""

    connect_s: float = 10.0
    request_s: float = 30.0
    response_bytes_max: int = 64 * 1024 * 1024
    requests_in_flight_max: int = 64


class _PendingRequest(NamedTuple):
    """A request that was sent and has no response yet."""

    correlation_id: int
    decode: Callable[[bytes], Any]
    answer: asyncio.Future[Any]


class Connection(asyncio.Protocol):
    """A connection after ApiVersions and login. Created by `open`; owned by one event loop."""

    def __init__(self, name: str, client_id: str, limits: ConnectionLimits, security: ClientSecurity) -> None:
        self._name = name
        self._client_id = client_id
        self._limits = limits
        self._security = security
        # Cleared during re-authentication, when no other request may be sent (KIP-368).
        self._admitted = asyncio.Event()
        self._admitted.set()
        self._session: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(limits.response_bytes_max)
        self._slots = asyncio.Semaphore(limits.requests_in_flight_max)
        self._pending: deque[_PendingRequest] = deque()
        self._transport: asyncio.Transport | None = None
        self._next_correlation_id = 0
        self._why_lost: ShareCoordinatorError | None = None
        self._lost = asyncio.Event()
        # Until the server has returned its versions, only ApiVersions may be sent.
        self.versions: dict[int, tuple[int, int]] = {api_versions.API_KEY: (0, api_versions.MAX_VERSION)}

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        limits: ConnectionLimits | None = None,
        security: ClientSecurity | None = None,
    ) -> Self:
        """Connect, request the supported versions, and log in if `security` requires it.

        Raises Disconnected, TimedOut, UnsupportedVersion or AuthenticationFailed.
        """
        limits = limits or ConnectionLimits()
        security = security or ClientSecurity()
        name = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            tls = security.tls_context()
            # Without TLS, the arguments are omitted, because event loops of tests do not accept them.
            options: Any = {} if tls is None else {"ssl": tls, "server_hostname": host}
            connect: Any = loop.create_connection(
                lambda: cls(name, client_id, limits, security), host, port, **options
            )
            async with asyncio.timeout(limits.connect_s):
                connection: Self = (await connect)[1]
        except TimeoutError:
            message = f"No connection to {name} within {limits.connect_s} s."
            raise TimedOut(ErrorCode.REQUEST_TIMED_OUT, message) from None
        except (ConfigError, ssl.SSLCertVerificationError) as error:
            reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else str(error)
            message = f"Cannot connect to {name} over TLS: {reason}."
            raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, message) from None
        except OSError as error:
            message = f"Cannot connect to {name}: {_failure_reason(error)}."
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, message) from None
        try:
            await connection._negotiate_versions()
            if security.uses_sasl:
                await connection._log_in()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def request(self, message: Any, *, version: int | None = None) -> Any:
        """Send one request unchanged, and return the response unchanged.

        Nothing is retried. If `version` is None, the newest common version is used. Raises Disconnected,
        TimedOut, UnsupportedVersion, ClientClosed, and EncodeError for a message without a wire form.
        """
        api_key = _API_KEYS[type(message)]
        if version is None:
            version = self.newest_version(type(message))
        return await self._send_message(APIS[api_key].module, message, version)

    async def close(self) -> None:
        """Close now; pending requests fail with ClientClosed. A second call is harmless."""
        self.abort(ClientClosed(ErrorCode.NETWORK_EXCEPTION, "The client was closed."))
        if self._transport is not None:
            # An aborted transport calls `connection_lost` in the next loop iteration; `close` would wait for
            # the peer.
            await self._lost.wait()

    @property
    def is_usable(self) -> bool:
        return self._why_lost is None

    # Versions.

    async def _negotiate_versions(self) -> None:
        """Request the API versions; if the request version is not supported, use an older one (KIP-511)."""
        version = api_versions.MAX_VERSION
        response = await self._request_versions(version)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            served = {api.api_key: api.max_version for api in response.api_keys}
            version = min(served.get(api_versions.API_KEY, 0), version - 1)
            response = await self._request_versions(version)
        if response.error_code:
            message = f"{self._name} answered ApiVersions v{version} with error {response.error_code}."
            raise UnsupportedVersion(ErrorCode.UNSUPPORTED_VERSION, message)
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    async def _request_versions(self, version: int) -> ApiVersionsResponse:
        client = ApiVersionsRequest("share-coordinator", "1")
        body = api_versions.encode_request(client, version)

        def decode(frame: bytes) -> ApiVersionsResponse:
            _, offset = response_header.decode(frame, 0, 0)
            # An UNSUPPORTED_VERSION response always has the layout of version 0; each layout begins with the
            # code.
            refused = frame[offset : offset + 2] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
            return api_versions.decode_response(frame, offset, 0 if refused else version)

        response: ApiVersionsResponse = await self._send_and_decode(
            api_versions.API_KEY, version, body, decode
        )
        return response

    def newest_version(self, request: type) -> int:
        """Return the newest common version of a request class; raises UnsupportedVersion if there is none."""
        api_key = _API_KEYS[request]
        api = APIS[api_key]
        if api_key not in self.versions:
            message = f"{self._name} does not serve {api.name} (API key {api_key})."
            raise UnsupportedVersion(ErrorCode.UNSUPPORTED_VERSION, message)
        lowest, highest = self.versions[api_key]
        newest = min(highest, api.max_version)
        if newest < max(lowest, api.min_version):
            message = (
                f"{self._name} serves {api.name} in versions {lowest} to {highest}, "
                f"this client in {api.min_version} to {api.max_version}."
            )
            raise UnsupportedVersion(ErrorCode.UNSUPPORTED_VERSION, message)
        return newest

    # SASL.

    async def _log_in(self) -> None:
        """Log in, and re-authenticate before each session expires while the connection is open."""
        lifetime_ms = await log_in(
            self._name, self.versions, self._security, partial(self._send_message, login=True)
        )
        if lifetime_ms > 0:
            self._session = self._loop.create_task(self._reauthenticate(lifetime_ms / 1000))

    async def _reauthenticate(self, lifetime_s: float) -> None:
        await asyncio.sleep(_REAUTHENTICATE_AFTER * lifetime_s)
        # Requests already sent get their responses first; new requests wait for the login.
        self._admitted.clear()
        try:
            await self._log_in()
        except ShareCoordinatorError as error:
            self.abort(error)
        self._admitted.set()

    # Send requests.

    async def _send_message(self, module: Any, message: Any, version: int, *, login: bool = False) -> Any:
        body = module.encode_request(message, version)
        header_version = response_header_version(module.API_KEY, version)

        def decode(frame: bytes) -> Any:
            _, offset = response_header.decode(frame, 0, header_version)
            return module.decode_response(frame, offset, version)

        return await self._send_and_decode(module.API_KEY, version, body, decode, login=login)

    async def _send_and_decode(
        self,
        api_key: int,
        version: int,
        body: bytes,
        decode: Callable[[bytes], Any],
        *,
        login: bool = False,
    ) -> Any:
        answer: asyncio.Future[Any] | None = None
        try:
            # A login takes no slot, because requests that wait for the login may hold all slots.
            async with asyncio.timeout(self._limits.request_s), _NO_SLOT if login else self._slots:
                while not (login or self._admitted.is_set()):
                    await self._admitted.wait()
                answer = self._send_request(api_key, version, body, decode)
                return await answer
        except TimeoutError:
            message = f"No answer from {self._name} within {self._limits.request_s} s."
            error = TimedOut(ErrorCode.REQUEST_TIMED_OUT, message)
            if answer is not None:
                self.abort(Disconnected(ErrorCode.NETWORK_EXCEPTION, f"The connection was closed: {message}"))
            raise error from None

    def _send_request(
        self, api_key: int, version: int, body: bytes, decode: Callable[[bytes], Any]
    ) -> asyncio.Future[Any]:
        if self._why_lost is not None:
            raise self._copy_exception(self._why_lost)
        assert self._transport is not None
        if self._transport.is_closing():
            # A write has failed. The transport calls `connection_lost` in the next loop iteration, and until
            # then, it logs a warning for each further write.
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, f"{self._name} closed the connection.")
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) % _CORRELATION_IDS
        header = request_header.encode(
            request_header.RequestHeader(api_key, version, correlation_id, self._client_id),
            request_header_version(api_key, version),
        )
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._pending.append(_PendingRequest(correlation_id, decode, answer))
        size = (len(header) + len(body)).to_bytes(_SIZE_BYTES, "big")
        self._transport.write(size + header + body)
        return answer

    # Methods that the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No assertion: uvloop's transports have the methods of asyncio's, but do not inherit from them.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass each complete response to its request."""
        if self._why_lost is not None:
            return
        try:
            for frame in self._reader.receive_data(data):
                self._on_response(frame)
        except (DecodeError, FrameError) as error:
            message = f"{self._name} sent a response that cannot be decoded: {error}."
            self.abort(Disconnected(ErrorCode.NETWORK_EXCEPTION, message))

    def _on_response(self, frame: bytes) -> None:
        correlation_id = response_header.decode(frame, 0, 0)[0].correlation_id
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            raise DecodeError(f"it answers request {correlation_id}, which is not the oldest pending request")
        response = self._pending[0].decode(frame)
        answer = self._pending.popleft().answer
        # If the caller was cancelled, its response is dropped.
        if not answer.done():
            answer.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc is not None else ""
        message = f"{self._name} closed the connection{reason}."
        self.abort(Disconnected(ErrorCode.NETWORK_EXCEPTION, message))
        self._lost.set()

    def abort(self, why: ShareCoordinatorError) -> None:
        """Abort the connection: pending requests fail with `why`. Later calls have no effect."""
        if self._why_lost is not None:
            return
        self._why_lost = why
        if self._session is not None and self._session is not asyncio.current_task(self._loop):
            self._session.cancel()
        self._admitted.set()
        if self._transport is not None:
            # `close()` would wait for a peer that does not read.
            self._transport.abort()
        waiting, self._pending = self._pending, deque()
        for request in waiting:
            if not request.answer.done():
                request.answer.set_exception(self._copy_exception(why))

    @staticmethod
    def _copy_exception(error: ShareCoordinatorError) -> ShareCoordinatorError:
        # Each raise adds to an exception's traceback, so each caller gets a copy.
        return type(error)(error.error_code, error.message)


def _failure_reason(error: OSError) -> str:
    """Return the reason for a failed connection; asyncio's own text repeats the address."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)
