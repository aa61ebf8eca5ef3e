"""Run coroutines as tests, wait for conditions, and replace asyncio.sleep by a recorder."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import ParamSpec

from tests.unit import clock_skipping

FunctionT = ParamSpec("FunctionT")

Test = Callable[FunctionT, Coroutine[None, None, None]]


def make_async_test(
    run_loop: Callable[[Coroutine[None, None, None]], None],
) -> Callable[[Test[FunctionT]], Callable[FunctionT, None]]:
    """Return a decorator that makes a test of a coroutine function; `run_loop` runs it on an event loop."""

    def async_test(test: Test[FunctionT]) -> Callable[FunctionT, None]:
        @wraps(test)
        def run(*args: FunctionT.args, **kwargs: FunctionT.kwargs) -> None:
            run_loop(test(*args, **kwargs))

        return run

    return async_test


# The clock of this event loop can be skipped.
async_test = make_async_test(clock_skipping.run)


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, at most 60 s."""
    steps = 0
    async with asyncio.timeout(60):
        while not condition():
            steps += 1
            # After 1000 steps, let time pass too, because some conditions need it (the end of a lease).
            await asyncio.sleep(0 if steps < 1_000 else 0.001)


class FakeSleep(list[float]):
    """A replacement of asyncio.sleep that returns at once and records the requested seconds."""

    async def __call__(self, wait_s: float) -> None:
        self.append(wait_s)
