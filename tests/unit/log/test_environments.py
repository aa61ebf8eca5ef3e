"""What fails in a world behind the back of a test fails the test."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.environments import LogEnvironment, RealDiskEnvironment, SimulatedEnvironment


@pytest.fixture(params=["real", "simulated"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> LogEnvironment:
    return RealDiskEnvironment(tmp_path) if request.param == "real" else SimulatedEnvironment()


def fail() -> None:
    raise AssertionError("noticed")


def test_what_fails_in_a_callback_is_raised(world: LogEnvironment) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="noticed"):
        world.run(main())


def test_what_fails_in_a_task_that_nobody_waits_for_is_raised(world: LogEnvironment) -> None:
    class Holder:
        task: Any

        async def run(self) -> None:
            fail()

    async def main() -> None:
        # The holder has the task, the task its failure, and that the holder.
        holder = Holder()
        holder.task = asyncio.ensure_future(holder.run())
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="noticed"):
        world.run(main())


def test_what_fails_as_it_is_cancelled_at_the_end_is_raised(world: LogEnvironment) -> None:
    waiting: list[asyncio.Task[None]] = []

    async def wait_and_fail() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            fail()

    async def main() -> None:
        waiting.append(asyncio.ensure_future(wait_and_fail()))
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="noticed"):
        world.run(main())
