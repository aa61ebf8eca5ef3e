"""Accept connections on the Kafka listener and enforce the limits that they share."""

import asyncio
import logging
from contextlib import suppress
from typing import cast

from coordinator.config import HostPort
from coordinator.errors import ListenError
from coordinator.metrics import Metrics
from coordinator.process.fair_queue import FairQueue
from coordinator.process.freed_memory import HeapTrimmer, trim_heap
from coordinator.security.principals import UnmappedCertificate
from coordinator.security.tls import CertificateTrust
from coordinator.security.tls_acceptor import FairAcceptor, PlaintextAcceptor, peer_address
from coordinator.serve.server.api import Api
from coordinator.serve.server.connection import Connection
from coordinator.serve.server.limits import ServerLimits
from coordinator.serve.server.listener_security import FrameHandler, ListenerSecurity, ListenerSecurityConfig
from coordinator.serve.server.request_memory import RequestMemory
from coordinator.serve.server.sasl_authenticator import SaslAuthenticator

_logger = logging.getLogger(__name__)

_BACKLOG = 1_024
# If the request memory is full, partial frames may take at most this share of the limit.
_PARTIAL_FRAMES_SHARE = 0.5


class Listener:
    """Listens on one address. Call `start`, then `drain`, then `stop`."""

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
        self._watch_tasks: list[asyncio.Task[None]] = []
        # TLS handshakes, and the frames of clients that are not authorized.
        self.untrusted_work = FairQueue()
        # Frames of authorized clients that arrived together.
        self.pipelined_work = FairQueue()
        self._acceptor = self._make_acceptor()
        self._sweeper: asyncio.Task[None] | None = None
        # A dict keeps the order of acceptance, which decides between connections that are equally old.
        self._connections: dict[Connection, None] = {}
        self.request_memory = RequestMemory(limits.queued_bytes_max)
        self._freed_memory = HeapTrimmer()
        self._all_answered: asyncio.Event | None = None

    async def start(self, address: HostPort) -> None:
        """Bind and accept. Raises ListenError if the address cannot be bound."""
        try:
            await self._acceptor.start(address.host, address.port, _BACKLOG)
        except OSError as error:
            raise ListenError("listen", str(address), error) from None
        self._sweeper = asyncio.create_task(self._close_idle_connections(), name="connection sweeper")
        self._watch_tasks = [
            asyncio.create_task(watched.watch(self._security.reload_s), name="watching security files")
            for watched in self._security.watched
        ]

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting connections and requests; wait for the responses to accepted requests."""
        self._acceptor.close()
        self.request_memory.draining = True
        for connection in self._connections:
            connection.stop_reading()
        self._all_answered = asyncio.Event()
        self.connection_idle()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all_answered.wait(), timeout_s)

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in self._watch_tasks:
            task.cancel()
        self._acceptor.stop()
        for connection in list(self._connections):
            connection.close("stopping")
        # The transports close in the next iteration of the event loop.
        await asyncio.sleep(0)

    def health(self) -> list[str]:
        """Return a list with the reason why brokers cannot connect; the list is empty if they can."""
        return [] if self._acceptor.is_serving else ["The listener for brokers accepts no connections."]

    @property
    def port(self) -> int:
        """The listening port; if port 0 was configured, the operating system chose it."""
        return self._acceptor.port

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def held_bytes(self) -> int:
        """The bytes of complete and partial requests of all clients."""
        return self.request_memory.held_bytes

    async def _close_idle_connections(self) -> None:
        """Close idle and slow connections; abort closed connections whose client does not read."""
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
            if self._freed_memory.is_due(now_s):
                trim_heap()

    def _close_largest_partial_frames(self) -> None:
        """Close the connections with the largest partial frames if partial frames fill the request memory.

        While the memory is full, no connection is read, so no partial frame can be completed before its
        timeout. Complete requests release their memory with the response.
        """
        if not self.request_memory.is_full:
            return
        parts = sum(connection.partial_bytes for connection in self._connections)
        largest_first = sorted(
            self._connections, key=lambda connection: connection.partial_bytes, reverse=True
        )
        for connection in largest_first:
            if parts <= _PARTIAL_FRAMES_SHARE * self._limits.queued_bytes_max:
                break
            parts -= connection.partial_bytes
            connection.close("no_room")

    # New connections.

    def _make_acceptor(self) -> PlaintextAcceptor | FairAcceptor:
        security = self._security
        tls = security.tls
        if tls is None and not security.mechanisms:
            return PlaintextAcceptor(self._create_connection)
        return FairAcceptor(
            (lambda: tls.context) if tls is not None else None,
            security.handshake_s,
            lambda: self._limits.connections_max - len(self._connections),
            lambda: (connection for connection in self._connections if not connection.is_authorized),
            self._accept_after_handshake,
            self._record_rejection,
            self.untrusted_work,
        )

    def _create_connection(
        self, handler: FrameHandler | None = None, trust: CertificateTrust | None = None
    ) -> asyncio.Protocol:
        """Create a connection; without a handler, the client must authenticate first."""
        if self._security.mechanisms:
            handler = SaslAuthenticator(self._listener_security)
        connection = Connection(
            handler or self._listener_security.api, self, self._metrics, self._limits, trust
        )
        # A compiled class cannot inherit from `asyncio.Protocol`, but has the same methods.
        return cast(asyncio.Protocol, connection)

    def _accept_after_handshake(self, secured: asyncio.Transport) -> asyncio.Protocol | None:
        """Return the connection of a client after its TLS handshake, or None if it is refused."""
        if self._all_answered is not None:
            return None
        certificate, tls = secured.get_extra_info("peercert"), self._security.tls
        trust = CertificateTrust(tls, certificate) if certificate and tls is not None else None
        if self._security.mechanisms:
            # With SASL, the login authenticates the client; the certificate does not matter.
            return self._create_connection(trust=trust)
        try:
            handler = self._listener_security.handler_for_certificate(certificate, peer_address(secured))
        except UnmappedCertificate as error:
            self._record_rejection(
                "unmapped_certificate",
                f"no rule of listen.ssl.principal.mapping.rules fits a client's certificate: {error}",
                peer_address(secured),
            )
            return None
        return self._create_connection(handler, trust)

    def _record_rejection(self, reason: str, sentence: str, peer: str) -> None:
        """Count a client that was rejected during its handshake, and log a warning if `sentence` is set."""
        self._metrics.count("connections_opened")
        self._metrics.count("connections_closed", reason)
        self._freed_memory.record_closed_connection()
        if sentence:
            self.warn_client(sentence, peer)

    # Callbacks of the connections.

    def warn_client(self, sentence: str, peer: str) -> None:
        """Log a warning about a client's mistake, with a rate limit."""
        self._listener_security.rate_limited_log.warn(sentence, peer=peer)

    def connection_opened(self, connection: Connection) -> bool:
        """Register a connection; return False if there are too many."""
        self._metrics.count("connections_opened")
        if len(self._connections) >= self._limits.connections_max:
            return False
        self._connections[connection] = None
        return True

    def connection_closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self.request_memory.waiting.discard(connection)
        self._freed_memory.record_closed_connection()
        self.connection_idle()

    def connection_idle(self) -> None:
        """End `drain` if no connection has a request in progress."""
        if self._all_answered is not None and not any(connection.busy for connection in self._connections):
            self._all_answered.set()
