"""Group commit: the rule that delays a commit, and its effect on concurrent callers."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.log.journal import Journal
from coordinator.serve.runtime.group_commit import LINGER_S, GroupCommitLinger
from coordinator.serve.service import INITIALIZE, READ, WRITE, Rpc, Service
from protocol.errors import ErrorCode
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import write_share_group_state as write_api
from protocol.routing import state_partition
from tests.builders import ACKNOWLEDGED, KEY, TOPIC_ID, make_initialize, make_read, make_write
from tests.simulation.disk import DiskFaults
from tests.simulation.loop import SimLoop
from tests.unit.log.environments import STATE_PARTITIONS, SimulatedEnvironment
from tests.unit.runtime.runtime_without_jobs import make_runtime


class LingerDriver:
    """A GroupCommitLinger whose clock the test sets, in microseconds."""

    def __init__(self) -> None:
        self.now_us = 1_000
        self.rule = GroupCommitLinger(lambda: self.now_us / 1e6)

    def commit(self, operations: int, waiting: int = 0, took_us: int = 200) -> None:
        """Run a commit with the given operations; `waiting` operations arrive before its end."""
        self.rule.commit_started(operations, behind=False)
        self.now_us += took_us
        self.rule.commit_finished(waiting)

    def should_wait_after(self, waiting: int, after_us: int = 0) -> bool:
        self.now_us += after_us
        return self.rule.should_wait(waiting)


def test_first_commit_does_not_wait() -> None:
    assert not LingerDriver().should_wait_after(1)


def test_commit_for_one_caller_does_not_wait() -> None:
    one = LingerDriver()
    for _ in range(10):
        one.commit(1)
        assert not one.should_wait_after(1, after_us=50)


def test_commit_waits_for_answered_and_waiting_clients() -> None:
    one = LingerDriver()
    one.commit(4, waiting=4)
    assert one.should_wait_after(4)
    assert one.should_wait_after(5, after_us=10)
    assert one.should_wait_after(7, after_us=10)
    assert not one.should_wait_after(8, after_us=10)


@pytest.mark.parametrize(
    ("took_us", "linger_us"), [(200, 100), (20_000, round(LINGER_S * 1e6)), (2_000, round(LINGER_S * 1e6))]
)
def test_linger_ends_after_a_bounded_time_without_arrivals(took_us: int, linger_us: int) -> None:
    one = LingerDriver()
    one.commit(8, took_us=took_us)
    assert one.should_wait_after(0, after_us=linger_us - 1)
    assert one.should_wait_after(1, after_us=2)
    # An arrival restarts the time limit.
    assert one.should_wait_after(1, after_us=linger_us - 1)
    assert not one.should_wait_after(1, after_us=2)
    # The commit does not wait if all expected operations have arrived.
    assert not one.should_wait_after(2)


def test_queued_appends_do_not_count_as_answered() -> None:
    one = LingerDriver()
    one.rule.commit_started(3, behind=False)
    one.rule.commit_started(5, behind=True)
    one.rule.commit_finished(0)
    one.rule.commit_finished(0)
    assert one.should_wait_after(4)
    assert not one.should_wait_after(5)


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(0, 99), st.integers(1, 10_000))))
def test_only_the_last_commit_affects_the_linger(history: list[tuple[int, int, int]]) -> None:
    one, fresh = LingerDriver(), LingerDriver()
    for operations, waiting, took_us in history:
        one.commit(operations, waiting, took_us)
        one.should_wait_after(waiting)
    one.commit(8, 2)
    fresh.commit(8, 2)
    for waiting, after_us in ((2, 10), (3, 90), (3, 90), (3, 20), (9, 10)):
        assert one.should_wait_after(waiting, after_us) == fresh.should_wait_after(waiting, after_us)


class ConcurrentCallers:
    """A runtime over a journal on a simulated disk, and callers that write in a closed loop."""

    def __init__(self, world: SimulatedEnvironment) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.loop = loop
        self.journal: Journal = world.journal(segment_bytes=1 << 20)
        self.runtime = make_runtime(self.journal, STATE_PARTITIONS, clock=self)
        self.service = Service(self.runtime)
        self.latency_s = 0.0

    def now_ms(self) -> int:
        """Return the time of the event loop; this object is also the clock of the runtime."""
        return int(self.loop.time() * 1000)

    @property
    def commits(self) -> int:
        return self.journal._next_commit

    async def wait_until_committing(self) -> None:
        # A linger may delay the commit until callers that just got a response have sent their next write.
        for _ in range(10_000):
            if self.journal.committing:
                return
            await asyncio.sleep(0)
        pytest.fail("no commit begins")

    async def ask(self, rpc: Rpc, request: object) -> list[int]:
        done: asyncio.Future[list[int]] = self.loop.create_future()
        self.service.handle(
            rpc,
            request,
            None,
            lambda response: done.set_result([part.error_code for part in response.results[0].partitions]),
        )
        return await done

    async def initialize(self, caller: int) -> None:
        topics = [initialize_api.InitializeStateData(TOPIC_ID, [make_initialize()])]
        await self.ask(
            INITIALIZE, initialize_api.InitializeShareGroupStateRequest(f"caller {caller}", topics)
        )

    async def write(self, caller: int, turn: int) -> list[int]:
        topics = [
            write_api.WriteStateData(TOPIC_ID, [make_write((turn, turn, ACKNOWLEDGED, 1), start_offset=turn)])
        ]
        return await self.ask(WRITE, write_api.WriteShareGroupStateRequest(f"caller {caller}", topics))

    async def call(self, caller: int, writes: range, pause_s: Callable[[], float]) -> None:
        for turn in writes:
            asked_s = self.loop.time()
            assert await self.write(caller, turn) == [0]
            self.latency_s += self.loop.time() - asked_s
            await asyncio.sleep(pause_s())


def run_callers(
    main: Callable[[ConcurrentCallers, SimulatedEnvironment], Awaitable[None]],
    faults: DiskFaults,
    callers: int,
) -> None:
    world = SimulatedEnvironment(faults=faults)

    async def scenario() -> None:
        one = ConcurrentCallers(world)
        await one.runtime.start()
        await asyncio.gather(*(one.initialize(caller) for caller in range(callers)))
        await main(one, world)
        await one.runtime.stop()

    world.run(scenario())


def test_simultaneous_callers_share_each_commit() -> None:
    callers, writes = 8, 200

    async def main(one: ConcurrentCallers, world: SimulatedEnvironment) -> None:
        async def call_concurrently(turns: range) -> None:
            pauses = [0.00002 * (1 + caller) for caller in range(callers)]
            await asyncio.gather(
                *(one.call(caller, turns, partial(float, pauses[caller])) for caller in range(callers))
            )

        await call_concurrently(range(10))
        before = one.commits
        await call_concurrently(range(1_000, 1_000 + writes))
        # If only half of the callers shared a commit, the number would be twice as large.
        assert one.commits - before < writes * 1.2

    run_callers(main, DiskFaults(write_s=0.00001, sync_s=0.001), callers)


@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [0.001, 0.004])
def test_linger_adds_little_latency_for_random_callers(
    pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers, writes = 12, 400
    latencies_s = []

    async def main(one: ConcurrentCallers, world: SimulatedEnvironment) -> None:
        rng = Random(7)
        await asyncio.gather(
            *(
                one.call(caller, range(writes), lambda: rng.expovariate(1 / pause_s))
                for caller in range(callers)
            )
        )
        latencies_s.append(one.latency_s / callers / writes)

    run_callers(main, DiskFaults(sync_s=0.001), callers)
    monkeypatch.setattr(Journal, "set_commit_callback", lambda self, over: False)
    run_callers(main, DiskFaults(sync_s=0.001), callers)
    waiting_s, never_s = latencies_s
    assert waiting_s < never_s * 1.1


def caller_in_another_shard(caller: int) -> int:
    """Return a caller whose group belongs to another shard than that of the given caller."""
    keys = [KEY._replace(group_id=f"caller {each}") for each in range(8)]
    shards = [state_partition(key, STATE_PARTITIONS) for key in keys]
    return next(each for each in range(8) if shards[each] != shards[caller])


@pytest.mark.parametrize("faults", [[], ["write"], ["sync"], ["sync", "prepare"]])
def test_operations_waiting_for_a_failed_commit_are_answered(
    faults: list[str],
) -> None:
    async def main(one: ConcurrentCallers, world: SimulatedEnvironment) -> None:
        # Remove the spare segment, so that a fault can hit its creation.
        one.journal._segments._spare = None
        world.storage.next_faults = list(faults)
        first = asyncio.ensure_future(one.write(0, 1))
        await one.wait_until_committing()
        other = asyncio.ensure_future(one.write(caller_in_another_shard(0), 1))
        async with asyncio.timeout(0.5):
            codes = await asyncio.gather(first, other)
        if "prepare" in faults:
            # The outcome of the first write is unknown; the second was not written.
            assert codes == [[ErrorCode.NOT_COORDINATOR], [ErrorCode.COORDINATOR_NOT_AVAILABLE]]
        else:
            assert codes == [[ErrorCode.NONE]] * 2

    run_callers(main, DiskFaults(write_s=0.001, sync_s=0.001), 8)


def test_reads_do_not_wait_for_a_commit() -> None:
    async def main(one: ConcurrentCallers, world: SimulatedEnvironment) -> None:
        writing = asyncio.ensure_future(one.write(0, 5))
        await one.wait_until_committing()
        for caller in range(1, 8):
            topics = [read_api.ReadStateData(TOPIC_ID, [make_read()])]
            assert await one.ask(READ, read_api.ReadShareGroupStateRequest(f"caller {caller}", topics)) == [0]
        assert not writing.done()
        assert await writing == [0]

    run_callers(main, DiskFaults(sync_s=1.0), 8)
