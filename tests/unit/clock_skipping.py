"""An event loop with real sockets whose clock a test can advance without waiting."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class _SkippingLoop(asyncio.SelectorEventLoop):
    _skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self._skipped_s

    def skip(self, seconds: float) -> None:
        self._skipped_s += seconds


def run_with_skipping_clock(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine as asyncio.run does, on an event loop whose clock can be advanced with `skip_time`."""
    with asyncio.Runner(loop_factory=_SkippingLoop) as runner:
        return runner.run(main)


def skip_time(seconds: float) -> None:
    """Advance the clock of the running loop; timers that are due then run in the next step."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _SkippingLoop)
    loop.skip(seconds)
