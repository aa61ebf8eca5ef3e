"""Pruning and compaction: when they are done, and that they end."""

import asyncio

from coordinator.errors import LogOutcomeUnknown
from coordinator.metrics import Metrics
from coordinator.runtime import RuntimeLimits
from coordinator.runtime.maintenance import MaintenanceJobs
from coordinator.service import WRITE
from tests.builders import ACKNOWLEDGED, KEY, write
from tests.simulation.loop import run
from tests.unit.runtime.blocking_log import BlockingLog
from tests.unit.runtime.test_runtime import StandingClock, driven


def test_pruning_and_compaction_leave_the_state_as_it_was() -> None:
    async def scenario() -> None:
        async with driven() as one:
            one.log.blocking = False
            for n in range(600):
                await one.ask(WRITE, write((2 * n, 2 * n, ACKNOWLEDGED, 1), start_offset=n))
            before = one.runtime.share_partition(KEY)
            one.clock.ms += 4_000_000
            await one.runtime.jobs.snapshot_cold()
            await one.runtime.jobs.prune()
            assert one.log.start_offset(0) > 500
            lost = one.ask(WRITE, write())
            one.log.blocking = True
            await one.until(lambda: one.log.held)
            one.log.fail(LogOutcomeUnknown("lost"))
            await lost
            await one.until(lambda: one.runtime.health() == [])
            after = one.runtime.share_partition(KEY)
            assert before is not None
            assert after is not None
            assert after.batches == before.batches

    run(scenario())


def test_a_log_that_is_well_and_not_too_big_is_pruned_in_its_own_interval_only() -> None:
    async def scenario() -> None:
        async with driven() as one:
            one.log.blocking = False
            for n in range(600):
                await one.ask(WRITE, write((2 * n, 2 * n, ACKNOWLEDGED, 1), start_offset=n))
            await one.runtime.jobs.compact()
            assert one.log.start_offset(0) == 0
            # But one whose disk may be full.
            one.log.unhealthy = "disk full"
            await one.runtime.jobs.compact()
            assert one.log.start_offset(0) > 0

    run(scenario())


def test_compaction_writes_anew_what_was_there_and_leaves_the_rest_for_its_next_turn() -> None:
    async def scenario() -> None:
        async with driven() as one:
            one.log.blocking = False
            await one.ask(WRITE, write(), write(partition=1))
            before = one.log.end_offset(0)
            # A log that never gets small enough.
            one.log.pinned = lambda live_bytes: {0: one.log.end_offset(0)}
            await asyncio.wait_for(one.runtime.jobs.compact(), 10)
            assert one.log.end_offset(0) == before + 2

    run(scenario())


def test_a_job_that_fails_is_tried_again_and_takes_no_other_along() -> None:
    async def scenario() -> None:
        log, tried, again = BlockingLog(1), [], asyncio.Event()

        def pinned(live_bytes: int) -> dict[int, int]:
            tried.append(live_bytes)
            if len(tried) > 1:
                again.set()
            raise RuntimeError("a defect")

        log.pinned = pinned
        jobs = MaintenanceJobs(
            (),
            log=log,
            clock=StandingClock(),
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

    run(scenario())
