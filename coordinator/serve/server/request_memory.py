# cython: annotation_typing=False
"""Limit the bytes of unanswered requests of all clients of a listener (Kafka: queued.max.request.bytes).

If a C compiler is available, this source is compiled; see `coordinator.compiled_sources`.
"""

import asyncio
from typing import Any

# Reading resumes below this share of the limit. The share is below 1, so that reading does not pause again at
# once.
_RESUME_SHARE = 0.75


class RequestMemory:
    """Counts the bytes of complete and partial requests. While `is_full` is true, no connection reads."""

    __slots__ = ("_loop", "bytes_max", "draining", "held_bytes", "waiting")

    def __init__(self, bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.bytes_max = bytes_max
        self.held_bytes = 0
        # Connections that wait for memory.
        self.waiting: set[Any] = set()
        # True while a shutdown waits for the responses to accepted requests.
        self.draining = False

    def adjust_held_bytes(self, frame_bytes: int) -> None:
        """Count held bytes (negative: released). If enough are free, resume the waiting connections."""
        self.held_bytes += frame_bytes
        if self.waiting and self.held_bytes < _RESUME_SHARE * self.bytes_max and not self._loop.is_closed():
            waiting, self.waiting = self.waiting, set()
            for waiter in waiting:
                # Garbage collection may free a response slot, and so release memory, in any thread.
                self._loop.call_soon_threadsafe(waiter.on_memory_available)

    @property
    def is_full(self) -> bool:
        """True if the limit is reached."""
        return self.held_bytes >= self.bytes_max
