"""The setting `forwarding`: auto, always or never."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest

from coordinator.errors import LogUnavailable
from coordinator.metrics import Metrics
from coordinator.serve.forwarding import Forwarder, ForwardingMode
from coordinator.serve.forwarding.mode import CHECK_INTERVAL_S, FIRST_CHECKS_INTERVAL_S
from tests.simulation.loop import run
from tests.unit.runtime.test_runtime import run_driver


class FakeTopicCheck:
    """A topic check that returns or raises the given results in order, and repeats the last result."""

    def __init__(self, *results: bool | LogUnavailable | None) -> None:
        self.results = list(results)
        self.calls = 0

    async def __call__(self) -> bool | None:
        self.calls += 1
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, LogUnavailable):
            raise result
        return result


Scenario = Callable[[Forwarder, ForwardingMode], Awaitable[object]]


def run_scenario_in_mode(
    setting: Literal["auto", "always", "never"], topic_check: FakeTopicCheck, scenario: Scenario
) -> None:
    async def run_scenario() -> None:
        async with run_driver(initialised=False) as one:
            forwarder = Forwarder(one.runtime, instance="one", metrics=Metrics())
            mode = ForwardingMode(forwarder, setting, topic_check)
            mode.start()
            await scenario(forwarder, mode)
            await mode.stop()

    run(run_scenario())


def test_forwarding_auto_follows_the_existence_of_the_topic_and_logs_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "coordinator.serve.forwarding")
    topic_check = FakeTopicCheck(False, False, True, True, True, False)

    async def run_test(forwarder: Forwarder, _: Any) -> None:
        assert forwarder.active
        seen = []
        for _ in range(6):
            await asyncio.sleep(CHECK_INTERVAL_S)
            seen.append(forwarder.active)
        assert seen == [False, True, True, True, False, False]

    run_scenario_in_mode("auto", topic_check, run_test)
    said = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("coordinator.serve.forwarding")
    ]
    assert [sentence.split(",")[0] for sentence in said] == [
        "Topic __share_group_state does not exist",
        "Topic __share_group_state exists",
        "Topic __share_group_state does not exist",
    ]


def test_forwarding_auto_forwards_until_the_first_check_and_keeps_its_result() -> None:
    nobody = LogUnavailable("no broker")
    topic_check = FakeTopicCheck(nobody, nobody, False, nobody, nobody, True, nobody)

    async def run_test(forwarder: Forwarder, _: Any) -> None:
        await asyncio.sleep(1.5 * FIRST_CHECKS_INTERVAL_S)
        assert (topic_check.calls, forwarder.active) == (2, True)
        await asyncio.sleep(FIRST_CHECKS_INTERVAL_S)
        assert (topic_check.calls, forwarder.active) == (3, False)
        await asyncio.sleep(2 * CHECK_INTERVAL_S)
        assert (topic_check.calls, forwarder.active) == (5, False)
        await asyncio.sleep(2 * CHECK_INTERVAL_S)
        assert (topic_check.calls, forwarder.active) == (7, True)

    run_scenario_in_mode("auto", topic_check, run_test)


def test_forwarding_auto_forwards_and_warns_if_the_check_is_not_permitted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run_test(forwarder: Forwarder, _: Any) -> None:
        await asyncio.sleep(3 * CHECK_INTERVAL_S)
        assert forwarder.active

    run_scenario_in_mode("auto", FakeTopicCheck(None), run_test)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "Set forwarding=always or forwarding=never" in warnings[0]


@pytest.mark.parametrize(("setting", "active"), [("always", True), ("never", False)])
def test_forwarding_always_or_never_makes_no_topic_checks(
    setting: Literal["always", "never"], active: bool
) -> None:
    topic_check = FakeTopicCheck(not active)

    async def run_test(forwarder: Forwarder, _: Any) -> None:
        await asyncio.sleep(2 * CHECK_INTERVAL_S)
        assert (forwarder.active, topic_check.calls) == (active, 0)

    run_scenario_in_mode(setting, topic_check, run_test)
