"""Forward a persister's requests to the coordinator and the responses back.

If sessions have a lifetime, a peer re-authenticates on the same connection (KIP-368). The relay forwards
these requests to the broker over a new connection, because the broker closes the first connection as idle. As
in a Kafka broker, a re-authentication must use the same mechanism and the same user. If the session has
expired, the next request closes the connection.

Bytes are forwarded like replication traffic, but the relay inspects the start of each frame.
"""

import asyncio
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Any, NamedTuple

from coordinator.serve.relay.forwarding import Bytes, forward_bytes
from coordinator.serve.relay.frame_reader import SIZE_BYTES, FrameReader
from coordinator.serve.relay.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE, RelayedExchange
from protocol.errors import FrameError

# The inspected part of a request: size and API key.
_BEGINNING = Struct(">ih")
_unpack_size = Struct(">i").unpack
_AUTHENTICATION = (SASL_HANDSHAKE, SASL_AUTHENTICATE)


class PeerSession(NamedTuple):
    """The authenticated user, and the loop time at which the session expires (None: never)."""

    mechanism: str
    user: str | None
    ends_s: float | None

    @classmethod
    def from_exchange(cls, exchange: RelayedExchange, now_s: float) -> "PeerSession":
        lifetime_ms = exchange.session_lifetime_ms
        return cls(exchange.mechanism, exchange.user, now_s + lifetime_ms / 1000 if lifetime_ms > 0 else None)


class SessionEnded(Exception):
    """Re-authentication was late or changed the user or the mechanism; the message has the cause."""


class PersisterLink:
    """Connects a persister with the coordinator. The task of the connection calls `run` once."""

    def __init__(
        self,
        peer: FrameReader,
        coordinator: FrameReader,
        session: PeerSession,
        reauthenticate: Callable[[], Awaitable[RelayedExchange]],
        count_bytes: Callable[[int, int], None],
    ) -> None:
        """`reauthenticate` forwards a re-authentication to the broker.

        `count_bytes` is called with the bytes to and from the coordinator.
        """
        self._peer = peer
        self._coordinator = coordinator
        self._session = session
        self._reauthenticate = reauthenticate
        self._count_bytes = count_bytes
        self._loop = asyncio.get_running_loop()
        # Remaining bytes of the current request and response, and the received part of the next response's
        # size.
        self._request_left = 0
        self._response_left = 0
        self._response_size_bytes = b""
        self._pending_responses = 0
        self._no_response_pending = asyncio.Event()
        self._no_response_pending.set()
        self._stop_requested = asyncio.Event()

    def stop(self) -> None:
        """Accept no further requests; `run` returns after the pending responses."""
        self._stop_requested.set()

    async def run(self) -> None:
        """Forward bytes until either side closes. Raises OSError, ProtocolError and SessionEnded."""
        responses = forward_bytes(
            self._coordinator.stream,
            self._peer.stream,
            self._count_responses,
            on_all_sent=self._update_no_response_pending,
        )
        requests: asyncio.Future[None] = asyncio.ensure_future(self._forward_requests())
        try:
            await asyncio.wait({requests, responses.finished}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            requests.cancel()
            await asyncio.wait({requests})
            responses.close()
        for outcome in (requests, responses.finished):
            if outcome.done() and not outcome.cancelled():
                outcome.result()

    async def _forward_requests(self) -> None:
        """Forward requests until the peer closes or `stop` is called; then wait for pending responses."""
        stop = asyncio.ensure_future(self._stop_requested.wait())
        try:
            while not stop.done():
                requests = forward_bytes(
                    self._peer.stream,
                    self._coordinator.stream,
                    self._count_request_bytes_to_forward,
                    first=self._peer.take_buffered_bytes(),
                )
                either: set[asyncio.Future[Any]] = {requests.finished, stop}
                try:
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    requests.close()
                if requests.finished.done() and not requests.finished.cancelled():
                    requests.finished.result()
                    await self._handle_partial_request()
            await self._no_response_pending.wait()
        finally:
            stop.cancel()

    async def _handle_partial_request(self) -> None:
        """Handle the request at which forwarding stopped: a re-authentication or an incomplete header."""
        head = await self._peer.peek_head()
        if head.api_key not in _AUTHENTICATION:
            return
        # The broker answers the re-authentication, so wait for the coordinator's responses first: responses
        # must stay in the order of the requests.
        await self._no_response_pending.wait()
        exchange = await self._reauthenticate()
        if (exchange.mechanism, exchange.user) != (self._session.mechanism, self._session.user):
            raise SessionEnded("a peer re-authenticated with another user or another mechanism")
        self._session = PeerSession.from_exchange(exchange, self._loop.time())

    def _count_request_bytes_to_forward(self, data: Bytes) -> int:
        """Return how many bytes to forward to the coordinator; put the rest back into the peer's buffer."""
        at, end = self._request_left, len(data)
        while at < end:
            if end - at < _BEGINNING.size:
                break
            size, api_key = _BEGINNING.unpack_from(data, at)
            if api_key in _AUTHENTICATION:
                break
            if size < _BEGINNING.size - SIZE_BYTES:
                raise FrameError(f"a request has an invalid size: {size} bytes")
            self._begin_request()
            at += SIZE_BYTES + size
        taken = min(at, end)
        self._request_left = at - taken
        if taken < end:
            self._peer.put_back(bytes(data[taken:]))
        self._count_bytes(taken, 0)
        return taken

    def _begin_request(self) -> None:
        ends_s = self._session.ends_s
        if ends_s is not None and self._loop.time() > ends_s:
            raise SessionEnded("the session expired and the peer did not re-authenticate")
        self._pending_responses += 1
        self._no_response_pending.clear()

    def _count_responses(self, data: Bytes) -> int:
        at, end = 0, len(data)
        while at < end:
            if self._response_left == 0:
                piece = bytes(data[at : at + SIZE_BYTES - len(self._response_size_bytes)])
                self._response_size_bytes += piece
                at += len(piece)
                if len(self._response_size_bytes) < SIZE_BYTES:
                    break
                (self._response_left,) = _unpack_size(self._response_size_bytes)
                self._response_size_bytes = b""
                if self._response_left < 0:
                    raise FrameError(f"a response has an invalid size: {self._response_left} bytes")
            step = min(self._response_left, end - at)
            at += step
            self._response_left -= step
            if self._response_left == 0:
                self._pending_responses -= 1
        self._count_bytes(0, end)
        return end

    def _update_no_response_pending(self) -> None:
        """Set `_no_response_pending` if all responses have been sent to the peer."""
        if self._pending_responses <= 0 and self._response_left == 0 and not self._response_size_bytes:
            self._no_response_pending.set()
