"""The runtime: responses after durable appends, reads that do not wait, and recovery of failed appends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coordinator.client.rpcs import DELETE, INITIALIZE, READ, WRITE, Rpc
from coordinator.errors import LogDamaged, LogOutcomeUnknown, LogUnavailable
from coordinator.metrics import Metrics
from coordinator.serve.runtime import RuntimeLimits
from coordinator.serve.runtime.operations import AwaitableOperation
from coordinator.serve.service import Service
from coordinator.shard import CoordinatorResult, Shard, SnapshotLimits
from protocol.errors import ErrorCode
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_records import SharePartitionKey
from tests.builders import (
    ACKNOWLEDGED,
    KEY,
    TOPIC_ID,
    execute,
    make_initialize,
    make_read,
    make_write,
    unpack_batches,
)
from tests.manual_clock import ManualClock
from tests.simulation.loop import run
from tests.unit.coroutine_tests import wait_until
from tests.unit.runtime.blocking_log import BlockingLog
from tests.unit.runtime.runtime_without_jobs import make_runtime

pytestmark = pytest.mark.run_with(function=run)

# One shard, so that all operations share it.
STATE_PARTITIONS = 1


class FakeOrigin:
    """A client connection; a test sets `disconnected` to close it."""

    disconnected = False


class RuntimeDriver:
    """A service and a runtime over a log, usually a BlockingLog."""

    def __init__(
        self,
        log: BlockingLog,
        limits: RuntimeLimits,
        state_partitions: int = STATE_PARTITIONS,
        **ownership: Callable[..., Any],
    ) -> None:
        self.log = log
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.runtime = make_runtime(
            log, state_partitions, clock=self.clock, metrics=self.metrics, limits=limits, **ownership
        )
        self.service = Service(self.runtime)

    def send_request(
        self, rpc: Rpc, *parts: Any, origin: FakeOrigin | None = None, group: str = "group"
    ) -> Any:
        """Send a request for one topic; return a future of its partition results."""
        request, topic = {
            INITIALIZE.name: (
                initialize_api.InitializeShareGroupStateRequest,
                initialize_api.InitializeStateData,
            ),
            READ.name: (read_api.ReadShareGroupStateRequest, read_api.ReadStateData),
            WRITE.name: (write_api.WriteShareGroupStateRequest, write_api.WriteStateData),
            DELETE.name: (delete_api.DeleteShareGroupStateRequest, delete_api.DeleteStateData),
        }[rpc.name]
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        execute(
            self.service,
            rpc,
            request(group, [topic(TOPIC_ID, list(parts))]),
            origin,
            lambda response: done.set_result(response.results[0].partitions),
        )
        return done

    async def request_error_code(self, rpc: Rpc, *parts: Any, **more: Any) -> int:
        """Send a request for one share-partition; return its error code."""
        return (await self.send_request(rpc, *parts, **more))[0].error_code

    wait_until = staticmethod(wait_until)


@asynccontextmanager
async def run_driver(
    limits: RuntimeLimits | None = None, *, initialised: bool = True
) -> AsyncIterator[RuntimeDriver]:
    """Run a coordinator whose shard is loaded; by default, share-partitions 0 and 1 are initialized."""
    driver = RuntimeDriver(BlockingLog(STATE_PARTITIONS), limits or RuntimeLimits())
    await driver.runtime.start()
    try:
        await driver.wait_until(lambda: driver.runtime.health() == [])
        if initialised:
            driver.log.blocking = False
            await driver.send_request(INITIALIZE, make_initialize(), make_initialize(partition=1))
            driver.log.blocking = True
        yield driver
    finally:
        driver.log.blocking = False
        driver.log.release_appends()
        await driver.runtime.stop()


@pytest.mark.parametrize("error", [None, LogUnavailable("disk full"), LogOutcomeUnknown("fsync failed")])
async def test_write_is_answered_after_its_append_with_its_outcome(error: Any) -> None:
    async with run_driver() as driver:
        answer = driver.send_request(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
        await driver.wait_until(lambda: driver.log.held)
        assert not answer.done()
        if error is None:
            driver.log.release_appends()
        else:
            driver.log.fail_appends(error)
        expected = ErrorCode.NONE if error is None else error.error_code
        assert (await answer)[0].error_code == expected
        assert driver.metrics.counter_value("append_failures") == (error is not None)


async def test_operations_in_one_run_of_the_commit_scheduler_are_limited() -> None:
    """An operation that runs without compiled code counts as 16, and more for each record that it creates.

    Other shards wait for the next run.
    """

    class RunRecordingLog(BlockingLog):
        def health(self) -> str | None:
            runs.append(0)
            return super().health()

        def append(self, state_partition: int, records: Any, *arguments: Any) -> None:
            runs[-1] += len(records)
            super().append(state_partition, records, *arguments)

    runs = [0]
    driver = RuntimeDriver(RunRecordingLog(4), RuntimeLimits(work_per_run_max=32), 4)
    driver.log.blocking = False
    await driver.runtime.start()
    await driver.wait_until(lambda: driver.runtime.health() == [])
    results = await driver.send_request(INITIALIZE, *(make_initialize(partition=n) for n in range(16)))
    assert [result.error_code for result in results] == [ErrorCode.NONE] * 16
    assert [count for count in runs if count] == [2] * 8

    def snapshot_all(shard: Shard, key: SharePartitionKey, *_: Any) -> CoordinatorResult:
        return CoordinatorResult(
            shard.snapshot_before(100, now_ms=1, limits=SnapshotLimits(9, 1_000_000)), key
        )

    runs[:] = [0]
    steps = [AwaitableOperation(snapshot_all, KEY) for _ in range(4)]
    for runner, step in zip(driver.runtime._runners, steps, strict=True):
        runner.submit(step)
    for step in steps:
        await step.outcome
    assert [count for count in runs if count] == [len(runner.shard) for runner in driver.runtime._runners]
    await driver.runtime.stop()


async def test_operations_and_their_records_are_counted() -> None:
    async with run_driver() as driver:
        driver.log.blocking = False
        await driver.send_request(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
        await driver.send_request(READ, make_read())
        # This read stores its leader epoch.
        await driver.send_request(READ, make_read(leader_epoch=1))
        await driver.send_request(DELETE, delete_api.PartitionData(1))
        metrics = driver.metrics
        assert metrics.counter_value("write_operations") == 2
        assert metrics.counter_value("snapshots", "request") == 2
        assert metrics.counter_value("snapshots", "job") == 0
        for family, count, total in (
            ("append_batch_records", 4, 5),
            ("append_duration_seconds", 4, 0),
            ("shard_load_duration_seconds", STATE_PARTITIONS, 0),
        ):
            counts, found_total = metrics.histogram(family).cumulative_counts()
            assert (counts[-1][1], found_total) == (count, pytest.approx(total, abs=0.9))
        assert sum(view.loaded_records for view in driver.runtime.shard_views()) == 0


async def test_state_equals_the_log_after_a_failed_append() -> None:
    async with run_driver() as driver:
        refused = driver.send_request(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
        await driver.wait_until(lambda: driver.log.held)
        driver.log.fail_appends(LogOutcomeUnknown("lost"))
        await refused
        results = await driver.send_request(READ, make_read())
        assert results[0].error_code == ErrorCode.NONE
        assert results[0].state_batches == b""


async def test_hazard_i_a_read_does_not_wait_for_writes_of_other_share_partitions() -> None:
    async with run_driver() as driver:
        writing = driver.send_request(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
        await driver.wait_until(lambda: driver.log.held)
        assert await driver.request_error_code(READ, make_read(partition=1)) == ErrorCode.NONE
        same = driver.send_request(READ, make_read(partition=0))
        await asyncio.sleep(0)
        assert not same.done(), "the read waits until the write in flight is durable"
        driver.log.release_appends()
        await writing
        assert unpack_batches((await same)[0].state_batches) == [(0, 4, ACKNOWLEDGED, 1)]


async def test_read_waits_for_a_queued_write_of_its_share_partition() -> None:
    async with run_driver() as driver:
        driver.send_request(WRITE, make_write(partition=1))
        await driver.wait_until(lambda: driver.log.held)
        driver.send_request(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
        reading = driver.send_request(READ, make_read())
        driver.log.release_appends()
        await driver.wait_until(lambda: driver.log.held)
        assert not reading.done()
        driver.log.release_appends()
        assert unpack_batches((await reading)[0].state_batches) == [(0, 4, ACKNOWLEDGED, 1)]


async def test_read_without_a_lease_waits_for_an_append() -> None:
    async with run_driver() as driver:
        driver.log.lease_s = 0.0
        reading = driver.send_request(READ, make_read())
        await driver.wait_until(lambda: driver.log.held)
        assert not reading.done()
        assert driver.log.held[0][1] == []
        driver.log.release_appends()
        assert (await reading)[0].error_code == ErrorCode.NONE


async def test_reads_continue_and_writes_are_refused_while_the_log_is_unhealthy() -> None:
    async with run_driver() as driver:
        driver.log.unhealthy = "The disk is full."
        assert await driver.request_error_code(READ, make_read()) == ErrorCode.NONE
        assert await driver.request_error_code(WRITE, make_write()) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        # A read with a newer leader epoch needs an append, so it is refused.
        assert (
            await driver.request_error_code(READ, make_read(leader_epoch=3))
            == ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        assert driver.log.held == []
        assert driver.runtime.health() == ["The disk is full."]
        driver.log.unhealthy = None
        driver.log.blocking = False
        assert await driver.request_error_code(WRITE, make_write()) == ErrorCode.NONE


async def test_operations_queued_during_an_append_share_the_next_one() -> None:
    async with run_driver() as driver:
        first = driver.send_request(WRITE, make_write())
        await driver.wait_until(lambda: driver.log.held)
        rest = [driver.send_request(WRITE, make_write((n, n, ACKNOWLEDGED, 1))) for n in range(5)]
        driver.log.release_appends()
        await first
        await driver.wait_until(lambda: driver.log.held)
        assert [len(records) for _, records, _, _ in driver.log.held] == [5]
        driver.log.release_appends()
        assert {results[0].error_code for results in await asyncio.gather(*rest)} == {ErrorCode.NONE}


async def test_unconfirmed_write_times_out_as_coordinator_not_available() -> None:
    async with run_driver(RuntimeLimits(write_timeout_s=0.3, tick_s=0.005)) as driver:
        assert (
            await driver.request_error_code(WRITE, make_write((0, 4, ACKNOWLEDGED, 1)))
            == ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        driver.log.blocking = False
        driver.log.release_appends()
        # The record is stored nevertheless, as in Kafka.
        assert unpack_batches((await driver.send_request(READ, make_read()))[0].state_batches) == [
            (0, 4, ACKNOWLEDGED, 1)
        ]


async def test_requests_wait_while_loading_up_to_a_time_limit() -> None:
    log = BlockingLog(STATE_PARTITIONS)
    log.blocking = False
    log.read_error = LogDamaged("segment", 7, "noise", "restore it")
    driver = RuntimeDriver(log, RuntimeLimits(load_wait_s=0.05, tick_s=0.005, reload_backoff_first_s=0.01))
    await driver.runtime.start()
    try:
        assert await driver.request_error_code(READ, make_read()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert "restore it" in " ".join(driver.runtime.health())
        log.read_error = None
        # The next load attempt may come after the time limit of a request.
        while (code := await driver.request_error_code(INITIALIZE, make_initialize())) != ErrorCode.NONE:
            assert code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    finally:
        await driver.runtime.stop()


async def test_request_older_than_the_age_limit_is_not_executed() -> None:
    async with run_driver(RuntimeLimits(request_age_max_s=-1.0), initialised=False) as driver:
        assert (
            await driver.request_error_code(INITIALIZE, make_initialize())
            == ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        assert driver.log.held == []


async def test_operation_of_a_disconnected_client_is_dropped() -> None:
    async with run_driver() as driver:
        origin = FakeOrigin()
        driver.send_request(WRITE, make_write(), origin=origin)
        origin.disconnected = True
        await driver.send_request(READ, make_read())
        assert driver.log.held == []


async def test_full_queue_refuses_with_a_retriable_code() -> None:
    async with run_driver(RuntimeLimits(queued_operations_max=2)) as driver:
        waiting = [driver.send_request(WRITE, make_write()) for _ in range(2)]
        refused = driver.send_request(WRITE, make_write())
        # An operation whose time is up gets the same code.
        assert refused.done()
        assert refused.result()[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        driver.log.blocking = False
        driver.log.release_appends()
        await driver.wait_until(lambda: driver.log.held or all(answer.done() for answer in waiting))
        driver.log.release_appends()
        await asyncio.gather(*waiting)


async def test_kafka_20634_an_append_that_ends_after_the_shard_was_closed_is_not_success() -> None:
    async with run_driver() as driver:
        writing = driver.send_request(WRITE, make_write())
        await driver.wait_until(lambda: driver.log.held)
        stopping = asyncio.create_task(driver.runtime.stop())
        await asyncio.sleep(0)
        await driver.wait_until(lambda: driver.runtime.shard_views()[0].status == "CLOSED")
        driver.log.release_appends()
        assert (await writing)[0].error_code == ErrorCode.NOT_COORDINATOR
        await stopping
        assert await driver.request_error_code(READ, make_read()) == ErrorCode.NOT_COORDINATOR


async def test_append_at_an_unexpected_offset_reloads_the_shard() -> None:
    async with run_driver() as driver:
        writing = driver.send_request(WRITE, make_write())
        await driver.wait_until(lambda: driver.log.held)
        ((_, _, _, done),) = driver.log.held
        driver.log.held.clear()
        done(40, None)
        assert (await writing)[0].error_code != ErrorCode.NONE
        await driver.wait_until(lambda: driver.runtime.health() == [])
        assert await driver.request_error_code(READ, make_read()) == ErrorCode.NONE


async def test_duplicate_share_partition_gets_one_result_and_is_atomic() -> None:
    async with run_driver() as driver:
        driver.log.blocking = False
        results = await driver.send_request(
            WRITE, make_write((0, 0, 0, 1)), make_write(partition=1), make_write((1, 1, 0, 1))
        )
        assert [(r.partition, r.error_code) for r in results] == [(0, 0), (1, 0)]
        results = await driver.send_request(
            WRITE, make_write((5, 5, 0, 1), state_epoch=-1), make_write((6, 6, 0, 1))
        )
        assert [r.error_code for r in results] == [ErrorCode.INVALID_REQUEST]
        assert unpack_batches((await driver.send_request(READ, make_read()))[0].state_batches) == [
            (0, 1, 0, 1)
        ]
