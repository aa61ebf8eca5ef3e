"""Test the event loop on virtual time, and its processes that are killed, paused or suspended."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.simulation.loop import PROCESS, LoopStuck, Process, SimLoop


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop()
    yield loop
    loop.close()


def test_sleep_advances_virtual_time(loop: SimLoop) -> None:
    async def sleep_concurrently() -> list[tuple[str, float]]:
        woken: list[tuple[str, float]] = []

        async def sleep_and_record(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((name, loop.time() - SimLoop.BEGAN_S))

        await asyncio.gather(
            sleep_and_record("long", 86_400.0), sleep_and_record("short", 0.5), sleep_and_record("none", 0.0)
        )
        return woken

    assert loop.run_until_complete(sleep_concurrently()) == [
        ("none", 0.0),
        ("short", 0.5),
        ("long", 86_400.0),
    ]


def test_waiting_without_timer_raises_loop_stuck(loop: SimLoop) -> None:
    with pytest.raises(LoopStuck):
        loop.run_until_complete(loop.create_future())


def test_sleep_ends_after_the_suspension_of_the_machine(loop: SimLoop) -> None:
    async def sleep_during_suspension() -> float:
        sleeping = asyncio.create_task(asyncio.sleep(1.0))
        await asyncio.sleep(0)
        loop.skip_time(10.0)
        await sleeping
        return loop.time() - SimLoop.BEGAN_S

    assert loop.run_until_complete(sleep_during_suspension()) == 10.0


def test_killed_process_runs_no_callbacks(loop: SimLoop) -> None:
    done: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def start_callbacks(process: Process | None) -> None:
        PROCESS.set(process)
        tasks.append(asyncio.create_task(append_after_sleep("task")))
        loop.call_later(1.0, done.append, "timer")
        loop.call_later(1.0, lambda: loop.call_soon(done.append, "callback of a timer"))

    async def append_after_sleep(what: str) -> None:
        await asyncio.sleep(1.0)
        done.append(what)

    async def run_process(kill: bool) -> list[str]:
        process = Process("one")
        await asyncio.create_task(start_callbacks(process))
        await asyncio.sleep(0.5)
        if kill:
            await loop.kill(process)
        await asyncio.sleep(1.0)
        return sorted(done)

    assert loop.run_until_complete(run_process(kill=True)) == []
    assert loop.run_until_complete(run_process(kill=False)) == ["callback of a timer", "task", "timer"]


def test_unhandled_exception_is_recorded(loop: SimLoop) -> None:
    async def raise_in_callback() -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.1)

    loop.run_until_complete(raise_in_callback())
    assert [type(failure) for failure in loop.failures] == [ZeroDivisionError]


def test_paused_process_runs_due_callbacks_after_resume(loop: SimLoop) -> None:
    done: list[tuple[str, float]] = []

    def record_call(what: str) -> None:
        done.append((what, loop.time() - SimLoop.BEGAN_S))

    async def start_callbacks(process: Process) -> None:
        PROCESS.set(process)
        loop.call_later(2.0, record_call, "second")
        loop.call_later(1.0, record_call, "first")

    async def pause_and_resume() -> None:
        process = Process("one")
        await asyncio.create_task(start_callbacks(process))
        process.paused = True
        await asyncio.sleep(5.0)
        record_call("the world")
        loop.resume(process)
        await asyncio.sleep(1.0)

    loop.run_until_complete(pause_and_resume())
    assert done == [("the world", 5.0), ("first", 5.0), ("second", 5.0)]
