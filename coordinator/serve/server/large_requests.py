"""Process large requests one at a time, in steps between which the event loop serves other clients.

A request with thousands of share-partitions takes tens of milliseconds to decode, split and submit. Each
step runs in its own iteration of the event loop. Only one large request is decoded at a time, so the memory
for decoded requests does not grow with the number of clients.

Requests of one connection keep their order: later requests wait until the large one is finished.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from coordinator.serve.runtime import Origin

# A frame of at least this size is a large request. A partition takes at least 5 bytes, a FindCoordinator
# key at least 1.
LARGE_FRAME_BYTES = 8 << 10
LARGE_FIND_BYTES = 2 << 10
# The compiled code takes about 2 ms for a write of this size, which has at most 2 600 partitions.
LARGE_WRITE_BYTES = 64 << 10

Steps = Iterator[None]


class LargeOrigin(Origin, Protocol):
    """The connection of a large request."""

    def handler_failed(self, failure: Exception) -> None:
        """Close the connection because of an exception."""
        ...


class _Request(NamedTuple):
    origin: LargeOrigin
    begin: Callable[[], Steps]


class LargeRequests:
    """The queue of large requests, and the steps of the one in progress."""

    def __init__(self) -> None:
        self._waiting: deque[_Request] = deque()
        self._current: _Request | None = None
        self._steps: Steps = iter(())
        # The number of queued requests of each connection.
        self._of_origin: dict[int, int] = {}

    def has(self, origin: Origin) -> bool:
        """Return whether this connection has a queued or running request."""
        return id(origin) in self._of_origin

    def add(self, origin: LargeOrigin, begin: Callable[[], Steps]) -> None:
        """Queue a request; `begin` is called when the request is next and returns its steps.

        An exception in a step goes to `origin.handler_failed` and affects this request only.
        """
        self._of_origin[id(origin)] = self._of_origin.get(id(origin), 0) + 1
        self._waiting.append(_Request(origin, begin))
        if self._current is None:
            self._begin_next()

    def _begin_next(self) -> None:
        self._current = self._waiting.popleft()
        self._steps = iter(())
        asyncio.get_running_loop().call_soon(self._step, self._current.begin)

    def _step(self, begin: Callable[[], Steps] | None = None) -> None:
        current = self._current
        assert current is not None, "a step belongs to a request"
        try:
            if begin is not None and not current.origin.disconnected:
                self._steps = begin()
            if not current.origin.disconnected:
                next(self._steps)
                asyncio.get_running_loop().call_soon(self._step)
                return
        except StopIteration:
            pass
        except Exception as failure:
            current.origin.handler_failed(failure)
        self._end(current)

    def _end(self, request: _Request) -> None:
        self._current = None
        self._steps = iter(())
        left = self._of_origin.pop(id(request.origin)) - 1
        if left:
            self._of_origin[id(request.origin)] = left
        if self._waiting:
            self._begin_next()
