"""The event loop: uvloop's, with a clock that tells more than whole milliseconds."""

from collections.abc import Coroutine
from typing import TypeVar

import uvloop

from coordinator.clock import monotonic_seconds

_Result = TypeVar("_Result")


class _PreciseLoop(uvloop.Loop):
    """uvloop's own counts the same seconds, but is read once for each turn, in whole milliseconds.

    Latencies are differences of `time`, and most are below a millisecond.  A timer may be early by the length
    of a turn: who looks at the time when it is called has to be ready to find that it is not yet due.
    """

    time = staticmethod(monotonic_seconds)


def run(main: Coroutine[None, None, _Result]) -> _Result:
    """Run a program to its end, and return what it returns."""
    return uvloop.run(main, loop_factory=_PreciseLoop)
