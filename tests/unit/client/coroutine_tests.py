"""Run coroutines as tests, and replace asyncio.sleep by a recorder."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import ParamSpec

from tests.unit import clock_skipping

FunctionT = ParamSpec("FunctionT")


def async_test(test: Callable[FunctionT, Coroutine[None, None, None]]) -> Callable[FunctionT, None]:
    """Wrap a coroutine function as a test that runs it on a new event loop whose clock can be skipped."""

    @wraps(test)
    def run(*args: FunctionT.args, **kwargs: FunctionT.kwargs) -> None:
        clock_skipping.run(test(*args, **kwargs))

    return run


class FakeSleep(list[float]):
    """A replacement of asyncio.sleep that returns at once and records the requested seconds."""

    async def __call__(self, wait_s: float) -> None:
        self.append(wait_s)
