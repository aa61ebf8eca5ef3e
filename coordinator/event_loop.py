"""The event loop: uvloop's, with a clock that tells more than whole milliseconds."""

from collections.abc import Coroutine
from typing import TypeVar

import uvloop

from coordinator.clock import monotonic_seconds

_Result = TypeVar("_Result")


class _PreciseLoop(uvloop.Loop):
    """uvloop's own counts the same seconds, but whole milliseconds only.

    Latencies are differences of `time`, and most are below a millisecond.  Timers are uvloop's, and round:
    one may be called a millisecond and a half before it is due by this clock.
    """

    time = staticmethod(monotonic_seconds)


def run(main: Coroutine[None, None, _Result]) -> _Result:
    """Run a program to its end, and return what it returns."""
    return uvloop.run(main, loop_factory=_PreciseLoop)
