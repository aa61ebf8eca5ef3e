"""Opening of a log that is not available yet: retries, log lines and errors that are not retried."""

import asyncio
import logging
from collections.abc import Callable
from itertools import pairwise

import pytest

from coordinator.errors import ConfigError, CoordinatorError, LogRefused, LogUnavailable
from coordinator.serve.runtime.log_opener import PAUSE_MAX_S, REPEAT_INTERVAL_S, LogOpener
from tests.manual_clock import ManualClock
from tests.simulation.loop import run

pytestmark = pytest.mark.run_with(function=run)


def make_slow_open(seconds: float, attempts: list[float]) -> Callable[[], "asyncio.Future[None]"]:
    async def open_slowly() -> None:
        now_s = asyncio.get_running_loop().time()
        attempts.append(now_s)
        if now_s - attempts[0] < seconds:
            raise LogUnavailable("nobody is there")

    return lambda: asyncio.ensure_future(open_slowly())


async def test_opening_of_the_log_is_retried_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    attempts: list[float] = []
    opening = LogOpener(make_slow_open(3 * REPEAT_INTERVAL_S, attempts), ManualClock())

    running = asyncio.create_task(opening.run(asyncio.Event()))
    assert opening.health() == []
    await asyncio.sleep(1.0)
    assert opening.health() == ["The log cannot be opened since 2023-11-14T22:13:20+00:00: nobody is there"]
    assert await running
    assert opening.health() == []
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MAX_S
    assert caplog.text.count("Waiting for the log: nobody is there") == 3
    assert caplog.text.count("The log is open.") == 1


async def test_log_that_opens_at_once_writes_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    opening = LogOpener(make_slow_open(0.0, []), ManualClock())
    assert await opening.run(asyncio.Event())
    assert caplog.text == ""


async def test_stop_ends_the_wait_for_the_log_at_once() -> None:
    opening = LogOpener(make_slow_open(1e9, []), ManualClock())

    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.call_later(100.25, stop_requested.set)
    began_s = loop.time()
    assert not await opening.run(stop_requested)
    assert loop.time() - began_s == pytest.approx(100.25)


@pytest.mark.parametrize("error", [LogRefused("wrong password"), ConfigError("a", 1, "2")])
async def test_permanent_error_of_opening_the_log_is_not_retried(error: CoordinatorError) -> None:
    async def raise_permanent_error() -> None:
        raise error

    opening = LogOpener(raise_permanent_error, ManualClock())
    with pytest.raises(type(error)):
        await opening.run(asyncio.Event())
