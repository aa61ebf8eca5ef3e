"""Check whether the ClientHello of a TLS handshake has arrived, before TLS objects are allocated."""

import asyncio
import socket

# A TLS record begins with its type, a version and the number of the bytes that follow.
_RECORD_HEADER_BYTES = 5
_HANDSHAKE_RECORD = 22
# Maximum number of bytes of a record.
_RECORD_BYTES_MAX = 16 << 10


def expect_client_hello(accepted: socket.socket) -> None:
    """Make a socket readable only when the header of the first TLS record has arrived."""
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _RECORD_HEADER_BYTES)


def has_client_hello(accepted: socket.socket) -> bool:
    """Return whether the first TLS record is complete in a readable socket, without consuming it.

    If the record is incomplete, the socket becomes readable again when the record is complete. Return True if
    the client closed the connection or sent something other than a TLS handshake record.
    """
    header = accepted.recv(_RECORD_HEADER_BYTES, socket.MSG_PEEK)
    if len(header) == _RECORD_HEADER_BYTES and header[0] == _HANDSHAKE_RECORD:
        record_bytes = _RECORD_HEADER_BYTES + min(int.from_bytes(header[3:], "big"), _RECORD_BYTES_MAX)
        is_complete = len(accepted.recv(record_bytes, socket.MSG_PEEK)) == record_bytes
        # If a socket is readable with fewer bytes than SO_RCVLOWAT, the client has closed the connection.
        was_expected = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) >= record_bytes
        if not is_complete and not was_expected:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, record_bytes)
            return False
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return True


async def wait_for_client_hello(accepted: socket.socket) -> None:
    """Wait until `has_client_hello` returns True."""
    loop = asyncio.get_running_loop()
    complete: asyncio.Future[None] = loop.create_future()

    def check_received() -> None:
        if not complete.done() and has_client_hello(accepted):
            complete.set_result(None)

    expect_client_hello(accepted)
    loop.add_reader(accepted, check_received)
    try:
        await complete
    finally:
        loop.remove_reader(accepted)
