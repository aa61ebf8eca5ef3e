"""The event loop: uvloop with a clock of higher resolution than milliseconds."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from coordinator.process.clock import monotonic_seconds

_Result = TypeVar("_Result")


class _PreciseClockLoop(uvloop.Loop):
    """A uvloop whose `time` is not rounded to whole milliseconds.

    Latencies are differences of `time`, and most are below a millisecond. Timers are uvloop's and are
    rounded: a timer may fire up to 1.5 ms before it is due by this clock.
    """

    time = staticmethod(monotonic_seconds)


async def run_until_set(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Run a coroutine to its end and return True; if the event is set first, cancel it and return False."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        await working
        return True
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def run(main: Coroutine[None, None, _Result]) -> _Result:
    return uvloop.run(main, loop_factory=_PreciseClockLoop)
