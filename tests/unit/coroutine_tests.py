"""Wait for conditions, and replace asyncio.sleep by a recorder."""

import asyncio
from collections.abc import Callable


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, at most 60 s."""
    steps = 0
    async with asyncio.timeout(60):
        while not condition():
            steps += 1
            # After 1000 steps, let time pass too, because some conditions need time, such as the end of a
            # lease.
            await asyncio.sleep(0 if steps < 1_000 else 0.001)


class FakeSleep(list[float]):
    """A replacement of asyncio.sleep that returns at once and records the requested seconds."""

    async def __call__(self, wait_s: float) -> None:
        self.append(wait_s)
