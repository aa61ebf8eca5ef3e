"""Limit the bytes that the system receives for a client before the event loop reads them.

An event loop may read all of them at a time, so the size limits the memory of a connection and the duration
of a read. A size that is set disables the automatic size of Linux, which grows to some megabytes.
"""

import socket
from typing import Any

# The system doubles a size for its own data.
UNTRUSTED_BYTES = 16 << 10
# Kafka's default (socket.receive.buffer.bytes) is 100 KiB.
AUTHORIZED_BYTES = 256 << 10


def limit_receive_buffer(connected: Any, *, is_authorized: bool) -> None:
    """Set the size of a socket's receive buffer; `connected` is None if the transport has no socket."""
    if connected is not None:
        size = AUTHORIZED_BYTES if is_authorized else UNTRUSTED_BYTES
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
