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

from coordinator.relay.carrying import Bytes, carry
from coordinator.relay.inbound import SIZE_BYTES, Inbound
from coordinator.relay.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE, Exchange
from protocol.errors import FrameError

# What has to be seen of a request: its size, and which API it calls.
_BEGINNING = Struct(">ih")
_unpack_size = Struct(">i").unpack
_AUTHENTICATION = (SASL_HANDSHAKE, SASL_AUTHENTICATE)


class Session(NamedTuple):
    """Who is on the connection, and until when, in the loop's time; None: for ever."""

    mechanism: str
    user: str | None
    ends_s: float | None

    @classmethod
    def of(cls, exchange: Exchange, now_s: float) -> "Session":
        """Return the session that a finished exchange began."""
        lifetime_ms = exchange.session_lifetime_ms
        return cls(exchange.mechanism, exchange.user, now_s + lifetime_ms / 1000 if lifetime_ms > 0 else None)


class SessionLost(Exception):
    """A peer did not authenticate again in time, or not as whom it was. The text says which."""


class PersisterLink:
    """Joins a persister with the coordinator. Run once, by the task of its connection."""

    def __init__(
        self,
        peer: Inbound,
        coordinator: Inbound,
        session: Session,
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
        self._unanswered = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._stop_asked = asyncio.Event()

    def stop(self) -> None:
        """Take no further requests; `run` returns when those are answered that were taken."""
        self._stop_asked.set()

    async def run(self) -> None:
        """Carry requests and answers until either side closes. Raises OSError, ProtocolError, SessionLost."""
        answers = carry(
            self._coordinator.end, self._peer.end, self._take_answers, settled=self._note_whether_quiet
        )
        requests: asyncio.Future[None] = asyncio.ensure_future(self._carry_requests())
        try:
            await asyncio.wait({requests, answers.over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            requests.cancel()
            await asyncio.wait({requests})
            answers.close()
        for outcome in (requests, answers.over):
            if outcome.done() and not outcome.cancelled():
                outcome.result()

    async def _carry_requests(self) -> None:
        """Carry requests until the peer's last word, or until a stop when all is answered. Raises Ended."""
        stop = asyncio.ensure_future(self._stop_asked.wait())
        try:
            while not stop.done():
                requests = carry(
                    self._peer.end, self._coordinator.end, self._take_requests, first=self._peer.rest()
                )
                either: set[asyncio.Future[Any]] = {requests.over, stop}
                try:
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    requests.close()
                if requests.over.done() and not requests.over.cancelled():
                    requests.over.result()
                    await self._look_closer()
            await self._quiet.wait()
        finally:
            stop.cancel()

    async def _look_closer(self) -> None:
        """Go on where requests were not carried: an authentication, or a beginning that came in pieces."""
        head = await self._peer.head()
        if head.api_key not in _AUTHENTICATION:
            return
        # Its answers come from elsewhere, and answers must come in the order of the requests.
        await self._quiet.wait()
        exchange = await self._again()
        if (exchange.mechanism, exchange.user) != (self._session.mechanism, self._session.user):
            raise SessionLost("a peer authenticated again as somebody else, or in another way")
        self._session = Session.of(exchange, self._loop.time())

    def _take_requests(self, data: Bytes) -> int:
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
            self._peer.put_back(bytes(data[taken:]))
        self._moved(taken, 0)
        return taken

    def _begin_request(self) -> None:
        ends_s = self._session.ends_s
        if ends_s is not None and self._loop.time() > ends_s:
            raise SessionLost("the session is over, and the peer did not authenticate again")
        self._unanswered += 1
        self._quiet.clear()

    def _take_answers(self, data: Bytes) -> int:
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
                self._unanswered -= 1
        self._moved(0, end)
        return end

    def _note_whether_quiet(self) -> None:
        """Called when all answers that came have gone to the peer."""
        if self._unanswered <= 0 and self._answer_left == 0 and not self._answer_size:
            self._quiet.set()
