"""Accept plaintext and TLS connections fairly, and report failed handshakes.

asyncio's own server creates the transports of all waiting clients in one iteration, and it does not report
failed handshakes.  `FairAcceptor` closes, counts and logs each client that connects without TLS or with an
invalid certificate.

Setting up a connection is expensive, especially with TLS. Therefore, a connection is set up only after its
first bytes have arrived (with TLS, the whole ClientHello), and a `FairQueue` limits how many are set up at a
time. Many clients do not block the event loop, and a client that sends nothing costs little.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

from coordinator.process.fair_queue import FairQueue, address_network
from coordinator.security.client_hello import expect_client_hello, has_client_hello
from coordinator.security.connection_eviction import EvictableConnection, evict_oldest
from coordinator.security.receive_buffer import limit_receive_buffer
from coordinator.security.tls_reader import TlsReader

_logger = logging.getLogger(__name__)

# OpenSSL's reasons for bytes that are not TLS, such as a plaintext request from a Kafka client or a browser.
_NOT_TLS_REASONS = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
}
# Accept at most this number of connections in one iteration of the event loop, which takes about 2 ms.
_ACCEPTED_AT_A_TIME = 32
# A handshake whose turn comes shortly before its deadline gets at least this number of seconds.
_LAST_STEPS_S = 1.0
# Metric label of a rejection because of the connection limit.
TOO_MANY_CONNECTIONS = "too_many_connections"
# The system has no free files or buffers; accepting works again after connections close.
_OUT_OF_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_OUT_OF_FILES_WAIT_S = 1.0

# Returns the protocol for a connected client, or None to reject the client.
ProtocolFactory = Callable[[asyncio.Transport], asyncio.Protocol | None]
# Called for each rejected client with a metric label, a message (or ""), and the client's address.
ReportRejected = Callable[[str, str, str], None]


class PlaintextAcceptor:
    """Accepts connections without TLS; uses asyncio's own server.

    Call `start`, then `close`, which keeps existing connections, then `stop`, as for `FairAcceptor`.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, backlog: int) -> None:
        """Bind and accept. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make, host, port, backlog=backlog)

    @property
    def port(self) -> int:
        assert self._server is not None, "not started"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def is_serving(self) -> bool:
        return self._server is not None and self._server.is_serving()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def stop(self) -> None:
        self.close()


class FairAcceptor:
    """Accepts connections up to a limit, with TLS or without it.

    `context` creates the context of one handshake; None means no TLS. Within `setup_s` seconds, the first
    bytes must arrive, and the handshake must end. `vacant` returns how many connections the server may add;
    connections that are being set up are not subtracted from this number. At the limit, `evict_oldest` closes
    connections that are being set up, or the server's `evictable` connections. Clients that send nothing
    therefore do not block others.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext] | None,
        setup_s: float,
        vacant: Callable[[], int],
        evictable: Callable[[], Iterable[EvictableConnection]],
        make_protocol: ProtocolFactory,
        report_rejected: ReportRejected,
        turns: FairQueue,
    ) -> None:
        self.context = context
        self.setup_s = setup_s
        self.make_protocol = make_protocol
        self.report_rejected = report_rejected
        self.turns = turns
        # In the order of acceptance. Timestamps do not determine this order, because the clock of uvloop does
        # not advance within an iteration of the loop.
        self.pending: dict[_PendingConnection, None] = {}
        self._vacant = vacant
        self._evictable = evictable
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self.port = 0

    async def start(self, host: str, port: int, backlog: int) -> None:
        """Bind and accept. Raises OSError."""
        found = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, proto=socket.IPPROTO_TCP
        )
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._sockets.append(_make_listening_socket(family, kind, protocol, address, backlog))
        except OSError:
            for listening in self._sockets:
                listening.close()
            raise
        self.port = int(self._sockets[0].getsockname()[1])
        for listening in self._sockets:
            self._listen_on_socket(listening)

    @property
    def is_serving(self) -> bool:
        return bool(self._sockets)

    def close(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets = []

    def stop(self) -> None:
        self.close()
        for pending in list(self.pending):
            pending.evict()

    def _listen_on_socket(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept_connections, listening)

    def _accept_connections(self, listening: socket.socket) -> None:
        # Evicted connections count as free at once, although servers remove them in the next iteration.
        vacant = self._vacant() - len(self.pending)
        for _ in range(_ACCEPTED_AT_A_TIME):
            try:
                accepted, address = listening.accept()
            except OSError as error:
                if error.errno in _OUT_OF_FILES:
                    _logger.error("Connections cannot be accepted: %s", error.strerror)
                    self._loop.remove_reader(listening)
                    self._loop.call_later(_OUT_OF_FILES_WAIT_S, self._listen_on_socket, listening)
                # With any other error, no client is waiting, or the client closed its connection.
                return
            if vacant <= 0:
                self.report_rejected(TOO_MANY_CONNECTIONS, "", _format_address(address))
                vacant += evict_oldest([*self.pending, *self._evictable()], at_least=1 - vacant)
            if vacant > 0:
                vacant -= 1
                _PendingConnection(self, accepted, address)
            else:
                accepted.close()


class _PendingConnection:
    """An accepted connection without a protocol: it waits for its first bytes, then in the `FairQueue`."""

    def __init__(self, acceptor: FairAcceptor, accepted: socket.socket, address: Any) -> None:
        self.network = address_network(address)
        self._loop = asyncio.get_running_loop()
        self.last_active_s = self._loop.time()
        self._acceptor = acceptor
        self._address = address
        # None when a transport owns the socket, and after the connection was closed.
        self._accepted: socket.socket | None = accepted
        self._connecting: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(acceptor.setup_s, self._reject_client, "it sent nothing in time")
        acceptor.pending[self] = None
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            limit_receive_buffer(accepted, is_authorized=False)
            if acceptor.context is not None:
                expect_client_hello(accepted)
            self._loop.add_reader(accepted, self._on_readable)
        except OSError as error:
            self._reject_client(error)

    def evict(self) -> None:
        self._timer.cancel()
        self._acceptor.pending.pop(self, None)
        if self._accepted is not None:
            self._loop.remove_reader(self._accepted)
            self._accepted.close()
            self._accepted = None
        if self._connecting is not None:
            self._connecting.cancel()

    def _reject_client(self, reason: object) -> None:
        self.evict()
        peer = _format_address(self._address)
        _logger.debug("A connection was not set up: %s", reason, extra={"peer": peer})
        label = "authentication_timeout" if self._acceptor.context is None else "tls_unfinished"
        self._acceptor.report_rejected(label, "", peer)

    def _on_readable(self) -> None:
        assert self._accepted is not None, "no reader after the end"
        try:
            if self._acceptor.context is not None and not has_client_hello(self._accepted):
                return
        except OSError as error:
            self._reject_client(error)
            return
        self._loop.remove_reader(self._accepted)
        self._acceptor.turns.add(self.network, self._start_setup)

    def _start_setup(self) -> None:
        if self._accepted is not None:
            self._connecting = self._loop.create_task(self._create_connection(self._accepted))

    async def _create_connection(self, accepted: socket.socket) -> None:
        acceptor, peer = self._acceptor, _format_address(self._address)
        self._accepted = None
        self._timer.cancel()
        context = acceptor.context() if acceptor.context is not None else None
        handshake_s = max(self.last_active_s + acceptor.setup_s - self._loop.time(), _LAST_STEPS_S)
        try:
            await self._loop.connect_accepted_socket(
                lambda: _ConnectionHandoff(self._make_protocol, is_secured=context is not None),
                accepted,
                ssl=context,
                ssl_handshake_timeout=handshake_s if context is not None else None,
            )
        except asyncio.CancelledError:
            # Otherwise the transport would wait for the client's close_notify.
            with suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)
            raise
        except ssl.SSLError as error:
            acceptor.report_rejected(*_describe_handshake_error(error), peer)
        except OSError as error:
            # The client disconnected or was too slow, which is not an error.
            _logger.debug("A TLS handshake was not finished: %s", error, extra={"peer": peer})
            acceptor.report_rejected("tls_unfinished", "", peer)
        finally:
            acceptor.pending.pop(self, None)

    def _make_protocol(self, connected: asyncio.Transport) -> asyncio.Protocol | None:
        if self not in self._acceptor.pending:
            # uvloop calls `connection_made` although the setup was cancelled and the transport is closed.
            return None
        # From now on, the server counts the connection.
        del self._acceptor.pending[self]
        return self._acceptor.make_protocol(connected)


class _ConnectionHandoff(asyncio.Protocol):
    """Passes a connection to its protocol; with TLS, after the handshake."""

    def __init__(self, make_protocol: ProtocolFactory, *, is_secured: bool) -> None:
        self._make_protocol = make_protocol
        self._is_secured = is_secured

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, but have the same methods.
        connected = cast(asyncio.Transport, transport)
        protocol = self._make_protocol(connected)
        if protocol is None:
            connected.abort()
            return
        connected.set_protocol(TlsReader(protocol, connected) if self._is_secured else protocol)
        protocol.connection_made(connected)


def peer_address(transport: asyncio.BaseTransport | None) -> str:
    """Return a client's address for logs."""
    return _format_address(transport.get_extra_info("peername")) if transport is not None else "unknown"


def _format_address(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"


def _make_listening_socket(
    family: int, kind: int, protocol: int, address: Any, backlog: int
) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(backlog)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _describe_handshake_error(error: ssl.SSLError) -> tuple[str, str]:
    if error.reason in _NOT_TLS_REASONS:
        return "plaintext_to_tls", "a client without TLS came to the TLS port"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "bad_certificate", f"a client's certificate is not accepted: {error.verify_message}"
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "no_certificate", "a client without a certificate came to a port that asks for one"
    return "tls_failed", f"a TLS handshake failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
