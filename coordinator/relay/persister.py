"""A persister's connection after it was led to the coordinator.

Requests go to the coordinator and its answers back. One kind of request is not for it: a peer whose session
ends after a time authenticates again on the same connection (KIP-368). That goes to the broker, over a
connection made for it, because the first one would long have been closed as idle. As at the broker, the
second exchange must be of the same mechanism and user, and who does not come in time is cut off at its next
request.

So bytes are carried as for replication, with an eye on where frames begin.
"""

import asyncio
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Any, NamedTuple

from coordinator.relay.forwarding import Bytes, forward_bytes
from coordinator.relay.frame_reader import SIZE_BYTES, FrameReader
from coordinator.relay.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE, Exchange
from protocol.errors import FrameError

# What has to be seen of a request: its size, and which API it calls.
_BEGINNING = Struct(">ih")
_unpack_size = Struct(">i").unpack
_AUTHENTICATION = (SASL_HANDSHAKE, SASL_AUTHENTICATE)


class PeerSession(NamedTuple):
    """Who is on the connection, and until when, in the loop's time; None: for ever."""

    mechanism: str
    user: str | None
    ends_s: float | None

    @classmethod
    def from_exchange(cls, exchange: Exchange, now_s: float) -> "PeerSession":
        """Return the session that a finished exchange began."""
        lifetime_ms = exchange.session_lifetime_ms
        return cls(exchange.mechanism, exchange.user, now_s + lifetime_ms / 1000 if lifetime_ms > 0 else None)


class SessionEnded(Exception):
    """A peer did not authenticate again in time, or not as whom it was. The text says which."""


class PersisterLink:
    """Joins a persister with the coordinator. Run once, by the task of its connection."""

    def __init__(
        self,
        peer: FrameReader,
        coordinator: FrameReader,
        session: PeerSession,
        again: Callable[[], Awaitable[Exchange]],
        moved: Callable[[int, int], None],
    ) -> None:
        """`again` carries an exchange to the broker, up to the next request that is no part of it.

        `moved` is told the bytes to the coordinator, and those from it.
        """
        self._peer = peer
        self._coordinator = coordinator
        self._session = session
        self._again = again
        self._moved = moved
        self._loop = asyncio.get_running_loop()
        # Bytes to come of the request and of the answer under way, and the begun size of the next answer.
        self._request_left = 0
        self._answer_left = 0
        self._answer_size = b""
        self._pending_responses = 0
        self._idle_event = asyncio.Event()
        self._idle_event.set()
        self._stop_asked = asyncio.Event()

    def stop(self) -> None:
        """Take no further requests; `run` returns when those are answered that were taken."""
        self._stop_asked.set()

    async def run(self) -> None:
        """Carry requests and answers until either side closes. Raises OSError, ProtocolError,
        SessionEnded.
        """
        answers = forward_bytes(
            self._coordinator.end, self._peer.end, self._count_responses, settled=self._update_idle_event
        )
        requests: asyncio.Future[None] = asyncio.ensure_future(self._forward_requests())
        try:
            await asyncio.wait({requests, answers.over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            requests.cancel()
            await asyncio.wait({requests})
            answers.close()
        for outcome in (requests, answers.over):
            if outcome.done() and not outcome.cancelled():
                outcome.result()

    async def _forward_requests(self) -> None:
        """Carry requests until the peer's last word, or until a stop when all is answered. Raises Ended."""
        stop = asyncio.ensure_future(self._stop_asked.wait())
        try:
            while not stop.done():
                requests = forward_bytes(
                    self._peer.end,
                    self._coordinator.end,
                    self._filter_requests,
                    first=self._peer.take_buffered(),
                )
                either: set[asyncio.Future[Any]] = {requests.over, stop}
                try:
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    requests.close()
                if requests.over.done() and not requests.over.cancelled():
                    requests.over.result()
                    await self._handle_partial_request()
            await self._idle_event.wait()
        finally:
            stop.cancel()

    async def _handle_partial_request(self) -> None:
        """Go on where requests were not carried: an authentication, or a beginning that came in pieces."""
        head = await self._peer.peek_head()
        if head.api_key not in _AUTHENTICATION:
            return
        # Its answers come from elsewhere, and answers must come in the order of the requests.
        await self._idle_event.wait()
        exchange = await self._again()
        if (exchange.mechanism, exchange.user) != (self._session.mechanism, self._session.user):
            raise SessionEnded("a peer authenticated again as somebody else, or in another way")
        self._session = PeerSession.from_exchange(exchange, self._loop.time())

    def _filter_requests(self, data: Bytes) -> int:
        """Take requests for the coordinator; put aside what begins with something else."""
        at, end = self._request_left, len(data)
        while at < end:
            if end - at < _BEGINNING.size:
                break
            size, api_key = _BEGINNING.unpack_from(data, at)
            if api_key in _AUTHENTICATION:
                break
            if size < _BEGINNING.size - SIZE_BYTES:
                raise FrameError(f"a request of {size} bytes")
            self._begin_request()
            at += SIZE_BYTES + size
        taken = min(at, end)
        self._request_left = at - taken
        if taken < end:
            self._peer.unread(bytes(data[taken:]))
        self._moved(taken, 0)
        return taken

    def _begin_request(self) -> None:
        ends_s = self._session.ends_s
        if ends_s is not None and self._loop.time() > ends_s:
            raise SessionEnded("the session is over, and the peer did not authenticate again")
        self._pending_responses += 1
        self._idle_event.clear()

    def _count_responses(self, data: Bytes) -> int:
        """Take everything, and count the answers that end in it."""
        at, end = 0, len(data)
        while at < end:
            if self._answer_left == 0:
                piece = bytes(data[at : at + SIZE_BYTES - len(self._answer_size)])
                self._answer_size += piece
                at += len(piece)
                if len(self._answer_size) < SIZE_BYTES:
                    break
                (self._answer_left,) = _unpack_size(self._answer_size)
                self._answer_size = b""
                if self._answer_left < 0:
                    raise FrameError(f"an answer of {self._answer_left} bytes")
            step = min(self._answer_left, end - at)
            at += step
            self._answer_left -= step
            if self._answer_left == 0:
                self._pending_responses -= 1
        self._moved(0, end)
        return end

    def _update_idle_event(self) -> None:
        """Called when all answers that came have gone to the peer."""
        if self._pending_responses <= 0 and self._answer_left == 0 and not self._answer_size:
            self._idle_event.set()
