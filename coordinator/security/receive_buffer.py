"""Limit the bytes that the system receives for a client before the event loop reads them.

An event loop may read all received bytes at a time, so the buffer size limits the memory of a connection and
the duration of a read. An explicit size disables the automatic sizing of Linux, which may reach some
megabytes.
"""

import socket
from typing import Any

# Linux doubles the requested size, to have space for its own data.
UNTRUSTED_BYTES = 16 << 10
# Kafka's default (socket.receive.buffer.bytes) is 100 KiB.
AUTHORIZED_BYTES = 256 << 10


def limit_receive_buffer(connected: Any, *, is_authorized: bool) -> None:
    """Set the size of a socket's receive buffer; `connected` is None if the transport has no socket."""
    if connected is not None:
        size = AUTHORIZED_BYTES if is_authorized else UNTRUSTED_BYTES
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
