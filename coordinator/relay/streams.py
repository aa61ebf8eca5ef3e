"""The ends of connections: to a peer, the broker or the coordinator, in clear or with TLS; how to get one.

An end in clear is a bare socket, so that two of them can be joined below Python's streams (see `carrying`).
An end with TLS is a stream of asyncio.
"""

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Any, Protocol

from coordinator.config import HostPort

# What is read at a time. In clear more would be a new mapping of memory for each read.
_CHUNK_BYTES = 64 << 10
_TLS_CHUNK_BYTES = 256 << 10
# What waits to go out where there is TLS: so much that nobody stands still while somebody else works.
_TLS_WAITING_BYTES = 1 << 20
# What is read before somebody asks for it, encrypted and again in clear: strangers send as much as they can.
_TLS_READ_BYTES = 64 << 10
# With TLS, how long what was sent may take to go out, and the other side to agree that this was all.
_TLS_FINISH_S = 2.0


class Stream(Protocol):
    """One end of a connection, used by one reader and one writer at a time. Raises OSError when it broke."""

    async def receive(self, bytes_max: int = _CHUNK_BYTES) -> bytes:
        """Return what came, b"" when the other side has said its last word."""
        ...

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`; return when the system, or a bounded buffer, has it."""
        ...

    async def finish(self) -> None:
        """Close; what was sent goes out first. Nobody may be receiving or sending any more."""
        ...

    def close(self) -> None:
        """Close at once; harmless if it is closed."""
        ...


class PlainStream:
    """An end in clear."""

    def __init__(self, plain_socket: socket.socket) -> None:
        """Take over a connected socket that does not block."""
        self.socket = plain_socket
        self._loop = asyncio.get_running_loop()
        configure_socket(plain_socket)

    async def receive(self, bytes_max: int = _CHUNK_BYTES) -> bytes:
        return await self._loop.sock_recv(self.socket, min(bytes_max, _CHUNK_BYTES))

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def finish(self) -> None:
        # What was sent is the system's to bring.
        self.socket.close()

    def close(self) -> None:
        self.socket.close()


class TlsStream:
    """An end with TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def certificate(self) -> dict[str, Any] | None:
        """What the other side's certificate says, None if it showed none."""
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


def configure_socket(plain_socket: socket.socket) -> None:
    """Send what there is at once, and notice a machine that vanished without a word."""
    plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


async def accept(plain_socket: socket.socket, tls: ssl.SSLContext | None) -> PlainStream | TlsStream:
    """Make an end of an accepted socket, after the TLS handshake if there is one.

    The socket is closed if that fails. Raises OSError.
    """
    try:
        if tls is None:
            return PlainStream(plain_socket)
        configure_socket(plain_socket)
        return await _complete_tls_handshake(plain_socket, tls, None)
    except BaseException:
        plain_socket.close()
        raise


async def connect(
    address: HostPort, tls: ssl.SSLContext | None, server_name: str, timeout_s: float
) -> PlainStream | TlsStream:
    """Connect, with TLS if there is a context. Raises OSError, of which TimeoutError is one."""
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
    for family, kind, protocol, _, place in await loop.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM
    ):
        plain_socket = socket.socket(family, kind, protocol)
        plain_socket.setblocking(False)
        try:
            await loop.sock_connect(plain_socket, place)
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
    """Shake hands as a server, or as a client that wants a server of that name."""
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
    # All transports with TLS have this, the type of all transports does not.
    transport.set_read_buffer_limits(high=_TLS_READ_BYTES)  # type: ignore[attr-defined]
    return TlsStream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
