"""Accept plaintext and TLS connections, and report failed handshakes.

asyncio's own TLS server does not report failed handshakes.  This acceptor closes, counts and logs each client
that connects without TLS or with an invalid certificate.

Most of the cost of a handshake follows its first message, the ClientHello. A handshake begins when the whole
ClientHello is in the socket, and takes a turn of a `FairQueue`. So many clients at a time neither block the
event loop nor cost anything before they send a ClientHello.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, cast

from coordinator.process.fair_queue import FairQueue, network_of
from coordinator.security.client_hello import wait_for_client_hello
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
# A handshake whose turn comes shortly before its deadline has at least this time.
_LAST_STEPS_S = 1.0
# Metric label of a rejection because of the connection limit.
TOO_MANY_CONNECTIONS = "too_many_connections"
# The system has no free files or buffers; accepting works again after connections close.
_OUT_OF_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_OUT_OF_FILES_WAIT_S = 1.0

# Returns the protocol for a client after its handshake, or None to reject the client.
ProtocolFactory = Callable[[asyncio.Transport], asyncio.Protocol | None]
# Called for each rejected client with a metric label, a message (or ""), and the client's address.
ReportRejected = Callable[[str, str, str], None]


class Acceptor(Protocol):
    """Accepts connections. Call `start`, then `close`, which keeps existing connections, then `stop`."""

    async def start(self, host: str, port: int, backlog: int) -> None:
        """Bind and accept. Raises OSError."""
        ...

    @property
    def port(self) -> int:
        """The listening port."""
        ...

    @property
    def is_serving(self) -> bool:
        """True while connections are accepted."""
        ...

    def close(self) -> None:
        """Stop accepting."""
        ...

    def stop(self) -> None:
        """Abort handshakes in progress."""
        ...


class PlaintextAcceptor:
    """Accepts connections without TLS; uses asyncio's own server."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, backlog: int) -> None:
        """Bind and accept. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make, host, port, backlog=backlog)

    @property
    def port(self) -> int:
        """The listening port."""
        assert self._server is not None, "not started"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def is_serving(self) -> bool:
        """True while connections are accepted."""
        return self._server is not None and self._server.is_serving()

    def close(self) -> None:
        """Stop accepting."""
        if self._server is not None:
            self._server.close()

    def stop(self) -> None:
        """Stop accepting."""
        self.close()


class TlsAcceptor:
    """Accepts connections over TLS up to a limit.

    `context` creates the context of one handshake. `free_connections` returns how many more connections may
    be accepted, without handshakes in progress. When handshakes use all of them, the oldest handshake is
    cancelled, so that clients that send nothing do not block others.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        handshake_s: float,
        free_connections: Callable[[], int],
        make_protocol: ProtocolFactory,
        report_rejected: ReportRejected,
        turns: FairQueue,
    ) -> None:
        self._turns = turns
        self._context = context
        self._handshake_s = handshake_s
        self._free_connections = free_connections
        self._make_protocol = make_protocol
        self._report_rejected = report_rejected
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        # In the order of acceptance; the value is the socket until a transport owns it.
        self._handshakes: dict[asyncio.Task[None], socket.socket | None] = {}

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
        for listening in self._sockets:
            accepting = asyncio.create_task(self._accept(listening), name="accepting TLS connections")
            accepting.add_done_callback(partial(_close_socket, listening))
            self._accepting.append(accepting)

    @property
    def port(self) -> int:
        """The listening port."""
        return int(self._sockets[0].getsockname()[1])

    @property
    def is_serving(self) -> bool:
        """True while connections are accepted."""
        return bool(self._accepting)

    def close(self) -> None:
        """Stop accepting."""
        # Each task closes its socket when it is cancelled.
        for accepting in self._accepting:
            accepting.cancel()
        self._accepting = []

    def stop(self) -> None:
        """Abort handshakes in progress."""
        self.close()
        for handshake in list(self._handshakes):
            handshake.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _OUT_OF_FILES:
                    _logger.error("Connections cannot be accepted: %s", error.strerror)
                    await asyncio.sleep(_OUT_OF_FILES_WAIT_S)
                # The client closed its connection before it was accepted.
                continue
            if len(self._handshakes) >= self._free_connections():
                self._report_rejected(TOO_MANY_CONNECTIONS, "", _format_address(address))
                if not self._handshakes:
                    accepted.close()
                    continue
                next(iter(self._handshakes)).cancel()
            handshake = asyncio.create_task(self._handshake(accepted, address))
            self._handshakes[handshake] = accepted
            handshake.add_done_callback(self._forget)

    def _forget(self, handshake: "asyncio.Task[None]") -> None:
        accepted = self._handshakes.pop(handshake)
        if accepted is not None:
            # The handshake has not begun, so no transport owns the socket.
            accepted.close()

    async def _handshake(self, accepted: socket.socket, address: Any) -> None:
        own_task, peer = asyncio.current_task(), _format_address(address)
        assert own_task is not None, "a handshake is a task"
        deadline_s = self._loop.time() + self._handshake_s
        try:
            limit_receive_buffer(accepted, is_authorized=False)
            async with asyncio.timeout_at(deadline_s):
                await wait_for_client_hello(accepted)
                await self._turns.turn(network_of(address))
        except (OSError, TimeoutError) as error:
            # `_forget` closes the socket.
            _logger.debug("No TLS handshake was begun: %s", error, extra={"peer": peer})
            self._report_rejected("tls_unfinished", "", peer)
            return
        self._handshakes[own_task] = None
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await self._loop.connect_accepted_socket(
                lambda: _HandshakeProtocol(self._make_protocol),
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=max(deadline_s - self._loop.time(), _LAST_STEPS_S),
            )
        except asyncio.CancelledError:
            # Otherwise the transport would wait for the client's close_notify.
            with suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)
            raise
        except ssl.SSLError as error:
            self._report_rejected(*_describe_handshake_error(error), peer)
        except OSError as error:
            # The client disconnected or was too slow, which is not an error.
            _logger.debug("A TLS handshake was not finished: %s", error, extra={"peer": peer})
            self._report_rejected("tls_unfinished", "", peer)


class _HandshakeProtocol(asyncio.Protocol):
    """Passes a connection to its protocol after the handshake."""

    def __init__(self, make_protocol: ProtocolFactory) -> None:
        self._make_protocol = make_protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the connection to its protocol."""
        # uvloop's transports do not inherit from asyncio's, but have the same methods.
        secured = cast(asyncio.Transport, transport)
        protocol = self._make_protocol(secured)
        if protocol is None:
            secured.abort()
            return
        secured.set_protocol(TlsReader(protocol, secured))
        protocol.connection_made(secured)


def peer_address(transport: asyncio.BaseTransport | None) -> str:
    """Return a client's address for logs."""
    return _format_address(transport.get_extra_info("peername")) if transport is not None else "unknown"


def _format_address(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"


def _close_socket(listening: socket.socket, done: "asyncio.Task[None]") -> None:
    listening.close()


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
    """Return the metric label and the message for a failed handshake."""
    if error.reason in _NOT_TLS_REASONS:
        return "plaintext_to_tls", "a client without TLS came to the TLS port"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "bad_certificate", f"a client's certificate is not accepted: {error.verify_message}"
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "no_certificate", "a client without a certificate came to a port that asks for one"
    return "tls_failed", f"a TLS handshake failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
