"""Requested snapshots and pruning: small portions between client requests, progress and errors."""

import asyncio

import pytest

from coordinator.errors import LogOutcomeUnknown, OperationFailed
from coordinator.serve.runtime import RuntimeLimits
from coordinator.serve.service import INITIALIZE, WRITE
from protocol.state_records import SharePartitionKey
from tests.builders import ACKNOWLEDGED, KEY, TOPIC_ID, make_initialize, make_write, unpack_batches
from tests.simulation.loop import run
from tests.unit.runtime.test_runtime import run_driver

pytestmark = pytest.mark.run_with(function=run)


def make_key(partition: int) -> SharePartitionKey:
    return SharePartitionKey("group", TOPIC_ID, partition)


async def test_snapshots_are_written_in_portions_between_client_writes() -> None:
    async with run_driver(RuntimeLimits(job_records_max=2)) as one:
        one.log.blocking = False
        await one.send_request(INITIALIZE, *(make_initialize(partition=number) for number in range(2, 5)))
        await one.request_error_code(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
        one.log.blocking = True
        ordering = asyncio.ensure_future(
            one.runtime.jobs.snapshot_now(0, [make_key(number) for number in range(5)])
        )
        await one.wait_until(lambda: one.log.held)
        # A write that arrives meanwhile is appended together with the next portion.
        answer = one.send_request(WRITE, make_write((5, 9, ACKNOWLEDGED, 1)))
        one.log.release_appends()
        await one.wait_until(lambda: one.log.held)
        one.log.release_appends()
        assert (await answer)[0].error_code == 0
        one.log.blocking = False
        one.log.release_appends()
        assert await ordering == 5
        state = one.runtime.share_partition(KEY)
        assert state is not None
        assert unpack_batches(state.batches) == [(0, 9, ACKNOWLEDGED, 1)]
        assert state.snapshot_epoch == 1


async def test_large_snapshot_is_a_portion_of_its_own() -> None:
    async with run_driver(RuntimeLimits(job_bytes_max=1)) as one:
        one.log.blocking = False
        await one.send_request(INITIALIZE, *(make_initialize(partition=number) for number in range(2, 5)))
        one.log.blocking = True
        ordering = asyncio.ensure_future(
            one.runtime.jobs.snapshot_now(0, [make_key(number) for number in range(5)])
        )
        for _ in range(5):
            await one.wait_until(lambda: one.log.held)
            ((_, records, _, _),) = one.log.held
            assert len(records) == 1
            one.log.release_appends()
        assert await ordering == 5


async def test_share_partition_without_state_is_omitted() -> None:
    async with run_driver() as one:
        one.log.blocking = False
        assert await one.runtime.jobs.snapshot_now(0, [make_key(0), make_key(77), make_key(1)]) == 2
        assert await one.runtime.jobs.snapshot_now(0, [make_key(77)]) == 0
        assert await one.runtime.jobs.snapshot_now(0, []) == 0


async def test_failed_snapshot_request_reports_its_progress() -> None:
    async with run_driver(RuntimeLimits(job_records_max=1)) as one:
        ordering = asyncio.ensure_future(one.runtime.jobs.snapshot_now(0, [make_key(0), make_key(1)]))
        await one.wait_until(lambda: one.log.held)
        one.log.release_appends()
        await one.wait_until(lambda: one.log.held)
        one.log.fail_appends(LogOutcomeUnknown("fsync failed"))
        with pytest.raises(OperationFailed, match=r"1 of 2 snapshots were written: .*fsync failed"):
            await ordering


async def test_shard_that_is_not_owned_is_not_pruned() -> None:
    async with run_driver() as one:
        one.runtime.jobs.prune_now(0)
        one.runtime.resign(0)
        with pytest.raises(OperationFailed, match="shard 0 is CLOSED"):
            one.runtime.jobs.prune_now(0)
        with pytest.raises(OperationFailed, match="0 of 1 snapshots were written"):
            await one.runtime.jobs.snapshot_now(0, [make_key(0)])
