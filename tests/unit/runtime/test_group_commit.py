"""Group commit: the rule that delays a commit, and its effect on concurrent callers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import fastpath
from coordinator.client.rpcs import INITIALIZE, READ, WRITE
from coordinator.log.journal import Journal
from coordinator.process import event_loop
from coordinator.serve.runtime import RuntimeLimits
from coordinator.serve.runtime.group_commit import LINGER_S, GroupCommitLinger, LingerTimer
from protocol.errors import ErrorCode
from protocol.routing import state_partition
from tests.builders import ACKNOWLEDGED, KEY, make_initialize, make_read, make_write
from tests.simulation.disk import DiskFaults
from tests.unit.log.environments import STATE_PARTITIONS, SimulatedEnvironment
from tests.unit.runtime.test_runtime import RuntimeDriver


class LingerDriver:
    """A GroupCommitLinger in virtual time, in microseconds."""

    def __init__(self) -> None:
        self.ended = 0
        self.rule = GroupCommitLinger(self._on_linger_ended)

    def _on_linger_ended(self) -> None:
        self.ended += 1

    async def commit(self, operations: int, took_us: int = 200) -> None:
        self.rule.commit_started(operations)
        await asyncio.sleep(took_us / 1e6)
        self.rule.commit_finished()

    async def arrive(self, operations: int = 1, after_us: int = 0) -> bool:
        """Let operations arrive; return whether their commit must wait."""
        await asyncio.sleep(after_us / 1e6)
        for _ in range(operations):
            if self.rule.missing:
                self.rule.operation_arrived()
        return self.rule.must_wait()


def run_in_virtual_time(test: Coroutine[Any, Any, None]) -> None:
    SimulatedEnvironment().run(test)


in_virtual_time = pytest.mark.run_with(function=run_in_virtual_time)


@in_virtual_time
async def test_first_commit_does_not_wait() -> None:
    driver = LingerDriver()
    assert not await driver.arrive()


@in_virtual_time
async def test_commit_for_one_caller_does_not_wait() -> None:
    driver = LingerDriver()
    for _ in range(10):
        await driver.commit(1)
        assert not await driver.arrive(after_us=50)


@in_virtual_time
async def test_commit_waits_until_as_many_operations_arrive_as_were_answered() -> None:
    driver = LingerDriver()
    await driver.commit(4)
    assert await driver.arrive(1)
    assert await driver.arrive(2, after_us=10)
    assert not driver.ended
    assert not await driver.arrive(1, after_us=10)
    assert driver.ended == 1
    await asyncio.sleep(1)
    assert driver.ended == 1


@in_virtual_time
@pytest.mark.parametrize(
    ("took_us", "linger_us"), [(200, 100), (20_000, round(LINGER_S * 1e6)), (2_000, round(LINGER_S * 1e6))]
)
async def test_linger_ends_after_a_bounded_time_without_arrivals(took_us: int, linger_us: int) -> None:
    driver = LingerDriver()
    await driver.commit(8, took_us)
    assert await driver.arrive()
    # The arrival of an operation restarts the time limit of the linger.
    assert await driver.arrive(after_us=linger_us - 1)
    await asyncio.sleep((linger_us - 1) / 1e6)
    assert driver.rule.must_wait()
    await asyncio.sleep((linger_us + 4) / 1e6)
    assert driver.ended == 1
    assert not driver.rule.must_wait()


@in_virtual_time
async def test_operation_that_arrives_late_does_not_wait() -> None:
    driver = LingerDriver()
    await driver.commit(8, took_us=200)
    assert not await driver.arrive(after_us=101)


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(0, 99), st.integers(1, 10_000))))
def test_only_the_last_commit_affects_the_linger(history: list[tuple[int, int, int]]) -> None:
    async def record_waits(driver: LingerDriver) -> list[bool]:
        await driver.commit(8)
        return [await driver.arrive(*arrival) for arrival in ((2, 10), (1, 90), (0, 90), (0, 120), (9, 10))]

    async def compare_with_a_new_linger() -> None:
        driver = LingerDriver()
        expected = await record_waits(LingerDriver())
        for operations, arrivals, took_us in history:
            await driver.commit(operations, took_us)
            await driver.arrive(arrivals)
        while driver.rule.must_wait():  # noqa: ASYNC110
            await asyncio.sleep(LINGER_S)
        assert await record_waits(driver) == expected

    run_in_virtual_time(compare_with_a_new_linger())


@pytest.mark.skipif(fastpath.compiled is None, reason="the timer is compiled")
def test_linger_timer_fires_in_less_than_a_millisecond_on_uvloop() -> None:
    async def measure_shortest_time() -> float:
        loop = asyncio.get_running_loop()
        times_s = []
        for _ in range(20):
            fired: asyncio.Future[None] = loop.create_future()
            timer = LingerTimer(partial(fired.set_result, None))
            started_s = loop.time()
            timer.start(0.0002)
            await fired
            times_s.append(loop.time() - started_s)
            loop.remove_reader(timer._system_timer.file)
        return min(times_s)

    assert 0.0002 <= event_loop.run(measure_shortest_time()) < 0.001


@pytest.mark.skipif(fastpath.compiled is None, reason="the timer is compiled")
@pytest.mark.run_with(function=event_loop.run)
async def test_stopped_linger_timer_does_not_fire() -> None:
    fired: list[int] = []
    timer = LingerTimer(lambda: fired.append(1))
    timer.start(0.001)
    timer.stop()
    await asyncio.sleep(0.01)
    assert not fired


class ConcurrentCallers(RuntimeDriver):
    """A runtime over a journal on a simulated disk, and callers that write in a closed loop."""

    def __init__(self, environment: SimulatedEnvironment) -> None:
        self.journal: Journal = environment.journal(segment_bytes=1 << 20)
        super().__init__(self.journal, RuntimeLimits(), STATE_PARTITIONS)  # type: ignore[arg-type]
        self.latency_s = 0.0

    @property
    def commit_count(self) -> int:
        return self.journal._next_commit

    async def wait_until_committing(self) -> None:
        # A linger may delay the commit until callers that just got a response have sent their next write.
        for _ in range(10_000):
            if self.journal.committing:
                return
            await asyncio.sleep(0)
        pytest.fail("no commit begins")

    async def write(self, caller: int, turn: int) -> int:
        part = make_write((turn, turn, ACKNOWLEDGED, 1), start_offset=turn)
        return await self.request_error_code(WRITE, part, group=f"caller {caller}")

    async def write_repeatedly(self, caller: int, writes: range, pause_s: Callable[[], float]) -> None:
        for turn in writes:
            loop = asyncio.get_running_loop()
            asked_s = loop.time()
            assert await self.write(caller, turn) == 0
            self.latency_s += loop.time() - asked_s
            await asyncio.sleep(pause_s())


@asynccontextmanager
async def run_callers(environment: SimulatedEnvironment, callers: int) -> AsyncIterator[ConcurrentCallers]:
    """Run a coordinator in which the share-partition of each caller is initialized."""
    driver = ConcurrentCallers(environment)
    await driver.runtime.start()
    for caller in range(callers):
        assert await driver.request_error_code(INITIALIZE, make_initialize(), group=f"caller {caller}") == 0
    yield driver
    await driver.runtime.stop()


@in_virtual_time
async def test_simultaneous_callers_share_each_commit() -> None:
    callers, writes = 8, 200
    environment = SimulatedEnvironment(faults=DiskFaults(write_s=0.00001, sync_s=0.001))
    async with run_callers(environment, callers) as driver:

        async def write_concurrently(turns: range) -> None:
            pauses = [0.00002 * (1 + caller) for caller in range(callers)]
            await asyncio.gather(
                *(
                    driver.write_repeatedly(caller, turns, partial(float, pauses[caller]))
                    for caller in range(callers)
                )
            )

        await write_concurrently(range(10))
        before = driver.commit_count
        await write_concurrently(range(1_000, 1_000 + writes))
        # If only half of the callers shared a commit, the number of commits would be twice as large.
        assert driver.commit_count - before < writes * 1.2


async def measure_latency_s(callers: int, writes: int, pause_s: float) -> float:
    """Return the mean latency of writes whose callers make random pauses."""
    rng = Random(7)
    async with run_callers(SimulatedEnvironment(faults=DiskFaults(sync_s=0.001)), callers) as driver:
        await asyncio.gather(
            *(
                driver.write_repeatedly(caller, range(writes), lambda: rng.expovariate(1 / pause_s))
                for caller in range(callers)
            )
        )
        return driver.latency_s / callers / writes


@pytest.mark.slow
@in_virtual_time
@pytest.mark.parametrize("pause_s", [0.001, 0.004])
async def test_linger_adds_little_latency_for_random_callers(
    pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_linger_s = await measure_latency_s(12, 400, pause_s)
    monkeypatch.setattr(Journal, "set_commit_callback", lambda self, over: False)
    without_linger_s = await measure_latency_s(12, 400, pause_s)
    assert with_linger_s < without_linger_s * 1.1


def caller_in_another_shard(caller: int) -> int:
    """Return a caller whose group belongs to another shard than that of the given caller."""
    keys = [KEY._replace(group_id=f"caller {each}") for each in range(8)]
    shards = [state_partition(key, STATE_PARTITIONS) for key in keys]
    return next(each for each in range(8) if shards[each] != shards[caller])


@in_virtual_time
@pytest.mark.parametrize("faults", [[], ["write"], ["sync"], ["sync", "prepare"]])
async def test_operations_waiting_for_a_failed_commit_are_answered(faults: list[str]) -> None:
    environment = SimulatedEnvironment(faults=DiskFaults(write_s=0.001, sync_s=0.001))
    async with run_callers(environment, 8) as driver:
        # Remove the spare segment, so that a fault can hit its creation.
        driver.journal._segments._spare = None
        environment.storage.next_faults = list(faults)
        first = asyncio.ensure_future(driver.write(0, 1))
        await driver.wait_until_committing()
        other = asyncio.ensure_future(driver.write(caller_in_another_shard(0), 1))
        async with asyncio.timeout(0.5):
            codes = await asyncio.gather(first, other)
        if "prepare" in faults:
            # The outcome of the first write is unknown; the second was not written.
            assert codes == [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE]
        else:
            assert codes == [ErrorCode.NONE] * 2


@in_virtual_time
async def test_reads_do_not_wait_for_a_commit() -> None:
    async with run_callers(SimulatedEnvironment(faults=DiskFaults(sync_s=1.0)), 8) as driver:
        writing = asyncio.ensure_future(driver.write(0, 5))
        await driver.wait_until_committing()
        for caller in range(1, 8):
            assert await driver.request_error_code(READ, make_read(), group=f"caller {caller}") == 0
        assert not writing.done()
        assert await writing == 0
