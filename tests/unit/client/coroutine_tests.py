"""Tests that are coroutines, and a wait that is written down instead of waited for."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import ParamSpec

from tests.unit import clock_skipping

FunctionT = ParamSpec("FunctionT")


def async_test(test: Callable[FunctionT, Coroutine[None, None, None]]) -> Callable[FunctionT, None]:
    """Make a test of a coroutine function: it runs on a loop of its own, whose time can be skipped."""

    @wraps(test)
    def run(*args: FunctionT.args, **kwargs: FunctionT.kwargs) -> None:
        clock_skipping.run(test(*args, **kwargs))

    return run


class FakeSleep(list[float]):
    """Stands in for asyncio.sleep: takes no time and remembers what was asked, in seconds."""

    async def __call__(self, wait_s: float) -> None:
        self.append(wait_s)
