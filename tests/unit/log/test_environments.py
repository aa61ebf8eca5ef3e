"""A log environment raises exceptions of callbacks and of tasks that are never awaited."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.environments import LogEnvironment, RealDiskEnvironment, SimulatedEnvironment


def raise_defect() -> None:
    raise AssertionError("noticed")


def fail_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(raise_defect)


def fail_in_a_task_of_a_reference_cycle() -> None:
    class TaskHolder:
        task: Any

        async def run(self) -> None:
            raise_defect()

    # The holder refers to the task, the task to its exception, and the exception to the holder.
    holder = TaskHolder()
    holder.task = asyncio.ensure_future(holder.run())


@pytest.mark.parametrize("disk", ["real", "simulated"])
@pytest.mark.parametrize("fail", [fail_in_a_callback, fail_in_a_task_of_a_reference_cycle])
def test_exception_that_nothing_awaits_is_raised(disk: str, fail: Callable[[], None], tmp_path: Path) -> None:
    environment: LogEnvironment = RealDiskEnvironment(tmp_path) if disk == "real" else SimulatedEnvironment()

    async def run_test() -> None:
        fail()
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="noticed"):
        environment.run(run_test())
