"""Limits of the relay: connections, memory and timeouts."""

from typing import NamedTuple


class RelayLimits(NamedTuple):
    """Limits of all connections together and of each one. Times are in seconds."""

    connections_max: int = 4_000
    # From accept to the choice of the destination.
    handshake_s: float = 30.0
    # Kafka's sasl.server.max.receive.size, for tokens and for responses of the broker.
    handshake_frame_bytes_max: int = 512 << 10
    # Larger login requests (tokens) share large_frames_bytes_max.
    small_frame_bytes_max: int = 8 << 10
    large_frames_bytes_max: int = 32 << 20
    idle_s: float = 1_200.0
    # How long one direction stays open after the other is closed.
    half_closed_s: float = 30.0
    connect_s: float = 1.0
    # Between two connection attempts.
    retry_s: float = 1.0
    broker_attempts: int = 4
    coordinator_wait_s: float = 25.0
    stop_s: float = 5.0
    sweep_s: float = 5.0
