"""Wait for the first message of a TLS handshake, before anything is allocated for the handshake."""

import asyncio
import socket

# A TLS record begins with its type, a version and the number of the bytes that follow.
_RECORD_HEADER_BYTES = 5
_HANDSHAKE_RECORD = 22
# Maximum number of bytes of a record.
_RECORD_BYTES_MAX = 16 << 10


async def wait_for_client_hello(accepted: socket.socket) -> None:
    """Wait until the first TLS record is complete in the socket, without taking it.

    Return at once if the client closes the connection or sends something else.
    """
    await _wait_until_readable(accepted, _RECORD_HEADER_BYTES)
    header = accepted.recv(_RECORD_HEADER_BYTES, socket.MSG_PEEK)
    if len(header) == _RECORD_HEADER_BYTES and header[0] == _HANDSHAKE_RECORD:
        record_bytes = min(int.from_bytes(header[3:], "big"), _RECORD_BYTES_MAX)
        await _wait_until_readable(accepted, _RECORD_HEADER_BYTES + record_bytes)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


async def _wait_until_readable(accepted: socket.socket, count: int) -> None:
    """Wait until a socket has `count` bytes, or no more of them will come."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def note() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(accepted, note)
    try:
        await readable
    finally:
        loop.remove_reader(accepted)
