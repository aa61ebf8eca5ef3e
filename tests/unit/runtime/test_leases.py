"""Reads under the lease of an owner: when they are answered, and which broker requests they cause."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from coordinator.client.rpcs import INITIALIZE, READ, WRITE
from protocol.errors import ErrorCode
from tests.builders import ACKNOWLEDGED, make_initialize, make_read, make_write
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.simulation.loop import run
from tests.unit.log.kafka_logs import loop_time
from tests.unit.runtime.test_runtime import RuntimeDriver
from tests.unit.runtime.topic_runtimes import LIMITS, run_replica

pytestmark = pytest.mark.run_with(function=run)

LEASE_S = 2.0


def run_owner(
    fake: KafkaInMemory, monotonic: Callable[[], float] = loop_time
) -> AbstractAsyncContextManager[RuntimeDriver]:
    """Run a coordinator that owns shard 0 until the block ends."""
    limits = LIMITS._replace(release_timeout_s=0.0)
    return run_replica(fake, limits, is_elected=True, monotonic=monotonic, lease_s=LEASE_S)


def take_requested_apis(fake: KafkaInMemory) -> list[str]:
    """Return the APIs of the broker requests since the last call."""
    asked = [api for api, _ in fake.requests]
    fake.requests.clear()
    return asked


async def test_read_within_the_lease_sends_no_broker_request() -> None:
    fake = KafkaInMemory()
    async with run_owner(fake) as driver:
        assert await driver.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        take_requested_apis(fake)
        assert await driver.request_error_code(READ, make_read()) == ErrorCode.NONE
        assert take_requested_apis(fake) == []


async def test_reads_after_the_lease_share_one_renewal() -> None:
    fake = KafkaInMemory()
    async with run_owner(fake) as driver:
        assert await driver.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        await asyncio.sleep(LEASE_S)
        take_requested_apis(fake)
        for _ in range(3):
            assert await driver.request_error_code(READ, make_read()) == ErrorCode.NONE
        assert take_requested_apis(fake) == ["produce"]


async def test_regular_reads_renew_the_lease_early_and_never_wait() -> None:
    fake = KafkaInMemory()
    async with run_owner(fake) as driver:
        assert await driver.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        take_requested_apis(fake)
        for _ in range(100):
            began_s = loop_time()
            assert await driver.request_error_code(READ, make_read()) == ErrorCode.NONE
            assert loop_time() == began_s
            await asyncio.sleep(LEASE_S / 10)
        asked = take_requested_apis(fake)
        assert set(asked) == {"produce"}
        assert len(asked) <= 20


async def test_appends_of_a_busy_shard_renew_its_lease() -> None:
    fake = KafkaInMemory()
    async with run_owner(fake) as driver:
        assert await driver.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        take_requested_apis(fake)
        for offset in range(50):
            assert (
                await driver.request_error_code(WRITE, make_write((offset, offset, ACKNOWLEDGED, 1)))
                == ErrorCode.NONE
            )
            assert await driver.request_error_code(READ, make_read()) == ErrorCode.NONE
            await asyncio.sleep(LEASE_S / 5)
        assert len(take_requested_apis(fake)) == 50


async def test_idle_shard_appends_nothing_for_hours() -> None:
    fake, hours = KafkaInMemory(), [0]
    async with run_owner(fake, lambda: loop_time() + 3_600.0 * hours[0]) as driver:
        assert await driver.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        take_requested_apis(fake)
        for hours[0] in range(12):
            await asyncio.sleep(1.0)
        assert take_requested_apis(fake) == []
        # Brokers expire the state of an idle producer after a day.
        hours[0] = 12
        await asyncio.sleep(1.0)
        assert take_requested_apis(fake) == ["produce"]


async def test_claimant_waits_for_the_lease_of_the_previous_owner() -> None:
    fake = KafkaInMemory()
    async with run_owner(fake) as first:
        assert await first.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        began_s = loop_time()
        async with run_owner(fake) as second:
            assert LEASE_S * 1.1 <= loop_time() - began_s < LEASE_S * 1.1 + 0.5
            assert (
                await second.request_error_code(WRITE, make_write((0, 4, ACKNOWLEDGED, 1))) == ErrorCode.NONE
            )
            # The lease of the first owner has ended, and the log refuses its renewal.
            assert await first.request_error_code(READ, make_read()) == ErrorCode.NOT_COORDINATOR


async def test_refused_initialize_requires_a_lease_too() -> None:
    fake = KafkaInMemory()
    async with run_owner(fake) as first:
        assert await first.request_error_code(INITIALIZE, make_initialize(state_epoch=5)) == ErrorCode.NONE
        async with run_owner(fake):
            assert (
                await first.request_error_code(INITIALIZE, make_initialize(state_epoch=1))
                == ErrorCode.NOT_COORDINATOR
            )
