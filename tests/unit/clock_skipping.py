"""An event loop with real sockets on which a test lets time go by, instead of waiting for it to pass."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class _SkippingLoop(asyncio.SelectorEventLoop):
    _skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self._skipped_s

    def skip(self, seconds: float) -> None:
        self._skipped_s += seconds


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end as asyncio.run does, on a loop whose time can be skipped."""
    with asyncio.Runner(loop_factory=_SkippingLoop) as runner:
        return runner.run(main)


def skip(seconds: float) -> None:
    """Have so much time go by at once on the running loop: all that falls due in it is due now."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _SkippingLoop)
    loop.skip(seconds)
