"""The runtime over a shared log: it claims a shard before loading, and closes a fenced shard."""

import asyncio
from functools import partial

import pytest

from coordinator.client.rpcs import INITIALIZE, READ, WRITE
from coordinator.errors import LogFenced
from protocol.errors import ErrorCode
from tests.builders import ACKNOWLEDGED, make_initialize, make_read, make_write, unpack_batches
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.simulation.loop import run
from tests.unit.runtime.topic_runtimes import run_replica

pytestmark = pytest.mark.run_with(function=run)

run_coordinator = partial(run_replica, is_elected=True, append_timeout_s=0.5)


async def test_fenced_coordinator_closes_the_shard_at_its_next_operation() -> None:
    for rpc, part in ((WRITE, make_write((5, 9, ACKNOWLEDGED, 1))), (READ, make_read())):
        fake = KafkaInMemory()
        async with run_coordinator(fake) as first:
            assert await first.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
            async with run_coordinator(fake) as second:
                assert await first.request_error_code(rpc, part) == ErrorCode.NOT_COORDINATOR
                (view,) = first.runtime.shard_views()
                assert (view.status, view.share_partitions) == ("CLOSED", 0)
                assert "taken over" in " ".join(first.runtime.health())
                # The log works; only append failures other than fencing count in the metric.
                failures = "share_coordinator_append_failures_total"
                assert first.metrics.registry.get_sample_value(failures) == 0
                assert await first.request_error_code(READ, make_read()) == ErrorCode.NOT_COORDINATOR
                assert (
                    await second.request_error_code(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
                    == ErrorCode.NONE
                )
                state = (await second.send_request(READ, make_read()))[0].state_batches
                assert unpack_batches(state) == [(0, 4, ACKNOWLEDGED, 1)]


async def test_shard_is_claimed_again_after_an_unknown_outcome() -> None:
    fake = KafkaInMemory()
    async with run_coordinator(fake) as driver:
        assert await driver.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        fake.lose_produce(requests=1_000_000)
        assert (
            await driver.request_error_code(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
            == ErrorCode.NOT_COORDINATOR
        )
        fake.lose_produce()
        await driver.wait_until(lambda: driver.runtime.health() == [])
        assert driver.runtime.shard_views()[0].owner_epoch > 1
        assert await driver.request_error_code(WRITE, make_write((5, 9, ACKNOWLEDGED, 1))) == ErrorCode.NONE
        assert unpack_batches((await driver.send_request(READ, make_read()))[0].state_batches) == [
            (5, 9, ACKNOWLEDGED, 1)
        ]


async def test_shard_whose_claim_is_fenced_is_closed() -> None:
    async with run_coordinator(KafkaInMemory()) as driver:
        claims = 0

        async def lose_claim(*_: object) -> int:
            nonlocal claims
            claims += 1
            await asyncio.sleep(0)
            raise LogFenced("another owner claims it")

        driver.log.acquire_ownership = lose_claim  # type: ignore[attr-defined]
        driver.runtime.resign(0)
        driver.runtime.elect(0)
        await driver.wait_until(lambda: "another owner claims it" in " ".join(driver.runtime.health()))
        assert driver.runtime.shard_views()[0].status == "CLOSED"
        for _ in range(10):
            await asyncio.sleep(0)
        assert claims == 1, "a fenced claim is not repeated"


@pytest.mark.slow
async def test_shard_that_cannot_be_claimed_is_reported_and_recovers() -> None:
    fake = KafkaInMemory()
    async with run_coordinator(fake) as driver:
        assert await driver.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        fake.lose_produce(requests=1_000_000)
        await driver.request_error_code(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
        await driver.wait_until(lambda: "failed to load" in " ".join(driver.runtime.health()))
        fake.lose_produce()
        assert await driver.request_error_code(WRITE, make_write((0, 4, ACKNOWLEDGED, 1))) == ErrorCode.NONE
