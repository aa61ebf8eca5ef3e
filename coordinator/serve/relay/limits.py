"""Limits of the relay: connections, memory and timeouts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from coordinator.serve.relay.frame_reader import RefusedConnection, RequestHead
from protocol.errors import FrameError
from protocol.messages import sasl_authenticate


class RelayLimits(NamedTuple):
    """Limits of each connection, and of all connections together. Times are in seconds."""

    connections_max: int = 4_000
    # Maximum time from the accept to the choice of the destination.
    handshake_s: float = 30.0
    # Kafka's sasl.server.max.receive.size, for tokens and for responses of the broker.
    handshake_frame_bytes_max: int = 512 << 10
    # Larger login requests (tokens) share `large_frames_bytes_max`.
    small_frame_bytes_max: int = 8 << 10
    large_frames_bytes_max: int = 32 << 20
    idle_s: float = 1_200.0
    # How long one direction stays open after the other is closed.
    half_closed_s: float = 30.0
    connect_s: float = 1.0
    # Pause between two connection attempts.
    retry_s: float = 1.0
    broker_attempts: int = 4
    coordinator_wait_s: float = 25.0
    stop_s: float = 5.0
    sweep_s: float = 5.0


class RequestMemory:
    """The memory for large login requests, shared by all connections."""

    def __init__(self, limits: RelayLimits) -> None:
        self._limits = limits
        self._bytes_left = limits.large_frames_bytes_max

    @contextmanager
    def reserve_capacity(self, head: RequestHead) -> Iterator[None]:
        """Reserve memory for a request.

        Raises FrameError if the request is too large, RefusedConnection if no memory is left.
        """
        small_max = self._limits.small_frame_bytes_max
        is_token = head.api_key == sasl_authenticate.API_KEY
        size_max = self._limits.handshake_frame_bytes_max if is_token else small_max
        if head.size > size_max:
            raise FrameError(f"a request before the login has {head.size} bytes, but {size_max} are allowed")
        count = head.size if head.size > small_max else 0
        if count > self._bytes_left:
            raise RefusedConnection("no_room", "the memory for unfinished logins is used up")
        self._bytes_left -= count
        try:
            yield
        finally:
            self._bytes_left += count
