"""Serve one connection: authenticate the peer, choose the destination, then forward bytes until it closes.

Each connection runs in its own task. An error in one connection does not affect another.
"""

import asyncio
import itertools
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Literal, NamedTuple

from coordinator.errors import error_text
from coordinator.process.fair_queue import FairQueue
from coordinator.security.client_hello import wait_for_client_hello
from coordinator.security.principals import (
    AllowedPrincipals,
    MappingRules,
    UnmappedCertificate,
    principal_of_certificate,
)
from coordinator.security.tls import CertificateTrust, ServerTls
from coordinator.serve.relay.forwarding import forward_both_ways
from coordinator.serve.relay.frame_reader import EndOfStream, FrameReader, RefusedConnection
from coordinator.serve.relay.limits import RelayLimits, RequestMemory
from coordinator.serve.relay.metrics import RelayMetrics
from coordinator.serve.relay.persister import PeerSession, PersisterLink, SessionEnded
from coordinator.serve.relay.sasl import LoginFailed, RelayedExchange, authenticate, is_authenticated
from coordinator.serve.relay.streams import Stream, TlsStream, UpstreamServer, accept_stream
from protocol.errors import ProtocolError

_logger = logging.getLogger(__name__)

# How a peer is identified: not at all, by its client certificate, or by the SASL user as which the broker
# authenticates it.
PeerCheck = Literal["none", "certificate", "sasl"]


class UpstreamRoute(NamedTuple):
    """The upstream servers, and how peers are identified and authorized."""

    broker: UpstreamServer
    coordinator: UpstreamServer
    check: PeerCheck
    allowed: AllowedPrincipals
    rules: MappingRules
    sub_claim: str
    tls: ServerTls | None


class RelayContext(NamedTuple):
    """The objects that all connections of a relay share.

    `turns` orders the TLS handshakes, so that each client network gets its turn. `warn` logs a sentence for
    the operator, with a rate limit for each kind of sentence.
    """

    route: UpstreamRoute
    limits: RelayLimits
    request_memory: RequestMemory
    metrics: RelayMetrics
    warn: Callable[[str, str], None]
    turns: FairQueue


class Connection:
    """One accepted connection. A task calls `run`; the listener calls `stop` and `abort`."""

    def __init__(self, accepted: socket.socket, network: str, context: RelayContext) -> None:
        """Create a connection that owns an accepted socket; `network` is the network of the peer."""
        self._socket = accepted
        self.network = network
        self.last_active_s = asyncio.get_running_loop().time()
        self.is_aborted = False
        self._context = context
        self._route, self._limits, self._metrics = context.route, context.limits, context.metrics
        self._peer: FrameReader | None = None
        self._broker: FrameReader | None = None
        self._coordinator: FrameReader | None = None
        self._session = PeerSession("", None, None)
        self._link: PersisterLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._trust: CertificateTrust | None = None
        self.destination = ""
        # Number of forwarded bytes. The listener compares this number over time to find idle connections.
        self.forwarded_bytes = 0

    def stop(self) -> None:
        """Close the connection: a persister's after the pending responses, any other connection at once."""
        if self._link is not None:
            self._link.stop()
        else:
            self.abort()

    def is_trusted(self, now_ms: int) -> bool:
        """Return False if the certificate expired or an authority was removed after the handshake."""
        return self._trust is None or self._trust.is_valid(now_ms)

    def abort(self) -> None:
        self.is_aborted = True
        if self._task is not None:
            self._task.cancel()

    evict = abort

    async def run(self) -> None:
        """Serve the connection to its end. Raises nothing but CancelledError."""
        self._task = asyncio.current_task()
        self._metrics.undecided += 1
        try:
            try:
                if not self.is_aborted:
                    await self._serve_client()
            except LoginFailed:
                # The log of the broker contains only the address of the relay.
                self._metrics.refused["login_failed"] += 1
                self._context.warn("login_failed", f"The broker refused a login from {self.network}.")
            except (EndOfStream, OSError) as error:
                _logger.debug("a connection ended: %s", error_text(error))
            await self._close_streams()
        except RefusedConnection as refusal:
            self._refuse_connection(refusal.reason, refusal)
        except SessionEnded as lost:
            self._refuse_connection("session", lost)
        except ProtocolError as error:
            self._refuse_connection("bad_frame", error)
        except Exception:
            # A defect of the relay ends only this connection, and the broker reconnects.
            _logger.exception("Internal error; the relay closed a connection.")
            self._metrics.refused["internal_error"] += 1
        finally:
            self._release_resources()

    def _refuse_connection(self, reason: str, why: Exception) -> None:
        self._metrics.refused[reason] += 1
        self._context.warn(reason, str(why))

    async def _serve_client(self) -> None:
        limits = self._limits
        deadline = asyncio.timeout(limits.handshake_s)
        try:
            async with deadline:
                destination = await self._choose_destination()
        except TimeoutError:
            if not deadline.expired():
                raise
            raise RefusedConnection(
                "slow_handshake", f"no destination after {limits.handshake_s:g} s"
            ) from None
        self.destination = destination
        self._metrics.undecided -= 1
        self._metrics.decided[destination] += 1
        self._metrics.open[destination] += 1
        if destination == "broker":
            await self._forward_to_broker()
        else:
            await self._forward_to_coordinator()

    async def _choose_destination(self) -> str:
        """Return the destination, "broker" or "coordinator", after authenticating the peer if required."""
        route, limits = self._route, self._limits
        try:
            if route.tls is not None:
                await wait_for_client_hello(self._socket)
                await self._context.turns.wait_for_turn(self.network)
            end = await accept_stream(self._socket, route.tls.context if route.tls is not None else None)
        except ssl.SSLError as error:
            raise RefusedConnection("tls", f"a TLS handshake failed: {error.reason or error}") from None
        peer = self._peer = FrameReader(end, limits.handshake_frame_bytes_max)
        if isinstance(end, TlsStream) and end.certificate and route.tls is not None:
            self._trust = CertificateTrust(route.tls, end.certificate)
        if route.check == "certificate":
            self._check_certificate(end)
        if route.check == "sasl":
            # Health checks connect and send nothing.
            await peer.peek_head()
            exchange = RelayedExchange(route.sub_claim)
            broker = self._broker = await self._connect_to_broker()
            await authenticate(peer, broker, exchange, self._context.request_memory)
            if (await peer.peek_head()).is_from_persister:
                await self._check_user(broker, exchange)
        if (await peer.peek_head()).is_from_persister:
            return "coordinator"
        if self._broker is None:
            self._broker = await self._connect_to_broker()
        return "broker"

    def _check_certificate(self, end: Stream) -> None:
        """Refuse a peer whose certificate does not map to an allowed principal.

        The broker sees only the relay's certificate, so no other check follows.
        """
        assert isinstance(end, TlsStream)
        try:
            principal = principal_of_certificate(end.certificate, self._route.rules)
        except UnmappedCertificate as unmapped:
            raise RefusedConnection("principal", f"no rule maps the certificate of {unmapped}") from None
        if not self._route.allowed.allows_principal(principal):
            raise RefusedConnection("principal", f"{principal} is not in relay.allowed.principals")

    async def _check_user(self, broker: FrameReader, exchange: RelayedExchange) -> None:
        """Refuse a persister whose user is not allowed; otherwise start its session."""
        if exchange.user is None or not exchange.accepted:
            with_what = exchange.mechanism or "no SASL mechanism"
            raise RefusedConnection(
                "unauthenticated", f"a persister logged in with {with_what} and without a readable user name"
            )
        principal = f"User:{exchange.user}"
        if not self._route.allowed.allows_principal(principal):
            raise RefusedConnection("principal", f"{principal} is not in relay.allowed.principals")
        if not await is_authenticated(broker):
            raise RefusedConnection(
                "unauthenticated", f"the broker did not authenticate a persister as {principal}"
            )
        self._session = PeerSession.from_exchange(exchange, asyncio.get_running_loop().time())

    async def _connect_to_broker(self) -> FrameReader:
        """Connect to the broker, with a few retries in case it restarts. Raises RefusedConnection."""
        attempts_max = self._limits.broker_attempts
        return await self._connect(
            "broker", self._route.broker, give_up=lambda attempts: attempts >= attempts_max
        )

    async def _connect_to_coordinator(self) -> FrameReader:
        """Connect to the coordinator; retry every second while it restarts. Raises RefusedConnection.

        A persister waits 30 s for a response. If the connection of a persister were closed, the persister
        would back off for 2 to 16 s.
        """
        limits, loop = self._limits, asyncio.get_running_loop()
        give_up_s = loop.time() + limits.coordinator_wait_s - limits.retry_s
        self._metrics.awaiting_coordinator += 1
        try:
            return await self._connect(
                "coordinator", self._route.coordinator, give_up=lambda _: loop.time() > give_up_s
            )
        finally:
            self._metrics.awaiting_coordinator -= 1

    async def _connect(
        self, name: str, server: UpstreamServer, *, give_up: Callable[[int], bool]
    ) -> FrameReader:
        """Connect; `give_up` decides by the number of failed attempts. Raises RefusedConnection."""
        limits = self._limits
        for attempts in itertools.count(1):
            try:
                end = await server.connect(limits.connect_s)
                return FrameReader(end, limits.handshake_frame_bytes_max)
            except OSError as error:
                self._metrics.failed_connects[name] += 1
                self._context.warn(
                    name, f"the {name} cannot be reached at {server.address}: {error_text(error)}"
                )
            if give_up(attempts):
                break
            await asyncio.sleep(limits.retry_s)
        raise RefusedConnection(
            f"no_{name}", f"the {name} is unreachable; the connection of a peer was closed"
        )

    async def _forward_to_broker(self) -> None:
        assert self._peer is not None
        assert self._broker is not None
        peer, broker = self._peer, self._broker
        request_bytes = peer.take_buffered_bytes()
        self._count_bytes(len(request_bytes), 0)
        await broker.stream.send(request_bytes)
        response_bytes = broker.take_buffered_bytes()
        if response_bytes:
            await peer.stream.send(response_bytes)
        await forward_both_ways(peer.stream, broker.stream, self._count_bytes, self._limits.half_closed_s)

    async def _forward_to_coordinator(self) -> None:
        assert self._peer is not None
        if self._broker is not None:
            # The connection to the broker was needed only for authentication, and the broker would close it
            # as idle.
            self._broker.stream.close()
            self._broker = None
        self._coordinator = await self._connect_to_coordinator()
        self._link = PersisterLink(
            self._peer, self._coordinator, self._session, self._reauthenticate, self._count_bytes
        )
        await self._link.run()

    async def _reauthenticate(self) -> RelayedExchange:
        """Forward a re-authentication to the broker over a new connection. Raises SessionEnded."""
        assert self._peer is not None
        peer, exchange = self._peer, RelayedExchange(self._route.sub_claim)
        deadline = asyncio.timeout(self._limits.handshake_s)
        try:
            async with deadline:
                broker = await self._connect_to_broker()
                try:
                    await authenticate(peer, broker, exchange, self._context.request_memory)
                    if not exchange.accepted or not await is_authenticated(broker):
                        raise SessionEnded("a peer failed to re-authenticate")
                finally:
                    broker.stream.close()
        except TimeoutError:
            if not deadline.expired():
                raise
            raise SessionEnded("a peer did not complete its re-authentication in time") from None
        self._metrics.reauthentications += 1
        return exchange

    def _count_bytes(self, sent: int, received: int) -> None:
        self.forwarded_bytes += sent + received
        destination = self.destination
        self._metrics.bytes_to[destination] += sent
        self._metrics.bytes_from[destination] += received

    async def _close_streams(self) -> None:
        """Flush and close all streams; until then, the connection counts against the limit."""
        await asyncio.gather(*(reader.stream.finish() for reader in self._frame_readers()))

    def _release_resources(self) -> None:
        if self.destination:
            self._metrics.open[self.destination] -= 1
        else:
            self._metrics.undecided -= 1
        if self._peer is None:
            self._socket.close()
        for reader in self._frame_readers():
            reader.stream.close()

    def _frame_readers(self) -> list[FrameReader]:
        return [reader for reader in (self._peer, self._broker, self._coordinator) if reader is not None]
