"""Measure for how much CPU time a callback blocks the event loop; other processes do not affect CPU time."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


class LongestCallback:
    """The CPU time of the longest callback so far."""

    def __init__(self) -> None:
        self.seconds = 0.0


@contextmanager
def measure_longest_callback() -> Iterator[LongestCallback]:
    """Measure the callbacks of all event loops of this thread until the end of the block.

    The garbage collector is disabled, because it would scan all objects of the test process.
    """
    longest = LongestCallback()
    run = asyncio.Handle._run

    def time_callback(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        try:
            run(handle)
        finally:
            longest.seconds = max(longest.seconds, time.thread_time() - began_s)

    asyncio.Handle._run = time_callback  # type: ignore[method-assign]
    gc.disable()
    try:
        yield longest
    finally:
        gc.enable()
        asyncio.Handle._run = run  # type: ignore[method-assign]
