"""The limits of the Kafka listener."""

from typing import NamedTuple


class ServerLimits(NamedTuple):
    """Limits of the resources that clients may use. Times are in seconds of loop time."""

    connections_max: int = 2_000
    frame_bytes_max: int = 16 * 1024 * 1024
    # The largest frame of an unauthorized client; frames with SASL tokens are the longest ones.
    login_bytes_max: int = 64 * 1024
    requests_in_flight_max: int = 64
    # Limit of the bytes of complete and partial requests of all connections; above it, reading pauses.
    queued_bytes_max: int = 256 * 1024 * 1024
    connection_idle_s: float = 600.0
    # Maximum time from the first to the last byte of a frame.
    frame_s: float = 30.0
    # Maximum time that a client may leave responses unread while its buffers are full.
    reading_s: float = 30.0
    # Maximum time for a closed connection to send its remaining bytes.
    close_s: float = 10.0
    sweep_s: float = 1.0
