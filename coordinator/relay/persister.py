"""A persister's connection after it was led to the coordinator.

Requests go to the coordinator and its answers back, frame by frame. One kind of request is not for it: a
peer whose session ends after a time authenticates again on the same connection (KIP-368). That goes to the
broker, over a connection made for it, because the first one would long have been closed as idle. As at the
broker, the second exchange must be of the same mechanism and user, and who does not come in time is cut off
at its next request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from coordinator.relay.inbound import Ended, Inbound
from coordinator.relay.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE, Exchange

_logger = logging.getLogger(__name__)


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

        `moved` is told the bytes of each frame to the coordinator, and of each from it.
        """
        self._peer = peer
        self._coordinator = coordinator
        self._session = session
        self._again = again
        self._moved = moved
        self._loop = asyncio.get_running_loop()
        self._unanswered = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._stop_asked = asyncio.Event()

    def stop(self) -> None:
        """Take no further requests; `run` returns when those are answered that were taken."""
        self._stop_asked.set()

    async def run(self) -> None:
        """Carry requests and answers until either side closes. Raises OSError, ProtocolError, SessionLost."""
        requests = asyncio.ensure_future(self._requests())
        answers = asyncio.ensure_future(self._answers())
        stop = asyncio.ensure_future(self._last_answer())
        try:
            await asyncio.wait({requests, answers, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (requests, answers, stop):
                task.cancel()
            outcomes = await asyncio.gather(requests, answers, stop, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, Ended):
                raise outcome

    async def _last_answer(self) -> None:
        """Return when a stop was asked for and all is answered that was taken."""
        await self._stop_asked.wait()
        await self._quiet.wait()

    async def _requests(self) -> None:
        peer, coordinator = self._peer, self._coordinator
        while True:
            head = await peer.head()
            if self._stop_asked.is_set():
                return await self._last_answer()
            if head.api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
                # Its answer comes from elsewhere, and answers must come in the order of the requests.
                await self._quiet.wait()
                await self._authenticate_again()
                continue
            if self._session.ends_s is not None and self._loop.time() > self._session.ends_s:
                raise SessionLost("the session is over, and the peer did not authenticate again")
            frame = await peer.frame()
            self._unanswered += 1
            self._quiet.clear()
            self._moved(len(frame), 0)
            await coordinator.end.send(frame)

    async def _answers(self) -> None:
        peer, coordinator = self._peer, self._coordinator
        while True:
            frame = await coordinator.frame()
            self._moved(0, len(frame))
            await peer.end.send(frame)
            self._unanswered -= 1
            if self._unanswered == 0:
                self._quiet.set()

    async def _authenticate_again(self) -> None:
        exchange = await self._again()
        if (exchange.mechanism, exchange.user) != (self._session.mechanism, self._session.user):
            raise SessionLost("a peer authenticated again as somebody else, or in another way")
        self._session = Session.of(exchange, self._loop.time())
