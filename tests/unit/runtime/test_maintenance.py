"""Pruning and compaction: preconditions, effect and termination."""

import asyncio

import pytest

from coordinator.client.rpcs import INITIALIZE, WRITE
from coordinator.errors import LogOutcomeUnknown
from coordinator.metrics import Metrics
from coordinator.serve.runtime import RuntimeLimits
from coordinator.serve.runtime.maintenance import MaintenanceJobs
from tests.builders import ACKNOWLEDGED, KEY, make_initialize, make_write, unpack_batches
from tests.manual_clock import ManualClock
from tests.simulation.loop import run
from tests.unit.runtime.blocking_log import BlockingLog
from tests.unit.runtime.test_runtime import run_driver

pytestmark = pytest.mark.run_with(function=run)


async def test_pruning_and_compaction_keep_the_state() -> None:
    async with run_driver() as driver:
        driver.log.blocking = False
        for n in range(600):
            await driver.send_request(WRITE, make_write((2 * n, 2 * n, ACKNOWLEDGED, 1), start_offset=n))
        before = driver.runtime.share_partition(KEY)
        driver.clock.ms += 4_000_000
        of_job = ("share_coordinator_snapshots_total", {"kind": "job"})
        assert driver.metrics.registry.get_sample_value(*of_job) is None
        await driver.runtime.jobs.snapshot_cold()
        assert driver.metrics.registry.get_sample_value(*of_job) == 2
        await driver.runtime.jobs.prune()
        assert driver.log.start_offset(0) > 500
        lost = driver.send_request(WRITE, make_write())
        driver.log.blocking = True
        await driver.wait_until(lambda: driver.log.held)
        driver.log.fail_appends(LogOutcomeUnknown("lost"))
        await lost
        await driver.wait_until(lambda: driver.runtime.health() == [])
        after = driver.runtime.share_partition(KEY)
        assert before is not None
        assert after is not None
        assert after.batches == before.batches


async def test_compaction_does_not_prune_a_healthy_small_log() -> None:
    async with run_driver() as driver:
        driver.log.blocking = False
        for n in range(600):
            await driver.send_request(WRITE, make_write((2 * n, 2 * n, ACKNOWLEDGED, 1), start_offset=n))
        await driver.runtime.jobs.compact()
        assert driver.log.start_offset(0) == 0
        # Compaction prunes if the log accepts no appends, because the disk may be full.
        driver.log.unhealthy = "disk full"
        await driver.runtime.jobs.compact()
        assert driver.log.start_offset(0) > 0


async def test_compaction_rewrites_each_state_once_and_then_waits_for_its_next_run() -> None:
    async with run_driver() as driver:
        driver.log.blocking = False
        await driver.send_request(WRITE, make_write(), make_write(partition=1))
        before = driver.log.end_offset(0)
        # This log always reports pinned records, so that compaction never reaches its goal.
        driver.log.prune_offsets_freeing_storage = lambda live_bytes: {0: driver.log.end_offset(0)}
        await asyncio.wait_for(driver.runtime.jobs.compact(), 10)
        assert driver.log.end_offset(0) == before + 2


@pytest.mark.parametrize("growth", [1, 3])
async def test_clients_write_between_the_steps_of_a_job(growth: int) -> None:
    async with run_driver(RuntimeLimits(job_records_max=2)) as driver:
        driver.log.blocking = False
        await driver.send_request(INITIALIZE, *(make_initialize(partition=number) for number in range(2, 5)))
        await driver.send_request(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
        driver.log.blocking = True
        end = driver.log.end_offset(0)
        driver.log.prune_offsets_freeing_storage = lambda live_bytes: {0: end}
        sizes = [1000, *4 * [1000 * growth]]
        driver.log.size_bytes = lambda: sizes.pop(0)
        compacting = asyncio.ensure_future(driver.runtime.jobs.compact())
        released_s = []
        # A write that arrives during a step is appended alone, in the pause after the step.
        for appended in (2, 1, 2, 1):
            await driver.wait_until(lambda: driver.log.held)
            ((_, records, _, _),) = driver.log.held
            assert len(records) == appended
            if not released_s:
                answer = driver.send_request(WRITE, make_write((5, 9, ACKNOWLEDGED, 1)))
            released_s.append(asyncio.get_running_loop().time())
            driver.log.release_appends()
        # The pause is shorter if the log has grown since the start of the job.
        pause_s = RuntimeLimits().job_pause_s / growth
        assert pause_s <= released_s[3] - released_s[2] < 1.5 * pause_s
        assert (await answer)[0].error_code == 0
        driver.log.blocking = False
        await compacting
        state = driver.runtime.share_partition(KEY)
        assert state is not None
        assert unpack_batches(state.batches) == [(0, 9, ACKNOWLEDGED, 1)]


async def test_shard_that_is_not_owned_is_not_pruned() -> None:
    async with run_driver() as driver:
        driver.log.blocking = False
        for n in range(10):
            await driver.send_request(WRITE, make_write(start_offset=n))
        driver.clock.ms += 4_000_000
        await driver.runtime.jobs.snapshot_cold()
        redundant_offset = driver.runtime.shard_views()[0].redundant_offset
        assert redundant_offset > 0
        driver.runtime.resign(0)
        await driver.runtime.jobs.prune()
        assert driver.log.start_offset(0) == 0
        assert 0 not in driver.metrics.prune_offsets


async def test_failing_job_is_retried_and_stops_no_other_job() -> None:
    log, tried, again = BlockingLog(1), [], asyncio.Event()

    def raise_once(live_bytes: int) -> dict[int, int]:
        tried.append(live_bytes)
        if len(tried) > 1:
            again.set()
        raise RuntimeError("a defect")

    log.prune_offsets_freeing_storage = raise_once
    jobs = MaintenanceJobs(
        (),
        log=log,
        clock=ManualClock(),
        metrics=Metrics(),
        limits=RuntimeLimits(compaction_interval_s=0.001),
        cold_interval_ms=3_600_000,
        prune_interval_ms=3_600_000,
    )
    running, waiting = asyncio.create_task(jobs.run()), asyncio.create_task(again.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert not running.done()
    running.cancel()
    waiting.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
