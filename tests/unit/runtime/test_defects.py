"""Internal errors fail single requests and never the state of a shard."""

import asyncio
from typing import Any

import pytest

from coordinator.client.rpcs import INITIALIZE, READ, WRITE
from coordinator.shard import Shard
from protocol.errors import ErrorCode
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_records import StateRecord
from tests.builders import (
    ACKNOWLEDGED,
    TOPIC_ID,
    execute,
    make_initialize,
    make_read,
    make_write,
    unpack_batches,
)
from tests.simulation.loop import run
from tests.unit.runtime.test_runtime import run_driver

pytestmark = pytest.mark.run_with(function=run)


async def test_internal_error_in_a_decision_fails_one_request() -> None:
    async with run_driver() as driver:
        driver.log.blocking = False
        broken = write_api.PartitionData(0, 0, 0, 0, 0, "not bytes")  # type: ignore[arg-type]
        assert await driver.request_error_code(WRITE, broken) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert await driver.request_error_code(WRITE, make_write((0, 0, 0, 1))) == ErrorCode.NONE


async def test_record_too_large_for_the_log_fails_one_request() -> None:
    async with run_driver() as driver:
        driver.log.blocking = False
        driver.log.record_bytes_max = 100
        assert await driver.request_error_code(WRITE, make_write((0, 0, ACKNOWLEDGED, 1))) == ErrorCode.NONE
        much = make_write(*((2 * offset, 2 * offset, ACKNOWLEDGED, 1) for offset in range(10)))
        less = make_write((1, 1, ACKNOWLEDGED, 1), partition=1)
        results = await driver.send_request(WRITE, much, less)
        assert [result.error_code for result in results] == [ErrorCode.UNKNOWN_SERVER_ERROR, 0]
        assert driver.runtime.shard_views()[0].loaded_records == 0
        states = [
            result.state_batches
            for result in await driver.send_request(READ, make_read(), make_read(partition=1))
        ]
        assert list(map(unpack_batches, states)) == [[(0, 0, ACKNOWLEDGED, 1)], [(1, 1, ACKNOWLEDGED, 1)]]


async def test_unencodable_record_fails_one_request() -> None:
    async with run_driver() as driver:
        driver.log.blocking = False
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        topic = initialize_api.InitializeStateData(TOPIC_ID, [make_initialize()])
        # A group id longer than 32767 bytes does not fit into a record.
        request = initialize_api.InitializeShareGroupStateRequest("g" * 40_000, [topic])
        execute(driver.service, INITIALIZE, request, None, done.set_result)
        assert await driver.request_error_code(WRITE, make_write((0, 0, ACKNOWLEDGED, 1))) == ErrorCode.NONE
        refused = (await done).results[0].partitions[0]
        assert refused.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert driver.runtime.shard_views()[0].loaded_records == 0


async def test_failed_commit_batch_is_refused_and_the_shard_reloads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_driver() as driver:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        apply = Shard.apply

        def apply_or_raise(self: Shard, record: StateRecord, timestamp_ms: int) -> None:
            if record.key.partition == 1:
                raise RuntimeError("a defect")
            apply(self, record, timestamp_ms)

        with monkeypatch.context() as patch:
            patch.setattr(Shard, "apply", apply_or_raise)
            asked = [
                driver.send_request(WRITE, make_write((0, 4, ACKNOWLEDGED, 1), partition=partition))
                for partition in (0, 1, 0)
            ]
            codes = [(await answer)[0].error_code for answer in asked]
        assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
        assert [str(failure["exception"]) for failure in failures] == ["a defect"]
        assert not driver.log.held
        await driver.wait_until(lambda: driver.runtime.health() == [])
        assert (await driver.send_request(READ, make_read()))[0].state_batches == b""
        driver.log.blocking = False
        assert await driver.request_error_code(WRITE, make_write((0, 4, ACKNOWLEDGED, 1))) == ErrorCode.NONE
