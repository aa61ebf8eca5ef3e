"""The clock of the event loop on which the programs run."""

import asyncio
from itertools import pairwise

import pytest

from coordinator.process import event_loop


def test_clock_has_a_resolution_below_one_millisecond() -> None:
    async def run_test() -> list[float]:
        loop = asyncio.get_running_loop()
        return [loop.time() for _ in range(10_000)]

    steps = [later - sooner for sooner, later in pairwise(event_loop.run(run_test()))]
    assert min(steps) >= 0.0
    assert min(step for step in steps if step) < 0.0005


@pytest.mark.run_with(function=event_loop.run)
async def test_timers_use_the_same_clock() -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while loop.time() - began_s < 0.02:
        pass
    due_s = loop.time() + 0.05
    called = asyncio.Event()
    loop.call_at(due_s, called.set)
    await called.wait()
    assert -0.002 < loop.time() - due_s < 60.0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
