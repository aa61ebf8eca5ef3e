"""Bound the memory of login requests, which are buffered whole before the peer is authenticated.

Small requests are not counted, so that password logins succeed while large tokens use up the memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.serve.relay.frame_reader import RefusedConnection, RequestHead
from coordinator.serve.relay.limits import RelayLimits
from coordinator.serve.relay.sasl import SASL_AUTHENTICATE
from protocol.errors import FrameError


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
        only_token = head.api_key == SASL_AUTHENTICATE
        most = self._limits.handshake_frame_bytes_max if only_token else small_max
        if head.size > most:
            raise FrameError(f"a request of {head.size} bytes before the login, where {most} are allowed")
        count = head.size if head.size > small_max else 0
        if count > self._bytes_left:
            raise RefusedConnection("no_room", "the memory for unfinished logins is used up")
        self._bytes_left -= count
        try:
            yield
        finally:
            self._bytes_left += count
