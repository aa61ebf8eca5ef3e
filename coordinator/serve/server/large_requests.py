"""Process large requests one at a time, in steps between which the event loop serves other clients.

A request with thousands of share-partitions takes tens of milliseconds to decode, split and submit. Each
step runs in its own iteration of the event loop. Only one large request is decoded at a time.

The operations of a decoded request stay in memory until the log has stored them, and take up to 100 times the
bytes of the frame. A large request is therefore decoded only while the estimated bytes of all decoded ones
are below `decoded_bytes_max`. The other large requests wait as frames that are not decoded. When the waiting
frames fill the request memory, reading pauses.

Requests of one connection keep their order: later requests wait until the large one is finished.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from coordinator.serve.runtime import OperationOrigin

# A frame of at least this size is a large request. A partition takes at least 5 bytes, a FindCoordinator
# key at least 1.
LARGE_FRAME_BYTES = 8 << 10
LARGE_FIND_BYTES = 2 << 10
# The compiled code takes about 2 ms for a write of this size, which has at most 2 600 partitions.
LARGE_WRITE_BYTES = 64 << 10

# The maximum bytes of an operation and its result as Python objects, and the minimum bytes of an element in a
# frame.
_OPERATION_BYTES = 600
_ELEMENT_BYTES_MIN = 5

Steps = Iterator[None]
Respond = Callable[[bytes], None]


class LargeRequestOrigin(OperationOrigin, Protocol):
    """The connection of a large request."""

    def handler_failed(self, failure: Exception) -> None:
        """Close the connection because of an exception."""


class _QueuedRequest(NamedTuple):
    origin: LargeRequestOrigin
    respond: Respond
    decoded_bytes: int
    begin: Callable[[Respond], Steps]


class _DecodedRequest:
    """The response callback of a decoded request; its bytes are released when its last operation is freed.

    Operations of a client that disconnected are dropped without a response.
    """

    __slots__ = ("_decoded_bytes", "_release", "_respond")

    def __init__(self, request: _QueuedRequest, release: Callable[[int], None]) -> None:
        self._respond = request.respond
        self._decoded_bytes = request.decoded_bytes
        self._release = release

    def __call__(self, response: bytes) -> None:
        self._respond(response)

    def __del__(self) -> None:
        self._release(self._decoded_bytes)


class LargeRequests:
    """The queue of large requests, the steps of the one in progress, and the bytes of all decoded ones."""

    def __init__(self, decoded_bytes_max: int, elements_max: int) -> None:
        self._decoded_bytes_max = decoded_bytes_max
        self._elements_max = elements_max
        self._decoded_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_QueuedRequest] = deque()
        self._current: LargeRequestOrigin | None = None
        self._steps: Steps = iter(())
        # The number of queued requests of each connection.
        self._requests_by_origin: dict[int, int] = {}

    def has_request_of(self, origin: OperationOrigin) -> bool:
        """Return whether this connection has a queued or running request."""
        return id(origin) in self._requests_by_origin

    def add(
        self,
        origin: LargeRequestOrigin,
        frame_bytes: int,
        respond: Respond,
        begin: Callable[[Respond], Steps],
    ) -> None:
        """Queue a request; `begin` is called when the request is next, with `respond`, and returns its steps.

        An exception in a step goes to `origin.handler_failed` and affects this request only.
        """
        self._requests_by_origin[id(origin)] = self._requests_by_origin.get(id(origin), 0) + 1
        operations = min(self._elements_max, frame_bytes // _ELEMENT_BYTES_MIN)
        decoded_bytes = 2 * frame_bytes + operations * _OPERATION_BYTES
        self._waiting.append(_QueuedRequest(origin, respond, decoded_bytes, begin))
        self._start_next_request()

    def _start_next_request(self) -> None:
        """Begin the next request, unless one is in progress or decoded requests take too many bytes."""
        if self._current is not None or not self._waiting:
            return
        is_full = self._decoded_bytes + self._waiting[0].decoded_bytes > self._decoded_bytes_max
        if is_full and self._decoded_bytes and not self._waiting[0].origin.disconnected:
            return
        request = self._waiting.popleft()
        self._current = request.origin
        self._decoded_bytes += request.decoded_bytes
        self._loop.call_soon(self._run_step, request.begin, _DecodedRequest(request, self._release_memory))

    def _release_memory(self, decoded_bytes: int) -> None:
        self._decoded_bytes -= decoded_bytes
        if self._waiting and not self._loop.is_closed():
            self._start_next_request()

    def _run_step(
        self, begin: Callable[[Respond], Steps] | None = None, respond: Respond | None = None
    ) -> None:
        origin = self._current
        assert origin is not None, "a step belongs to a request"
        try:
            if begin is not None and respond is not None and not origin.disconnected:
                self._steps = begin(respond)
            if not origin.disconnected:
                next(self._steps)
                self._loop.call_soon(self._run_step)
                return
        except StopIteration:
            pass
        except Exception as failure:
            origin.handler_failed(failure)
        self._end_request(origin)

    def _end_request(self, origin: LargeRequestOrigin) -> None:
        self._current = None
        self._steps = iter(())
        left = self._requests_by_origin.pop(id(origin)) - 1
        if left:
            self._requests_by_origin[id(origin)] = left
        self._start_next_request()
