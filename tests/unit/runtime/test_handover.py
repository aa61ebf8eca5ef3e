"""Election and resignation of single shards over a log shared by coordinators."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection

import pytest

from coordinator.client.rpcs import INITIALIZE, READ, WRITE
from coordinator.log.base import LoggedBatch
from coordinator.log.kafka import KafkaLogLimits
from coordinator.metrics import render_exposition
from protocol.errors import ErrorCode
from tests.builders import ACKNOWLEDGED, make_initialize, make_read, make_write, unpack_batches
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.simulation.loop import run
from tests.unit.log.kafka_logs import loop_time
from tests.unit.runtime.topic_runtimes import (
    LIMITS,
    FakeLease,
    elect_shard,
    owner_epoch,
    run_replica,
    shard_status,
)

pytestmark = pytest.mark.run_with(function=run)


async def test_coordinator_without_elections_owns_nothing_and_is_healthy() -> None:
    async with run_replica(KafkaInMemory()) as driver:
        assert await driver.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NOT_COORDINATOR
        assert driver.runtime.health() == []
        assert driver.runtime.owned_shards() == []
        assert driver.runtime.initial_load_done
        # The group asks for `can_serve` on joining; a member that is not ready gets no shards.
        assert driver.runtime.can_serve


async def test_loading_counts_only_owned_shards_and_logs_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with run_replica(KafkaInMemory()) as driver:
        driver.runtime.elect(0)
        assert driver.runtime.health() == ["1 of 1 shards are loading."]
        await driver.wait_until(lambda: not driver.runtime.health())
    said = [record for record in caplog.records if record.getMessage() == "Loaded shards."]
    assert [record.shards for record in said] == [1]  # type: ignore[attr-defined]


async def test_shard_is_handed_over_with_its_append_in_flight() -> None:
    fake, lease = KafkaInMemory(), FakeLease()
    async with run_replica(fake, lease=lease) as first, run_replica(fake) as second:
        await elect_shard(first)
        assert await first.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        writing = first.send_request(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
        await first.wait_until(lambda: first.runtime.appends_in_flight() == 1)
        first.runtime.resign(0)
        assert list(first.runtime.resigning_shards) == [0]
        second.runtime.elect(0, release_expected=True)
        assert (await writing)[0].error_code == ErrorCode.NONE
        assert (
            await first.request_error_code(WRITE, make_write((5, 9, ACKNOWLEDGED, 1)))
            == ErrorCode.NOT_COORDINATOR
        )
        await second.wait_until(lambda: shard_status(second) == "ACTIVE")
        state = (await second.send_request(READ, make_read()))[0].state_batches
        assert unpack_batches(state) == [(0, 4, ACKNOWLEDGED, 1)]
        assert not first.runtime.resigning_shards
        assert first.runtime.health() == []
        # After a hand-over with a release, no owner is fenced.
        assert lease.taken == []


async def test_kafka_20347_metrics_of_a_resigned_shard_are_removed() -> None:
    async with run_replica(KafkaInMemory()) as driver:
        await elect_shard(driver)
        for state_epoch in (1, 2, 3):
            assert (
                await driver.request_error_code(INITIALIZE, make_initialize(state_epoch=state_epoch))
                == ErrorCode.NONE
            )
        await driver.runtime.jobs.prune()
        series = b'share_coordinator_prune_offset{shard="0"} '
        assert series in await render_exposition(driver.metrics)
        driver.runtime.resign(0)
        assert series not in await render_exposition(driver.metrics)


async def test_next_owner_waits_for_a_release_for_a_limited_time() -> None:
    fake, lease = KafkaInMemory(), FakeLease()
    limits = LIMITS._replace(release_wait_s=0.2)
    async with run_replica(fake, lease=lease) as first, run_replica(fake, limits) as second:
        await elect_shard(first)
        assert await first.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        began_s = asyncio.get_running_loop().time()
        await elect_shard(second, release_expected=True)
        assert asyncio.get_running_loop().time() - began_s >= 0.2
        assert (
            await first.request_error_code(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
            == ErrorCode.NOT_COORDINATOR
        )
        assert lease.taken == [0]
        assert "taken over" in " ".join(first.runtime.health())
        # The next assignment resigns the shard, which removes it from the health report.
        first.runtime.resign(0)
        assert first.runtime.health() == []


async def test_lease_that_ends_during_the_release_wait_prevents_the_claim() -> None:
    fake, owner, late = KafkaInMemory(), FakeLease(), FakeLease()
    limits = LIMITS._replace(release_wait_s=0.2)
    async with run_replica(fake, lease=owner) as first, run_replica(fake, limits, late) as second:
        await elect_shard(first)
        second.runtime.elect(0, release_expected=True)
        # The second coordinator now waits for the release. Before it claims the shard, it checks the
        # lease again.
        await asyncio.sleep(0)
        late.fresh = False
        await second.wait_until(lambda: shard_status(second) != "LOADING")
        assert await first.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        assert (shard_status(second), owner.taken) == ("FAILED", [])


async def test_log_without_an_owner_needs_no_release() -> None:
    limits = LIMITS._replace(release_wait_s=3_600.0)
    async with run_replica(KafkaInMemory(), limits) as driver:
        await elect_shard(driver, release_expected=True)


async def test_shard_resigned_and_elected_repeatedly_becomes_active() -> None:
    async with run_replica(KafkaInMemory()) as driver:
        await elect_shard(driver)
        assert await driver.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        driver.runtime.resign(0)
        driver.runtime.elect(0)
        driver.runtime.resign(0)
        driver.runtime.elect(0)
        await driver.wait_until(lambda: shard_status(driver) == "ACTIVE")
        assert owner_epoch(driver) == 2
        assert await driver.request_error_code(WRITE, make_write((0, 4, ACKNOWLEDGED, 1))) == ErrorCode.NONE


async def test_shard_resigned_while_loading_is_not_served() -> None:
    async with run_replica(KafkaInMemory()) as driver:
        driver.runtime.elect(0)
        asking = driver.send_request(INITIALIZE, make_initialize())
        driver.runtime.resign(0)
        assert (await asking)[0].error_code == ErrorCode.NOT_COORDINATOR
        await driver.wait_until(lambda: not driver.runtime.resigning_shards)
        assert shard_status(driver) == "CLOSED"
        await elect_shard(driver)
        assert await driver.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE


async def test_claim_of_an_ended_ownership_is_not_loaded_for_the_next_one() -> None:
    fake = KafkaInMemory()
    async with run_replica(fake) as driver:
        reads, may_read = driver.log.read, asyncio.Event()

        async def read_when_allowed(
            state_partitions: Collection[int],
        ) -> AsyncIterator[list[LoggedBatch]]:
            if isinstance(state_partitions, dict):
                # Only the loader passes a dict; the read of a release is not delayed.
                await may_read.wait()
            async for chunk in reads(state_partitions):
                yield chunk

        driver.log.read = read_when_allowed  # type: ignore[method-assign]
        driver.runtime.elect(0)
        await driver.wait_until(lambda: owner_epoch(driver) == 1)
        driver.runtime.resign(0)
        driver.runtime.elect(0)
        await driver.wait_until(lambda: not driver.runtime.resigning_shards)
        fake.requests.clear()
        await driver.wait_until(lambda: "produce" in [api for api, _ in fake.requests])
        # The second claim has been sent while the first ownership is still loading.
        driver.runtime.resign(0)
        driver.runtime.elect(0)
        await driver.wait_until(lambda: owner_epoch(driver) == 2)
        assert driver.runtime.resigning_shards
        driver.runtime.resign(0)
        await driver.wait_until(lambda: not driver.runtime.resigning_shards)
        may_read.set()
        await asyncio.sleep(0.05)
        assert (shard_status(driver), driver.runtime.owned_shards(), driver.runtime.health()) == (
            "CLOSED",
            [],
            [],
        )
        await elect_shard(driver)
        assert await driver.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE


async def test_claim_sent_before_a_resignation_is_released() -> None:
    fake = KafkaInMemory()
    limits = LIMITS._replace(release_wait_s=3_600.0)
    async with run_replica(fake, LIMITS._replace(release_timeout_s=0.0)) as crashed:
        await elect_shard(crashed)
    async with run_replica(fake) as second, run_replica(fake, limits) as third:
        fake.requests.clear()
        second.runtime.elect(0)
        await second.wait_until(lambda: "produce" in [api for api, _ in fake.requests])
        second.runtime.resign(0)
        await elect_shard(third, release_expected=True)
        assert owner_epoch(third) == 3


async def test_resigned_coordinator_sends_no_claim() -> None:
    fake, lease = KafkaInMemory(), FakeLease()
    async with run_replica(fake) as first, run_replica(fake, lease=lease) as second:
        fake.set_down(1, 2, 3)
        first.runtime.elect(0)
        await asyncio.sleep(0.5)
        first.runtime.resign(0)
        fake.set_down()
        await elect_shard(second)
        await first.wait_until(lambda: not first.runtime.resigning_shards)
        assert await second.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        assert (lease.taken, owner_epoch(second)) == ([], 1)


async def test_hand_over_before_an_earlier_lease_ends_adds_no_wait() -> None:
    fake = KafkaInMemory()
    async with run_replica(fake) as cut_off, run_replica(fake) as second, run_replica(fake) as third:
        await elect_shard(cut_off)
        began_s = loop_time()
        second.runtime.elect(0)
        await second.wait_until(lambda: owner_epoch(second) == 2)
        second.runtime.resign(0)
        await elect_shard(third, release_expected=True)
        lease_s = KafkaLogLimits().lease_s
        assert lease_s <= loop_time() - began_s < 1.5 * lease_s
        assert await third.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE


async def test_stop_releases_owned_shards() -> None:
    fake = KafkaInMemory()
    async with run_replica(fake) as first:
        await elect_shard(first)
    async with run_replica(fake, LIMITS._replace(release_wait_s=3_600.0)) as second:
        await elect_shard(second, release_expected=True)


async def test_stop_does_not_wait_for_an_unreachable_kafka() -> None:
    fake = KafkaInMemory()
    async with run_replica(fake, LIMITS._replace(release_timeout_s=0.05)) as driver:
        await elect_shard(driver)
        fake.lose_produce(requests=1_000_000)


@pytest.mark.slow
async def test_nothing_is_claimed_without_a_fresh_lease() -> None:
    fake, lease = KafkaInMemory(), FakeLease()
    async with run_replica(fake, lease=lease) as away, run_replica(fake) as other:
        await elect_shard(away)
        # The log does not respond, so that the shard reloads; meanwhile another coordinator gets it.
        fake.set_down(1, 2, 3)
        assert await away.request_error_code(INITIALIZE, make_initialize()) != ErrorCode.NONE
        lease.fresh = False
        await away.wait_until(lambda: shard_status(away) != "ACTIVE")
        fake.set_down()
        await elect_shard(other)
        assert owner_epoch(other) == 2
        await away.wait_until(lambda: "claims no shards" in " ".join(away.runtime.health()))
        assert await other.request_error_code(INITIALIZE, make_initialize()) == ErrorCode.NONE
        lease.fresh = True
        await away.wait_until(lambda: shard_status(away) == "ACTIVE")
        assert owner_epoch(away) == 3
