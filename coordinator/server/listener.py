"""The wire listener: accepts connections and keeps the bounds that they share."""

import asyncio
import logging
from contextlib import suppress

from coordinator import fastpath
from coordinator.config import HostPort
from coordinator.errors import ListenError
from coordinator.metrics import Metrics
from coordinator.security.principals import UnmappedCertificate
from coordinator.security.tls import Trust
from coordinator.security.tls_acceptor import Acceptor, PlaintextAcceptor, TlsAcceptor, peer_address
from coordinator.server.api import Api
from coordinator.server.connection import Connection
from coordinator.server.limits import ServerLimits
from coordinator.server.listener_security import Handler, ListenerSecurity, ListenerSecurityConfig
from coordinator.server.request_memory import RequestMemory
from coordinator.server.sasl_authenticator import SaslAuthenticator

_logger = logging.getLogger(__name__)

_BACKLOG = 1_024
# So much of what clients may hold together parts of frames may take when it is full.
_PARTIAL_FRAMES_SHARE = 0.5


class Listener:
    """Listens on one address. `start`, then `drain`, then `stop`."""

    def __init__(
        self,
        api: Api,
        metrics: Metrics,
        limits: ServerLimits,
        security: ListenerSecurityConfig | None = None,
    ) -> None:
        self._security = security or ListenerSecurityConfig()
        self._listener_security = ListenerSecurity(api, self._security, metrics)
        self._metrics = metrics
        self._limits = limits
        self._watching: list[asyncio.Task[None]] = []
        self._acceptor = self._make_acceptor()
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: set[Connection] = set()
        self.request_memory = RequestMemory(limits.queued_bytes_max)
        self._all_answered: asyncio.Event | None = None

    async def start(self, address: HostPort) -> None:
        """Bind and accept. Raises ListenError, with a sentence, when the address cannot be had."""
        try:
            await self._acceptor.start(address.host, address.port, _BACKLOG)
        except OSError as error:
            raise ListenError("listen", str(address), error) from None
        self._sweeper = asyncio.create_task(self._sweep(), name="connection sweeper")
        self._watching = [
            asyncio.create_task(watched.watch(self._security.reload_s), name="watching security files")
            for watched in self._security.watched
        ]

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing more, and wait until what was accepted has been answered."""
        self._acceptor.close()
        self.request_memory.draining = True
        for connection in self._connections:
            connection.stop_reading()
        self._all_answered = asyncio.Event()
        self.connection_idle()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all_answered.wait(), timeout_s)

    async def stop(self) -> None:
        """Close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for watching in self._watching:
            watching.cancel()
        self._acceptor.stop()
        for connection in list(self._connections):
            connection.close("stopping")
        # The transports close in the next turn of the loop.
        await asyncio.sleep(0)

    def health(self) -> list[str]:
        """Return why brokers cannot connect, one sentence; nothing when they can."""
        return [] if self._acceptor.is_serving else ["The listener for brokers accepts no connections."]

    @property
    def port(self) -> int:
        """The port that is listened on: the system's choice where port 0 was asked for."""
        return self._acceptor.port

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @property
    def held_bytes(self) -> int:
        """Bytes of requests, whole or in part, that clients hold of this process."""
        return self.request_memory.held_bytes

    async def _sweep(self) -> None:
        """Close connections that are idle, or whose frame does not end; break off those that do not close."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._limits.sweep_s)
            now_s = loop.time()
            for connection in list(self._connections):
                reason = connection.timeout_reason(now_s, self._listener_security.clock.now_ms())
                if reason is not None:
                    connection.close(reason)
                connection.abort_if_stalled(now_s)
            self._close_largest_partial_frames()

    def _close_largest_partial_frames(self) -> None:
        """Close those with the largest parts of frames where these fill what all clients may hold together.

        Nobody is read on then, so no frame would end, and everybody would wait until they are overdue.  What
        whole requests take is let go of by itself.
        """
        if not self.request_memory.is_full:
            return
        parts = sum(connection.partial_bytes for connection in self._connections)
        largest_first = sorted(self._connections, key=lambda one: one.partial_bytes, reverse=True)
        for connection in largest_first:
            if parts <= _PARTIAL_FRAMES_SHARE * self._limits.queued_bytes_max:
                break
            parts -= connection.partial_bytes
            connection.close("no_room")

    # Who comes in.

    def _make_acceptor(self) -> Acceptor:
        security = self._security
        tls = security.tls
        if tls is None:
            return PlaintextAcceptor(self._connection)
        return TlsAcceptor(
            lambda: tls.context,
            security.handshake_s,
            lambda: self._limits.connections_max - len(self._connections),
            self._accept_secured,
            self._note_rejected,
        )

    def _connection(self, handler: Handler | None = None, trust: Trust | None = None) -> asyncio.Protocol:
        """Make a connection for a client; without a handler, of one that has shown nothing yet."""
        api, limits = self._listener_security.api, self._limits
        if self._security.mechanisms:
            handler = SaslAuthenticator(self._listener_security)
        connection = Connection(handler or api, self, self._metrics, limits, trust)
        writes = api.fast_path_writes
        if fastpath.compiled is None or writes is None:
            return connection
        one_at_a_time = limits.requests_in_flight_max == 1
        in_front: asyncio.Protocol = fastpath.compiled.FastPath(
            connection, api, writes, limits.frame_bytes_max, one_at_a_time
        )
        return in_front

    def _accept_secured(self, secured: asyncio.Transport) -> asyncio.Protocol | None:
        """Return the connection of a client whose TLS handshake is over, None for one that is nobody."""
        if self._all_answered is not None:
            return None
        certificate, tls = secured.get_extra_info("peercert"), self._security.tls
        trust = Trust(tls, certificate) if certificate and tls is not None else None
        if self._security.mechanisms:
            # Known by its login, whatever it showed before.
            return self._connection(trust=trust)
        try:
            handler = self._listener_security.handler_for_certificate(certificate, peer_address(secured))
        except UnmappedCertificate as error:
            self._note_rejected(
                "unmapped_certificate",
                f"no rule of listen.ssl.principal.mapping.rules fits a client's certificate: {error}",
                peer_address(secured),
            )
            return None
        return self._connection(handler, trust)

    def _note_rejected(self, reason: str, sentence: str, peer: str) -> None:
        """Count a client that did not come as far as a connection."""
        self._metrics.connection_opened()
        self._metrics.connection_closed(reason)
        if sentence:
            self.warn_client(sentence, peer)

    # For connections.

    def warn_client(self, sentence: str, peer: str) -> None:
        """Warn of what a client does wrong, unless that was said just now."""
        self._listener_security.rate_limited_log.warn(sentence, peer=peer)

    def connection_opened(self, connection: Connection) -> bool:
        """Count a connection in; False if there are too many."""
        self._metrics.connection_opened()
        if len(self._connections) >= self._limits.connections_max:
            return False
        self._connections.add(connection)
        return True

    def connection_closed(self, connection: Connection) -> None:
        """Count a connection out."""
        self._connections.discard(connection)
        self.request_memory.waiting.discard(connection)
        self.connection_idle()

    def connection_idle(self) -> None:
        """Note that a connection has no request under way any more."""
        if self._all_answered is not None and not any(connection.busy for connection in self._connections):
            self._all_answered.set()
