"""The bounds of the wire listener, each with a name."""

from typing import NamedTuple


class ServerLimits(NamedTuple):
    """How much clients may hold of this process. Times in seconds of loop time."""

    connections_max: int = 2_000
    frame_bytes_max: int = 16 * 1024 * 1024
    # The largest frame of a client that is not authenticated or not authorized. Its longest one is a token.
    login_bytes_max: int = 64 * 1024
    requests_in_flight_max: int = 64
    # Requests and parts of requests of all connections; above it nothing more is read.
    queued_bytes_max: int = 256 * 1024 * 1024
    connection_idle_s: float = 600.0
    # How long a frame may take from its first byte to its last.
    frame_s: float = 30.0
    # How long a client may leave its answers unread when there is no more room for them; what it asked in
    # advance counts as queued meanwhile.
    reading_s: float = 30.0
    # How long a connection that was closed may take to send what was written to it.
    close_s: float = 10.0
    sweep_s: float = 1.0
