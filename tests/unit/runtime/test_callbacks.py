"""An exception in a callback fails only its own operation; other responses, shards and jobs continue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coordinator.client.rpcs import INITIALIZE, READ, WRITE
from coordinator.cluster.topics import EveryTopicExists
from coordinator.config import HostPort
from coordinator.errors import LogOutcomeUnknown, LogUnavailable
from coordinator.serve.runtime import Operation, RuntimeLimits
from coordinator.serve.server import Api, CoordinatorDirectory
from coordinator.shard import Shard
from protocol.errors import ErrorCode
from protocol.messages import write_share_group_state as write_api
from tests.builders import ACKNOWLEDGED, KEY, TOPIC_ID, make_initialize, make_read, make_write, unpack_batches
from tests.simulation.loop import run
from tests.unit.runtime.test_runtime import FakeOrigin, RuntimeDriver, run_driver
from tests.unit.server.wire import request_frame

pytestmark = pytest.mark.run_with(function=run)

WRITTEN = make_write((0, 4, ACKNOWLEDGED, 1))


class InjectedError(Exception):
    """The exception that callbacks raise."""


class BrokenOperation(Operation):
    """An operation whose callbacks raise InjectedError."""

    def __init__(self, decide: Any, part: Any, *, writes: bool = True) -> None:
        now_s = asyncio.get_running_loop().time()
        super().__init__(decide, KEY, [part], writes=writes, origin=None, received_s=now_s)

    def answer(self, result: Any) -> None:
        raise InjectedError

    def refuse(self, error_code: ErrorCode, error_message: str) -> None:
        raise InjectedError


def make_broken_write() -> BrokenOperation:
    return BrokenOperation(Shard.write_state, WRITTEN)


async def check_recovery(driver: RuntimeDriver) -> None:
    """Assert that the shard recovers and executes a write and a read."""
    driver.log.blocking = False
    driver.log.release_appends()
    await driver.wait_until(lambda: driver.runtime.health() == [])
    assert await driver.request_error_code(WRITE, make_write((90, 90, ACKNOWLEDGED, 1))) == ErrorCode.NONE
    (state,) = await driver.send_request(READ, make_read())
    assert unpack_batches(state.state_batches)[-1][1] == 90


@asynccontextmanager
async def run_driver_with_failures(
    limits: RuntimeLimits | None = None,
) -> AsyncIterator[tuple[RuntimeDriver, list[Any]]]:
    """Run a coordinator; afterwards it must recover, and must have reported only InjectedError.

    The list contains the types of the exceptions that the event loop's exception handler received.
    """
    failures: list[Any] = []
    async with run_driver(limits) as driver:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failures.append(type(context["exception"]))
        )
        yield driver, failures
        await check_recovery(driver)
    assert set(failures) == {InjectedError}


def raise_defect(*_: Any) -> None:
    raise InjectedError


async def test_exception_in_one_response_does_not_affect_others_of_the_append() -> None:
    async with run_driver_with_failures() as (driver, failures):
        first = driver.send_request(WRITE, WRITTEN)
        driver.runtime.submit(make_broken_write())
        last = driver.send_request(WRITE, make_write((7, 7, ACKNOWLEDGED, 1), partition=1))
        await driver.wait_until(lambda: driver.log.held)
        driver.log.release_appends()
        assert [(await answer)[0].error_code for answer in (first, last)] == [ErrorCode.NONE] * 2
        assert len(failures) == 1


async def test_exception_in_an_immediate_read_response_is_isolated() -> None:
    async with run_driver_with_failures() as (driver, failures):
        driver.runtime.submit(BrokenOperation(Shard.read_state, make_read(), writes=False))
        assert len(failures) == 1


@pytest.mark.parametrize("error", [LogUnavailable("disk full"), LogOutcomeUnknown("fsync failed")])
async def test_exception_in_one_refusal_does_not_affect_others_of_the_append(error: Any) -> None:
    async with run_driver_with_failures() as (driver, _):
        first = driver.send_request(WRITE, WRITTEN)
        driver.runtime.submit(make_broken_write())
        last = driver.send_request(WRITE, make_write((7, 7, ACKNOWLEDGED, 1), partition=1))
        await driver.wait_until(lambda: driver.log.held)
        driver.log.fail_appends(error)
        assert [(await answer)[0].error_code for answer in (first, last)] == [error.error_code] * 2


async def test_exception_in_a_refusal_does_not_stop_batch_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_driver_with_failures() as (driver, _):
        # The broken write comes first; the Initialize after it calls `apply`, which fails.
        with monkeypatch.context() as patch:
            patch.setattr(Shard, "apply", raise_defect)
            driver.runtime.submit(make_broken_write())
            answers = [
                driver.send_request(INITIALIZE, make_initialize(1, partition=partition))
                for partition in (1, 0)
            ]
            codes = [(await answer)[0].error_code for answer in answers]
        assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2


@pytest.mark.parametrize("held", [True, False])
async def test_exception_in_a_refusal_does_not_stop_the_ticker(held: bool) -> None:
    async with run_driver_with_failures(RuntimeLimits(write_timeout_s=0.5, tick_s=0.1)) as (driver, failures):
        # The broken operation is either in the overdue append or queued behind it.
        if held:
            driver.runtime.submit(make_broken_write())
        last = driver.send_request(WRITE, WRITTEN)
        await driver.wait_until(lambda: driver.log.held)
        if not held:
            driver.runtime.submit(make_broken_write())
        for _ in range(2):
            assert (await last)[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            last = driver.send_request(WRITE, WRITTEN)
        await last
        assert failures


async def test_exception_in_expire_operations_does_not_stop_the_ticker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_driver_with_failures(RuntimeLimits(write_timeout_s=0.5, tick_s=0.1)) as (driver, failures):
        with monkeypatch.context() as patch:
            patch.setattr(type(driver.runtime._runners[0]), "expire_operations", raise_defect)
            await asyncio.sleep(0.35)
        assert len(failures) == 3
        answer = driver.send_request(WRITE, WRITTEN)
        assert (await answer)[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("callback", ["close", "too many"])
async def test_exception_in_a_refusal_of_a_closed_or_full_shard_is_isolated(callback: str) -> None:
    async with run_driver_with_failures(
        RuntimeLimits(queued_operations_max=1 if callback == "too many" else 9)
    ) as (driver, _):
        first = driver.send_request(WRITE, WRITTEN)
        await driver.wait_until(lambda: driver.log.held)
        if callback == "close":
            driver.runtime.submit(make_broken_write())
            last = driver.send_request(WRITE, WRITTEN)
            driver.runtime.resign(0)
            assert (await last)[0].error_code == ErrorCode.NOT_COORDINATOR
            driver.runtime.submit(make_broken_write())
            driver.log.release_appends()
            await driver.wait_until(lambda: not driver.runtime.resigning_shards)
            driver.runtime.elect(0)
            await driver.wait_until(lambda: driver.runtime.health() == [])
        else:
            last = driver.send_request(WRITE, WRITTEN)
            driver.runtime.submit(make_broken_write())
            driver.log.release_appends()
            await driver.wait_until(lambda: driver.log.held)
            driver.log.release_appends()
            assert (await last)[0].error_code == ErrorCode.NONE
        assert (await first)[0].error_code == ErrorCode.NONE


async def test_exception_in_respond_does_not_affect_other_responses() -> None:
    """Use the API, so that the fast path executes the requests if the compiled module exists."""
    async with run_driver_with_failures() as (driver, failures):
        directory = CoordinatorDirectory(
            HostPort("localhost", 9095), node_id_first=1, node_ids=1, state_partitions=1
        )
        api = Api(driver.service, directory, driver.metrics)
        request = write_api.WriteShareGroupStateRequest(
            "group", [write_api.WriteStateData(TOPIC_ID, [WRITTEN])]
        )
        frame = request_frame(85, 1, 1, write_api.encode_request(request, 1))[4:]
        responses: list[bytes] = []

        for respond in (responses.append, raise_defect, responses.append):
            api.handle(frame, FakeOrigin(), respond)
        await driver.wait_until(lambda: driver.log.held)
        driver.log.release_appends()
        await driver.wait_until(lambda: len(responses) == 2)
        assert len(failures) == 1


async def test_exception_in_the_topic_check_fails_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_driver() as driver:
        driver.log.blocking = False

        def raise_error(self: EveryTopicExists, topic_id: bytes, partition: int) -> bool:
            if partition == 1:
                raise InjectedError
            return True

        with monkeypatch.context() as patch:
            patch.setattr(EveryTopicExists, "contains", raise_error)
            results = await driver.send_request(WRITE, WRITTEN, make_write((0, 0, 0, 1), partition=1))
        assert [each.error_code for each in results] == [0, ErrorCode.UNKNOWN_SERVER_ERROR]
        await check_recovery(driver)


async def test_failed_mark_durable_reloads_the_shard_and_answers_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_driver_with_failures() as (driver, _):
        with monkeypatch.context() as patch:
            patch.setattr(Shard, "mark_durable", raise_defect)
            answers = [
                driver.send_request(INITIALIZE, make_initialize(1, partition=1)),
                driver.send_request(WRITE, WRITTEN),
            ]
            await driver.wait_until(lambda: driver.log.held)
            driver.log.release_appends()
            codes = [(await answer)[0].error_code for answer in answers]
        assert codes == [ErrorCode.NOT_COORDINATOR] * 2


async def test_resignation_during_an_append_leaves_no_callback() -> None:
    """After a new election of the shard in this process, appends complete as before."""
    async with run_driver() as driver:
        writing = driver.send_request(WRITE, WRITTEN)
        await driver.wait_until(lambda: driver.log.held)
        driver.runtime.resign(0)
        driver.runtime.elect(0)
        await asyncio.sleep(0)
        driver.log.release_appends()
        assert (await writing)[0].error_code == ErrorCode.NONE
        await driver.wait_until(lambda: driver.runtime.health() == [] and not driver.runtime.resigning_shards)
        assert driver.runtime._runners[0]._append_finished is None
        await check_recovery(driver)
