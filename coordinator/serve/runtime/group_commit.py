"""Decide when a group commit starts, for a log whose commits take time.

A broker has one request in flight per connection, and sends the next one after the response. If a commit
started with the operations that are queued when the last commit ends, it would miss the next requests of the
clients that just got their responses. Each request would then wait for two syncs: its own and the one
before. Therefore, one commit is in flight at a time. The next commit starts when as many operations have
arrived as the last commit completed. If no operation arrives for half the duration of the last commit, or for
`LINGER_S`, the next commit starts without the missing operations.

The rule depends on the last commit only: a single client never waits, and earlier load has no effect.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import uvloop

from coordinator import fastpath

# More than the time from a response to the next request of the same client in one data centre.
LINGER_S = 0.00025
LINGER_SHARE = 0.5


class GroupCommitLinger:
    """Counts the operations that must arrive before the next commit starts.

    `missing` is the number of operations that have not arrived yet. `on_wait_ended` is called when a wait
    ends.
    """

    def __init__(self, on_wait_ended: Callable[[], None]) -> None:
        self.missing = 0
        self._on_wait_ended = on_wait_ended
        self._loop = asyncio.get_running_loop()
        self._timer = LingerTimer(self._on_timer)
        self._in_commit = self._missing_at_timer = 0
        self._began_s = self._finished_s = self._linger_s = 0.0
        self._is_waiting = False

    def commit_started(self, operations: int) -> None:
        """Record that a commit of this many operations has started."""
        self._in_commit += operations
        self._began_s = self._loop.time()

    def commit_finished(self) -> None:
        """Record that the commit in flight has ended and the responses of its operations were sent."""
        self._finished_s = self._loop.time()
        self._linger_s = min(LINGER_S, (self._finished_s - self._began_s) * LINGER_SHARE)
        self.missing, self._in_commit = self._in_commit, 0

    def must_wait(self) -> bool:
        """Return whether a queued operation must wait; if so, `on_wait_ended` is called later."""
        if self.missing and not self._is_waiting:
            if self._loop.time() - self._finished_s < self._linger_s:
                self._start_timer()
            else:
                self.missing = 0
        return self.missing > 0

    def operation_arrived(self) -> None:
        """Count an operation that has arrived; call this method only if `missing` is above 0."""
        self.missing -= 1
        if not self.missing and self._is_waiting:
            self._timer.stop()
            self._end_wait()

    def _start_timer(self) -> None:
        self._is_waiting = True
        self._missing_at_timer = self.missing
        self._timer.start(self._linger_s)

    def _on_timer(self) -> None:
        if self.missing < self._missing_at_timer:
            # An arrival restarts the time limit.
            self._start_timer()
        else:
            self._end_wait()

    def _end_wait(self) -> None:
        self.missing = 0
        self._is_waiting = False
        self._on_wait_ended()


class LingerTimer:
    """Calls a function once after less than a millisecond.

    The timers of uvloop have a resolution of a millisecond, so a timer of the operating system is used if
    possible.
    """

    def __init__(self, fired: Callable[[], None]) -> None:
        self._fired = fired
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._system_timer: Any = None
        if fastpath.compiled is not None and isinstance(self._loop, uvloop.Loop):
            try:
                self._system_timer = fastpath.compiled.SystemTimer()
            except OSError:
                return
            self._loop.add_reader(self._system_timer.file, self._on_readable)

    def start(self, seconds: float) -> None:
        """Call the function after this time; an earlier `start` has no effect any more."""
        if self._system_timer is not None:
            self._system_timer.set(seconds)
        else:
            self.stop()
            self._handle = self._loop.call_later(seconds, self._fired)

    def stop(self) -> None:
        """Cancel the pending call of the function."""
        if self._system_timer is not None:
            self._system_timer.set(0.0)
        elif self._handle is not None:
            self._handle.cancel()

    def _on_readable(self) -> None:
        # The timer is no longer readable if it was stopped in this iteration of the event loop.
        if self._system_timer.take():
            self._fired()
