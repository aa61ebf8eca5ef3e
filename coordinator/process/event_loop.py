"""The event loop: uvloop with a clock of higher resolution than milliseconds."""

from collections.abc import Coroutine
from typing import TypeVar

import uvloop

from coordinator.process.clock import monotonic_seconds

_Result = TypeVar("_Result")


class _PreciseClockLoop(uvloop.Loop):
    """A uvloop whose `time` is not rounded to whole milliseconds.

    Latencies are differences of `time`, and most are below a millisecond. Timers are uvloop's and are
    rounded: a timer may fire up to 1.5 ms before it is due by this clock.
    """

    time = staticmethod(monotonic_seconds)


def run(main: Coroutine[None, None, _Result]) -> _Result:
    """Run a coroutine to its end on this event loop, and return its result."""
    return uvloop.run(main, loop_factory=_PreciseClockLoop)
