"""The bounds of the relay."""

from typing import NamedTuple


class RelayLimits(NamedTuple):
    """Bounds of all connections and of each. Times in seconds."""

    connections_max: int = 4_000
    # From the first byte to the decision where the connection goes.
    handshake_s: float = 30.0
    # Kafka's sasl.server.max.receive.size: answers of the broker, and tokens.
    handshake_frame_bytes_max: int = 512 << 10
    # Requests before the login are small, all but some tokens, which together are no larger than this.
    small_frame_bytes_max: int = 8 << 10
    large_frames_bytes_max: int = 32 << 20
    idle_s: float = 1_200.0
    # How long one direction goes on when the other is over.
    half_closed_s: float = 30.0
    connect_s: float = 1.0
    # After an attempt that failed, until the next one.
    retry_s: float = 1.0
    broker_attempts: int = 4
    coordinator_wait_s: float = 25.0
    stop_s: float = 5.0
    sweep_s: float = 5.0
