"""The memory for requests of logins: each is held as a whole, before it is known whose it is.

Small ones are not counted, so that logins with passwords go on when others fill the room.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.relay.frame_reader import RefusedConnection, RequestHead
from coordinator.relay.limits import RelayLimits
from coordinator.relay.sasl import SASL_AUTHENTICATE
from protocol.errors import FrameError


class RequestMemory:
    """The room that all connections share."""

    def __init__(self, limits: RelayLimits) -> None:
        self._limits = limits
        self._bytes_left = limits.large_frames_bytes_max

    @contextmanager
    def reserve(self, head: RequestHead) -> Iterator[None]:
        """Have room for a request meanwhile. Raises FrameError if it is too large, Refused without room."""
        small_max = self._limits.small_frame_bytes_max
        only_token = head.api_key == SASL_AUTHENTICATE
        most = self._limits.handshake_frame_bytes_max if only_token else small_max
        if head.size > most:
            raise FrameError(f"a request of {head.size} bytes before the login, where {most} are allowed")
        count = head.size if head.size > small_max else 0
        if count > self._bytes_left:
            raise RefusedConnection(
                "no_room", "logins that are not complete hold as much as they may together"
            )
        self._bytes_left -= count
        try:
            yield
        finally:
            self._bytes_left += count
