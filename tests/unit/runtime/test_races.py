"""Races of claims, loads, lease renewals and assignments while shards are elected and resigned."""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from coordinator.client.rpcs import INITIALIZE, READ, WRITE
from coordinator.errors import LogFenced, LogUnavailable
from coordinator.log.base import LoggedBatch
from protocol.errors import ErrorCode
from protocol.record_batch import encode_batch
from tests.builders import ACKNOWLEDGED, make_initialize, make_read, make_write
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.simulation.loop import run
from tests.unit.runtime.test_loading import SHARDS, run_runtime, shard_statuses
from tests.unit.runtime.topic_runtimes import (
    LIMITS,
    TOPIC,
    FakeLease,
    elect_shard,
    make_kafka_log,
    owner_epoch,
    run_replica,
    shard_status,
)

pytestmark = pytest.mark.run_with(function=run)

LONG_S = 600.0


@pytest.mark.parametrize("order", [("resign", "log end"), ("resign", "lease", "log end"), ("log end",)])
async def test_late_log_end_of_an_ended_ownership_answers_no_read(
    order: tuple[str, ...],
) -> None:
    fake, lease = KafkaInMemory(), FakeLease()
    async with run_replica(fake, lease=lease) as away, run_replica(fake) as other:
        await elect_shard(away)
        assert await away.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        end = fake.topics[TOPIC][0].end
        lease.fresh = False
        await elect_shard(other)
        assert await other.request_error_code(WRITE, make_write((0, 4, ACKNOWLEDGED, 1))) == ErrorCode.NONE
        # The coordinator `away` reaches only one broker, which is partitioned and returns an old log end
        # late.
        end_may_arrive, finder = asyncio.Event(), away.log._end_finder  # type: ignore[attr-defined]
        find = finder.find

        async def return_old_end(partition: int) -> int:
            await end_may_arrive.wait()
            return end

        finder.find = lambda partition: asyncio.ensure_future(return_old_end(partition))
        reading = away.send_request(READ, make_read())
        await asyncio.sleep(0.05)
        for event in order:
            if event == "resign":
                away.runtime.resign(0)
            elif event == "lease":
                lease.fresh = True
            else:
                end_may_arrive.set()
                await asyncio.sleep(0.5)
        assert (await reading)[0].error_code in (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        )
        end_may_arrive.set()
        finder.find = find


@pytest.mark.parametrize("turns", range(12))
async def test_shard_resigned_at_any_moment_of_loading_is_closed(turns: int) -> None:
    for milliseconds in range(16):
        async with run_replica(KafkaInMemory()) as driver:
            driver.runtime.elect(0)
            await asyncio.sleep(milliseconds / 1000)
            for _ in range(turns):
                await asyncio.sleep(0)
            driver.runtime.resign(0)
            await asyncio.sleep(5)
            assert (shard_status(driver), driver.runtime.health()) == ("CLOSED", [])


@pytest.mark.parametrize("elected_again", [False, True])
@pytest.mark.parametrize("turns", range(6))
async def test_shard_resigned_at_any_moment_of_a_failed_load_is_closed(
    turns: int, elected_again: bool
) -> None:
    log = make_kafka_log(KafkaInMemory(), SHARDS)
    read, fails = log.read, asyncio.Event()
    together: list[int] = []

    async def fail_first_read(partitions: Collection[int]) -> AsyncIterator[list[LoggedBatch]]:
        if len(partitions) > 1 and not together:
            together.extend(partitions)
            await fails.wait()
            raise LogUnavailable("a partition was pruned while it was read")
        async for chunk in read(partitions):
            yield chunk

    log.read = fail_first_read  # type: ignore[method-assign]
    async with run_runtime(log, elect_all=False) as runtime:
        for partition in range(5):
            runtime.elect(partition)
        await asyncio.sleep(1)
        disconnected = together[0]
        fails.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        runtime.resign(disconnected)
        if elected_again:
            runtime.elect(disconnected)
        await asyncio.sleep(60)
        here = {partition for partition in range(5) if elected_again or partition != disconnected}
        assert shard_statuses(runtime) == ["ACTIVE" if driver in here else "CLOSED" for driver in range(5)]
        assert (set(runtime.owned_shards()), runtime.health()) == (here, [])


@pytest.mark.parametrize("turns", range(4))
async def test_fenced_claim_does_not_affect_the_next_claim(turns: int) -> None:
    async with run_replica(KafkaInMemory()) as driver:
        own, first, may_fail = driver.log.acquire_ownership, True, asyncio.Event()

        async def fence_first_claim(*arguments: Any) -> int:
            nonlocal first
            if first:
                first = False
                await may_fail.wait()
                raise LogFenced("somebody else is claiming it")
            claimed: int = await own(*arguments)
            return claimed

        driver.log.acquire_ownership = fence_first_claim  # type: ignore[method-assign]
        driver.runtime.elect(0)
        await asyncio.sleep(0.01)
        may_fail.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        # Resign and elect the shard after the end of the claim, but before its result is processed.
        asyncio.get_running_loop().call_soon(driver.runtime.resign, 0)
        asyncio.get_running_loop().call_soon(driver.runtime.elect, 0)
        await asyncio.sleep(60)
        assert (shard_status(driver), driver.runtime.health()) == ("ACTIVE", [])


async def test_reelected_former_owner_waits_for_the_release_of_the_current_one() -> None:
    fake, limits = KafkaInMemory(), LIMITS._replace(release_wait_s=8.0)
    async with (
        run_replica(fake, limits, FakeLease()) as away,
        run_replica(fake, limits, FakeLease()) as other,
    ):
        await elect_shard(away)
        await elect_shard(other)
        began_s = asyncio.get_running_loop().time()
        away.runtime.resign(0)
        away.runtime.elect(0, release_expected=True)
        await asyncio.sleep(4.0)
        assert owner_epoch(other) == 2
        assert await other.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        other.runtime.resign(0)
        await away.wait_until(lambda: owner_epoch(away) == 3)
        assert asyncio.get_running_loop().time() - began_s < 5.0


async def test_unreadable_log_end_is_retried_until_it_is_readable() -> None:
    fake = KafkaInMemory()
    async with run_replica(fake) as driver:
        await elect_shard(driver)
        driver.runtime.resign(0)
        await asyncio.sleep(1)
        batch = bytearray(encode_batch(0, 1, [(b"key", b"value")]))
        batch[-1] ^= 1
        fake.topics[TOPIC][0].append(bytes(batch))
        driver.runtime.elect(0)
        await asyncio.sleep(LONG_S)
        assert (shard_status(driver), len(driver.runtime.health())) == ("FAILED", 1)
        fake.topics[TOPIC][0].batches.pop()
        await asyncio.sleep(LONG_S)
        assert (shard_status(driver), driver.runtime.health()) == ("ACTIVE", [])


@pytest.mark.parametrize(
    ("without_lease_s", "reason"),
    [
        (0.1, "1 of 1 shards are loading."),
        (1.0, "Shards failed to load: without contact to its group, a coordinator claims no shards"),
    ],
)
async def test_missing_lease_is_reported_as_a_failure_only_if_it_lasts(
    without_lease_s: float, reason: str
) -> None:
    lease = FakeLease()
    lease.fresh = False
    async with run_replica(KafkaInMemory(), lease=lease) as driver:
        driver.runtime.elect(0)
        await asyncio.sleep(without_lease_s)
        assert driver.runtime.health() == [reason]
        lease.fresh = True
        await asyncio.sleep(1)
        assert (shard_status(driver), driver.runtime.health()) == ("ACTIVE", [])
