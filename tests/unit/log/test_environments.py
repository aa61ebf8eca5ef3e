"""A log environment raises exceptions of callbacks and of tasks that are never awaited."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.environments import LogEnvironment, RealDiskEnvironment, SimulatedEnvironment


@pytest.fixture(params=["real", "simulated"])
def log_environment(request: pytest.FixtureRequest, tmp_path: Path) -> LogEnvironment:
    return RealDiskEnvironment(tmp_path) if request.param == "real" else SimulatedEnvironment()


def raise_defect() -> None:
    raise AssertionError("noticed")


def test_exception_in_a_callback_is_raised(log_environment: LogEnvironment) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(raise_defect)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="noticed"):
        log_environment.run(main())


def test_exception_in_a_task_that_is_never_awaited_is_raised(log_environment: LogEnvironment) -> None:
    class TaskHolder:
        task: Any

        async def run(self) -> None:
            raise_defect()

    async def main() -> None:
        # A reference cycle: the holder refers to the task, the task to its exception, and the exception to
        # the holder.
        holder = TaskHolder()
        holder.task = asyncio.ensure_future(holder.run())
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="noticed"):
        log_environment.run(main())


def test_exception_during_cancellation_is_raised(log_environment: LogEnvironment) -> None:
    waiting: list[asyncio.Task[None]] = []

    async def wait_and_fail() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            raise_defect()

    async def main() -> None:
        waiting.append(asyncio.ensure_future(wait_and_fail()))
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="noticed"):
        log_environment.run(main())
