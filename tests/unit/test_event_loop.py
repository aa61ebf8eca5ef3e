"""The clock of the event loop that the programs run on."""

import asyncio

import pytest

from coordinator import event_loop


def test_time_passes_within_a_turn_and_below_a_millisecond() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        began_s, looks = loop.time(), 1
        while (now_s := loop.time()) - began_s < 0.0005:
            looks += 1
        assert looks > 2, "the clock goes in steps"
        return now_s - began_s

    assert 0.0005 <= event_loop.run(main()) < 60.0


def test_timers_go_by_the_same_clock() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        # This turn has lasted some time already: a timer counts from its beginning.
        began_s = loop.time()
        while loop.time() - began_s < 0.02:
            pass
        due_s = loop.time() + 0.05
        called = asyncio.Event()
        loop.call_at(due_s, called.set)
        await called.wait()
        assert -0.03 < loop.time() - due_s < 60.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()

    event_loop.run(main())
