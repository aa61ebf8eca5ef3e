"""Tests that are coroutines, and a wait that is written down instead of waited for."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import ParamSpec

from tests.unit import skipping

Given = ParamSpec("Given")


def looped(test: Callable[Given, Coroutine[None, None, None]]) -> Callable[Given, None]:
    """Make a test of a coroutine function: it runs on a loop of its own, whose time can be skipped."""

    @wraps(test)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        skipping.run(test(*args, **kwargs))

    return run


class Waits(list[float]):
    """Stands in for asyncio.sleep: takes no time and remembers what was asked, in seconds."""

    async def __call__(self, wait_s: float) -> None:
        self.append(wait_s)
