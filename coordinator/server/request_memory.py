"""Limit the bytes of unanswered requests of all clients of a listener (Kafka: queued.max.request.bytes)."""

import asyncio
from typing import Protocol

from coordinator.fastpath.fields import RequestMemoryFields

# Reading resumes when this share of the limit is in use; below 1, so that it does not pause again at once.
_RESUME_SHARE = 0.75


class MemoryWaiter(Protocol):
    """A connection that waits for request memory."""

    def memory_available(self) -> None:
        """Resume: memory is available again."""
        ...


class RequestMemory(RequestMemoryFields):
    """Counts the bytes of requests, complete or partial. While it `is_full`, no connection reads."""

    __slots__ = ()

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.waiting: set[MemoryWaiter] = set()
        # True while a shutdown waits for the accepted requests to be answered.
        self.draining = False

    def hold(self, frame_bytes: int) -> None:
        """Add bytes (or release them, if negative) and wake the waiting connections."""
        self.held_bytes += frame_bytes
        if self.waiting and self.held_bytes < _RESUME_SHARE * self.bytes_max:
            waiting, self.waiting = self.waiting, set()
            loop = asyncio.get_running_loop()
            for waiter in waiting:
                loop.call_soon(waiter.memory_available)

    @property
    def is_full(self) -> bool:
        """True if the limit is reached."""
        return self.held_bytes >= self.bytes_max
