"""One connection, from accept to close: who is it, where does it go, and then no more questions.

A task of its own, and nothing that happens in it reaches another connection.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Literal, NamedTuple

from coordinator.relay.authentication import authenticate, is_authenticated
from coordinator.relay.forwarding import forward_both_ways
from coordinator.relay.frame_reader import EndOfStream, FrameReader, RefusedConnection
from coordinator.relay.limits import RelayLimits
from coordinator.relay.metrics import RelayMetrics
from coordinator.relay.persister import PeerSession, PersisterLink, SessionEnded
from coordinator.relay.request_memory import RequestMemory
from coordinator.relay.sasl import Exchange
from coordinator.relay.streams import PlainStream, TlsStream, accept
from coordinator.relay.upstream import Upstream
from coordinator.security.principals import (
    AllowedPrincipals,
    MappingRules,
    UnmappedCertificate,
    principal_of_certificate,
)
from coordinator.security.tls import ServerTls, Trust
from protocol.errors import ProtocolError

_logger = logging.getLogger(__name__)

# Whom a peer is taken for: anybody, the owner of its certificate, or the user that the broker authenticated.
PeerCheck = Literal["none", "certificate", "sasl"]


class Route(NamedTuple):
    """Where connections go, and what is asked of them before."""

    broker: Upstream
    coordinator: Upstream
    check: PeerCheck
    allowed: AllowedPrincipals
    rules: MappingRules
    sub_claim: str
    tls: ServerTls | None


class Connection:
    """The life of one connection. `run` is for its own task; the rest is for the listener."""

    def __init__(
        self,
        accepted: socket.socket,
        route: Route,
        limits: RelayLimits,
        request_memory: RequestMemory,
        figures: RelayMetrics,
        warn: Callable[[str, str], None],
    ) -> None:
        """Take over an accepted socket. `warn` is told what operators should know: a kind, a sentence."""
        self._socket = accepted
        self._route = route
        self._limits = limits
        self._request_memory = request_memory
        self._metrics = figures
        self._warn = warn
        self._peer: FrameReader | None = None
        self._broker: FrameReader | None = None
        self._coordinator: FrameReader | None = None
        self._session = PeerSession("", None, None)
        self._link: PersisterLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._trust: Trust | None = None
        self.destination = ""
        # Grows with each byte that is carried, so that who looks now and then can tell what is idle.
        self.moved_bytes = 0

    def stop(self) -> None:
        """End: a persister's when its requests are answered, any other at once."""
        if self._link is not None:
            self._link.stop()
        else:
            self.abort()

    def is_trusted(self, now_ms: int) -> bool:
        """Return False if the peer's certificate expired or an authority was removed since."""
        return self._trust is None or self._trust.holds(now_ms)

    def abort(self) -> None:
        """End at once."""
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Serve the connection to its end. Raises nothing but CancelledError."""
        self._task = asyncio.current_task()
        self._metrics.undecided += 1
        try:
            try:
                await self._serve()
            except (EndOfStream, OSError) as error:
                _logger.debug("a connection ended: %s", _error_text(error))
            await self._finish()
        except RefusedConnection as refusal:
            self._refuse(refusal.reason, refusal)
        except SessionEnded as lost:
            self._refuse("session", lost)
        except ProtocolError as error:
            self._refuse("bad_frame", error)
        except Exception:
            # A defect of ours costs one connection: for a broker an everyday event.
            _logger.exception("a connection was dropped")
            self._metrics.refuse("internal_error")
        finally:
            self._close()

    def _refuse(self, reason: str, why: Exception) -> None:
        self._metrics.refuse(reason)
        self._warn(reason, str(why))

    async def _serve(self) -> None:
        limits = self._limits
        deadline = asyncio.timeout(limits.handshake_s)
        try:
            async with deadline:
                destination = await self._choose_destination()
        except TimeoutError:
            if not deadline.expired():
                raise
            raise RefusedConnection("slow_handshake", f"no decision after {limits.handshake_s:g} s") from None
        self.destination = destination
        self._metrics.undecided -= 1
        self._metrics.decided[destination] += 1
        self._metrics.open[destination] += 1
        if destination == "broker":
            await self._to_broker()
        else:
            await self._to_coordinator()

    async def _choose_destination(self) -> str:
        """Listen until it is clear where the connection goes, and return that."""
        route, limits = self._route, self._limits
        try:
            end = await accept(self._socket, route.tls.context if route.tls is not None else None)
        except ssl.SSLError as error:
            raise RefusedConnection("tls", f"a TLS handshake failed: {error.reason or error}") from None
        peer = self._peer = FrameReader(end, limits.handshake_frame_bytes_max)
        if isinstance(end, TlsStream) and end.certificate and route.tls is not None:
            self._trust = Trust(route.tls, end.certificate)
        if route.check == "certificate":
            self._check_certificate(end)
        head = await peer.peek_head()
        if route.check == "sasl":
            exchange = Exchange(route.sub_claim)
            broker = self._broker = await self._connected_broker()
            head = await authenticate(peer, broker, exchange, self._request_memory)
            if head.is_from_persister:
                await self._check_user(broker, exchange)
        if head.is_from_persister:
            return "coordinator"
        if self._broker is None:
            self._broker = await self._connected_broker()
        return "broker"

    def _check_certificate(self, end: PlainStream | TlsStream) -> None:
        """Refuse a peer whose certificate is not one of a broker.

        To the broker all peers look like the relay, so this is the only check that there is.
        """
        assert isinstance(end, TlsStream)
        try:
            principal = principal_of_certificate(end.certificate, self._route.rules)
        except UnmappedCertificate as unmapped:
            raise RefusedConnection("principal", f"no rule maps the certificate of {unmapped}") from None
        if not self._route.allowed.allows(principal):
            raise RefusedConnection("principal", f"{principal} is not in relay.allowed.principals")

    async def _check_user(self, broker: FrameReader, exchange: Exchange) -> None:
        """Refuse a persister that may not speak to the coordinator, and begin the session of one that may."""
        if exchange.user is None or not exchange.accepted:
            with_what = exchange.mechanism or "no SASL mechanism"
            raise RefusedConnection(
                "unauthenticated", f"a persister came with {with_what} and no name that can be read"
            )
        principal = f"User:{exchange.user}"
        if not self._route.allowed.allows(principal):
            raise RefusedConnection("principal", f"{principal} is not in relay.allowed.principals")
        if not await is_authenticated(broker):
            raise RefusedConnection(
                "unauthenticated", f"the broker does not take a persister for {principal}"
            )
        self._session = PeerSession.from_exchange(exchange, asyncio.get_running_loop().time())

    async def _connected_broker(self) -> FrameReader:
        """Connect to the broker; one that restarts gets a few moments. Raises Refused."""
        limits, address = self._limits, self._route.broker.address
        for attempts_left in reversed(range(limits.broker_attempts)):
            try:
                end = await self._route.broker.connect(limits.connect_s)
                return FrameReader(end, limits.handshake_frame_bytes_max)
            except OSError as error:
                self._metrics.failed_connects["broker"] += 1
                self._warn("broker", f"the broker cannot be reached at {address}: {_error_text(error)}")
            if attempts_left:
                await asyncio.sleep(limits.retry_s)
        raise RefusedConnection("no_broker", "a peer waited for the broker in vain")

    async def _to_broker(self) -> None:
        assert self._peer is not None
        assert self._broker is not None
        peer, broker = self._peer, self._broker
        begun = peer.take_buffered()
        self._count(len(begun), 0)
        await broker.end.send(begun)
        early = broker.take_buffered()
        if early:
            await peer.end.send(early)
        await forward_both_ways(peer.end, broker.end, self._count, self._limits.half_closed_s)

    async def _to_coordinator(self) -> None:
        assert self._peer is not None
        if self._broker is not None:
            # It has done its part, and would be closed as idle one day.
            self._broker.end.close()
            self._broker = None
        self._coordinator = await self._connected_coordinator()
        self._link = PersisterLink(
            self._peer, self._coordinator, self._session, self._reauthenticate, self._count
        )
        await self._link.run()

    async def _connected_coordinator(self) -> FrameReader:
        """Connect to the coordinator; while it restarts, try again each second.

        A persister waits for its answer for 30 s; being cut off would cost it a back-off of 2, 4, 8 and 16 s.
        """
        limits, loop = self._limits, asyncio.get_running_loop()
        give_up_s = loop.time() + limits.coordinator_wait_s
        self._metrics.awaiting_coordinator += 1
        try:
            while True:
                try:
                    end = await self._route.coordinator.connect(limits.connect_s)
                    return FrameReader(end, limits.handshake_frame_bytes_max)
                except OSError as error:
                    self._metrics.failed_connects["coordinator"] += 1
                    address = self._route.coordinator.address
                    self._warn(
                        "coordinator", f"the coordinator cannot be reached at {address}: {_error_text(error)}"
                    )
                if loop.time() + limits.retry_s > give_up_s:
                    raise RefusedConnection(
                        "no_coordinator", "a persister waited for the coordinator in vain"
                    )
                await asyncio.sleep(limits.retry_s)
        finally:
            self._metrics.awaiting_coordinator -= 1

    async def _reauthenticate(self) -> Exchange:
        """Carry another exchange to the broker, over a connection of its own."""
        assert self._peer is not None
        peer, exchange = self._peer, Exchange(self._route.sub_claim)
        deadline = asyncio.timeout(self._limits.handshake_s)
        try:
            async with deadline:
                broker = await self._connected_broker()
                try:
                    await authenticate(peer, broker, exchange, self._request_memory)
                    if not exchange.accepted or not await is_authenticated(broker):
                        raise SessionEnded("a peer did not succeed in authenticating again")
                finally:
                    broker.end.close()
        except TimeoutError:
            if not deadline.expired():
                raise
            raise SessionEnded("a peer did not finish to authenticate again in time") from None
        self._metrics.reauthentications += 1
        return exchange

    def _count(self, sent: int, received: int) -> None:
        self.moved_bytes += sent + received
        destination = self.destination
        self._metrics.bytes_to[destination] += sent
        self._metrics.bytes_from[destination] += received

    async def _finish(self) -> None:
        """Close what is open with all that was sent. Who takes time for that is still there, and counted."""
        await asyncio.gather(*(inbound.end.finish() for inbound in self._frame_readers()))

    def _close(self) -> None:
        if self.destination:
            self._metrics.open[self.destination] -= 1
        else:
            self._metrics.undecided -= 1
        if self._peer is None:
            self._socket.close()
        for inbound in self._frame_readers():
            inbound.end.close()

    def _frame_readers(self) -> list[FrameReader]:
        return [inbound for inbound in (self._peer, self._broker, self._coordinator) if inbound is not None]


def _error_text(error: Exception) -> str:
    """Return what an error says; those of timeouts say nothing."""
    return str(error) or type(error).__name__
