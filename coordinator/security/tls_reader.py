"""Receive the data of TLS connections through one small buffer, which all connections share.

Without this buffer, uvloop decrypts up to 256 KiB of a connection at a time, and allocates 256 KiB for each
TLS record. 1 000 clients that sent many requests at once took 400 MB.
"""

import asyncio

# The bytes that are decrypted before other connections are served.
_BUFFER_BYTES = 16 << 10
# The encrypted bytes after which the transport stops reading the socket, until they are decrypted.
_ENCRYPTED_BYTES_MAX = 16 << 10
# The buffer is empty except between `get_buffer` and `buffer_updated`, between which no other code runs.
_shared = memoryview(bytearray(_BUFFER_BYTES))


class TlsReader(asyncio.BufferedProtocol):
    """Passes the callbacks of a TLS transport to the protocol of a connection."""

    def __init__(self, protocol: asyncio.Protocol, transport: asyncio.Transport) -> None:
        """Read from a transport whose `connection_made` the caller passes to the protocol."""
        self._protocol = protocol
        limit_buffers = getattr(transport, "set_read_buffer_limits", None)
        if limit_buffers is not None:
            limit_buffers(_ENCRYPTED_BYTES_MAX)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _shared

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.data_received(bytes(_shared[:nbytes]))

    def eof_received(self) -> bool | None:
        """Pass the callback to the protocol: the client sends no more bytes."""
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the callback to the protocol: the connection is closed."""
        protocol, self._protocol = self._protocol, asyncio.Protocol()
        # uvloop's transport keeps this object, so a reference to the connection would be a cycle.
        protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass the callback to the protocol: the client does not read."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass the callback to the protocol: the client reads again."""
        self._protocol.resume_writing()
