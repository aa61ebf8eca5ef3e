"""Streams to a peer, the broker or the coordinator, with or without TLS; accept and connect them.

A plain stream is a bare socket, so that `forwarding` can copy between two sockets without asyncio streams.
A TLS stream wraps the reader and writer of an asyncio stream.
"""

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Any, NamedTuple

from coordinator.config import HostPort
from coordinator.security.outgoing_tls import OutgoingTls

# Bytes per read. Without TLS, a larger buffer would cost a new memory mapping for each read.
_CHUNK_BYTES = 64 << 10
_TLS_CHUNK_BYTES = 256 << 10
# Size of the write buffer of a TLS stream. This buffer is large, so that sending continues while other
# connections are served.
_TLS_WAITING_BYTES = 1 << 20
# Read-ahead of a TLS stream, encrypted and decrypted; bounded because any peer may send any amount.
_TLS_READ_BYTES = 64 << 10
# With TLS, how long flushing the written bytes and the closing handshake may take.
_TLS_FINISH_S = 2.0


class PlainStream:
    """A stream without TLS, with one reader and one writer at a time.

    `receive` and `send` raise OSError when the connection breaks. `finish` must not be called while `receive`
    or `send` is in progress.
    """

    def __init__(self, plain_socket: socket.socket) -> None:
        """Create a stream that owns a connected non-blocking socket."""
        self.socket = plain_socket
        self._loop = asyncio.get_running_loop()
        configure_socket(plain_socket)

    async def receive(self, bytes_max: int = _CHUNK_BYTES) -> bytes:
        """Return received bytes, or b"" when the other side has closed its direction."""
        return await self._loop.sock_recv(self.socket, min(bytes_max, _CHUNK_BYTES))

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`; return when the kernel or a bounded buffer has accepted it."""
        await self._loop.sock_sendall(self.socket, data)

    async def finish(self) -> None:
        # The kernel delivers what was sent before the close.
        self.socket.close()

    def close(self) -> None:
        """Close at once, discarding unsent bytes. Closing twice has no effect."""
        self.socket.close()


class TlsStream:
    """A stream with TLS, with the methods of `PlainStream`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The peer's certificate as `ssl` decodes it, None if the peer sent none."""
        found: dict[str, Any] | None = self._writer.get_extra_info("peercert")
        return found

    async def receive(self, bytes_max: int = _TLS_CHUNK_BYTES) -> bytes:
        return await self._reader.read(bytes_max)

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def finish(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def close(self) -> None:
        self._writer.transport.abort()


Stream = PlainStream | TlsStream


def configure_socket(plain_socket: socket.socket) -> None:
    """Disable Nagle's algorithm and enable TCP keep-alive."""
    plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


async def accept_stream(plain_socket: socket.socket, tls: ssl.SSLContext | None) -> Stream:
    """Return a stream on an accepted socket; with a TLS context, perform the handshake first.

    Closes the socket if the handshake fails. Raises OSError.
    """
    try:
        if tls is None:
            return PlainStream(plain_socket)
        configure_socket(plain_socket)
        return await _complete_tls_handshake(plain_socket, tls, None)
    except BaseException:
        plain_socket.close()
        raise


async def connect_stream(
    address: HostPort, tls: ssl.SSLContext | None, server_name: str, timeout_s: float
) -> Stream:
    """Connect to an address, with TLS if there is a context. Raises OSError, including TimeoutError."""
    async with asyncio.timeout(timeout_s):
        plain_socket = await _open_socket(address)
        try:
            if tls is None:
                return PlainStream(plain_socket)
            configure_socket(plain_socket)
            return await _complete_tls_handshake(plain_socket, tls, server_name)
        except BaseException:
            plain_socket.close()
            raise


async def _open_socket(address: HostPort) -> socket.socket:
    loop = asyncio.get_running_loop()
    error: OSError = OSError(f"{address} has no address")
    for family, kind, protocol, _, socket_address in await loop.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM
    ):
        plain_socket = socket.socket(family, kind, protocol)
        plain_socket.setblocking(False)
        try:
            await loop.sock_connect(plain_socket, socket_address)
            return plain_socket
        except OSError as failure:
            error = failure
            plain_socket.close()
        except BaseException:
            plain_socket.close()
            raise
    raise error


async def _complete_tls_handshake(
    plain_socket: socket.socket, tls: ssl.SSLContext, server_name: str | None
) -> TlsStream:
    """Perform the TLS handshake as a client if there is a server name to verify, otherwise as a server."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_TLS_READ_BYTES // 2)
    protocol = asyncio.StreamReaderProtocol(reader)
    if server_name is None:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, plain_socket, ssl=tls, ssl_shutdown_timeout=_TLS_FINISH_S
        )
    else:
        transport, _ = await loop.create_connection(
            lambda: protocol,
            sock=plain_socket,
            ssl=tls,
            server_hostname=server_name,
            ssl_shutdown_timeout=_TLS_FINISH_S,
        )
    transport.set_write_buffer_limits(high=_TLS_WAITING_BYTES)
    # Every TLS transport has this method, but the type annotation of asyncio lacks it.
    transport.set_read_buffer_limits(high=_TLS_READ_BYTES)  # type: ignore[attr-defined]
    return TlsStream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


class UpstreamServer(NamedTuple):
    """A server to connect to. The server's certificate must be valid for `server_name`."""

    address: HostPort
    tls: OutgoingTls | None = None
    server_name: str = ""

    async def connect(self, timeout_s: float) -> Stream:
        context = self.tls.context() if self.tls is not None else None
        return await connect_stream(self.address, context, self.server_name or self.address.host, timeout_s)
