"""What the clients of a listener have together: room for bytes of requests that were not answered yet."""

import asyncio
from typing import Protocol

from coordinator.fastpath.fields import RequestMemoryFields

# Reading goes on when clients hold this part of what they may; below 1, so that it does not flutter.
_RESUME_SHARE = 0.75


class MemoryWaiter(Protocol):
    """Who waits for room."""

    def memory_available(self) -> None:
        """Go on: clients hold less than they may."""
        ...


class RequestMemory(RequestMemoryFields):
    """Counts what clients hold, whole requests or parts. When it is `is_full` nothing more should be read."""

    __slots__ = ()

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.waiting: set[MemoryWaiter] = set()
        # Somebody waits until all that was accepted is answered.
        self.draining = False

    def hold(self, frame_bytes: int) -> None:
        """Count bytes in (or out, when negative); wake who waits."""
        self.held_bytes += frame_bytes
        if self.waiting and self.held_bytes < _RESUME_SHARE * self.bytes_max:
            waiting, self.waiting = self.waiting, set()
            loop = asyncio.get_running_loop()
            for waiter in waiting:
                loop.call_soon(waiter.memory_available)

    @property
    def is_full(self) -> bool:
        """True when clients hold as much as they may together."""
        return self.held_bytes >= self.bytes_max
