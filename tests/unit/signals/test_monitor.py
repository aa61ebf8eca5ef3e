"""The monitor of share groups: values computed by `compute_signals`, and events between two calls."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping

import pytest

from coordinator.observe.signals import GroupSignals, Problem, SignalMonitor, monitor
from coordinator.observe.signals.append_sample import AppendSampler
from coordinator.observe.signals.detectors import SignalEvent
from coordinator.shard import ShareState
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import encode_batch
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.builders import ACKNOWLEDGED, ARCHIVED, AVAILABLE, KEY, BatchTuple, pack_batches
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)

NOW_MS = 1_000_000_000
# The number of the state partition of KEY, if there are two state partitions.
NUMBER = state_partition(KEY, 2)


def make_state(*batches: BatchTuple, start_offset: int = 0, complete: int = 0) -> ShareState:
    return ShareState(
        start_offset=start_offset, batches=pack_batches(*batches), delivery_complete_count=complete
    )


def find_key_of_other_shard(group_id: str) -> SharePartitionKey:
    """Return a key of a group that is not in the shard of KEY."""
    keys = (SharePartitionKey(group_id, KEY.topic_id, number) for number in range(100))
    return next(key for key in keys if state_partition(key, 2) != NUMBER)


class FakeStateView:
    """A fake of the part of `StateView` that the monitor uses."""

    state_partitions = 2

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, ShareState] = {}
        self.outdated: set[int] = set()
        self.shards = [0, 1]

    def owned_shards(self) -> list[int]:
        return self.shards

    def outdated_partitions(self) -> Collection[int]:
        return self.outdated

    async def share_partitions(self) -> AsyncIterator[tuple[SharePartitionKey, ShareState]]:
        for entry in self.states.items():
            yield entry


class FakeTopics:
    """User topics; all partitions have the same log start offset and log end offset."""

    def __init__(self) -> None:
        self.start, self.end = 0, 10
        self.fails = self.is_hidden = False
        self.delay_s = 0.0

    async def end_offsets(self, partitions: Collection[tuple[bytes, int]]) -> Mapping[tuple[bytes, int], int]:
        await asyncio.sleep(self.delay_s)
        if self.fails:
            raise OSError("no broker")
        return {} if self.is_hidden else dict.fromkeys(partitions, self.end)

    async def topic_names(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]:
        if self.fails:
            raise OSError("no broker")
        return {} if self.is_hidden else dict.fromkeys(topic_ids, "parcels")

    async def start_offsets(
        self, partitions: Collection[tuple[bytes, int]]
    ) -> Mapping[tuple[bytes, int], int]:
        return dict.fromkeys(partitions, self.start)

    async def offsets_at_times(
        self, times_ms: Mapping[tuple[bytes, int], int]
    ) -> Mapping[tuple[bytes, int], int]:
        # All records are 100 s old.
        return {each: -1 if time_ms > NOW_MS - 100_000 else 0 for each, time_ms in times_ms.items()}


class MonitorSetup:
    """A monitor with a fake view, fake topics, and a clock that the test sets."""

    def __init__(self, sample: AppendSampler | None = None) -> None:
        self.view, self.topics = FakeStateView(), FakeTopics()
        self.members = 1
        self.now_ms = NOW_MS
        self.events: list[SignalEvent] = []
        self.monitor = SignalMonitor(
            self.view,  # type: ignore[arg-type]
            topics=self.topics,
            members=self._count_members,
            now_ms=lambda: self.now_ms,
            on_event=self.events.append,
            sample=sample,
        )

    async def _count_members(self, groups: Collection[str]) -> Mapping[str, int]:
        return dict.fromkeys(groups, self.members)

    async def compute_signals(
        self, *batches: BatchTuple, start_offset: int = 0, complete: int = 0
    ) -> GroupSignals:
        """Set the state of the share-partition KEY, compute the signals, and return those of its group."""
        self.view.states[KEY] = make_state(*batches, start_offset=start_offset, complete=complete)
        return await self.recompute_signals()

    async def recompute_signals(self) -> GroupSignals:
        """Compute the signals from the present state, and return those of the group of KEY."""
        await self.monitor.compute_signals()
        return self.monitor.groups[KEY.group_id]

    def record_followed_update(self, *batches: BatchTuple, start_offset: int) -> None:
        """Record an update of the share-partition KEY and store the new state."""
        before = self.view.states[KEY]
        record = StateRecord(KEY, ShareUpdateValue(0, 0, start_offset, pack_batches(*batches), 0))
        self.monitor.on_record_followed(KEY, before, record)
        self.view.states[KEY] = make_state(*batches, start_offset=start_offset)


@pytest.fixture
def monitor_setup() -> MonitorSetup:
    return MonitorSetup()


async def test_group_values_combine_those_of_its_share_partitions(monitor_setup: MonitorSetup) -> None:
    monitor_setup.view.states = {
        KEY._replace(partition=1): make_state(complete=0),
        KEY._replace(group_id="other"): make_state(start_offset=10),
    }
    batches = ((0, 1, ACKNOWLEDGED, 1), (2, 3, AVAILABLE, 4), (4, 4, ARCHIVED, 5))
    signals = await monitor_setup.compute_signals(*batches, complete=3)
    assert (signals.share_partitions, signals.lag, signals.in_flight) == (2, 7 + 10, 5)
    assert (signals.redelivered, signals.delivery_count_max) == (3, 5)
    # An archived record is not delivered again, so it is not near the limit.
    assert signals.near_delivery_limit == 2
    assert signals.problem is Problem.POISON
    assert signals.window_usage == pytest.approx(5 / 2_000)
    assert monitor_setup.monitor.groups["other"].lag == 0


async def test_lag_without_delivery_complete_count_uses_state_batches(monitor_setup: MonitorSetup) -> None:
    signals = await monitor_setup.compute_signals((0, 2, ACKNOWLEDGED, 1), (3, 3, AVAILABLE, 1), complete=-1)
    assert signals.lag == 7


async def test_group_with_waiting_records_and_unmoved_start_offset_is_stuck(
    monitor_setup: MonitorSetup,
) -> None:
    await monitor_setup.compute_signals((0, 1, AVAILABLE, 1))
    assert monitor_setup.events == []
    await asyncio.sleep(61)
    await monitor_setup.recompute_signals()
    (event,) = monitor_setup.events
    assert (event.problem, event.began) == ("stuck", True)
    assert event.message.startswith(f"the start offset of group {KEY.group_id} in parcels-{KEY.partition} ")
    await monitor_setup.compute_signals((1, 1, AVAILABLE, 1), start_offset=1)
    assert [each.began for each in monitor_setup.events] == [True, False]


@pytest.mark.parametrize("outdated", [{NUMBER}, {0, 1}])
async def test_group_is_not_stuck_because_the_state_is_outdated(
    monitor_setup: MonitorSetup, outdated: set[int]
) -> None:
    await monitor_setup.compute_signals((0, 1, AVAILABLE, 1))
    monitor_setup.view.outdated = outdated
    for _ in range(20):
        await asyncio.sleep(5)
        await monitor_setup.recompute_signals()
    monitor_setup.view.outdated = set()
    await monitor_setup.compute_signals((2, 3, AVAILABLE, 1), start_offset=2)
    assert monitor_setup.events == []


async def test_broker_that_does_not_answer_delays_a_problem_by_a_minute(monitor_setup: MonitorSetup) -> None:
    monitor_setup.topics.delay_s = 600
    monitor_setup.view.states[KEY] = make_state((0, 1, AVAILABLE, 1))
    running = asyncio.create_task(monitor_setup.monitor.run())
    await asyncio.sleep(120)
    running.cancel()
    assert [each.problem for each in monitor_setup.events] == ["stuck"]


async def test_problem_does_not_end_because_its_shard_is_loaded_again(monitor_setup: MonitorSetup) -> None:
    await monitor_setup.compute_signals((0, 1, AVAILABLE, 1))
    await asyncio.sleep(61)
    await monitor_setup.recompute_signals()
    monitor_setup.view.states, states = {}, monitor_setup.view.states
    monitor_setup.view.outdated = {NUMBER}
    await monitor_setup.recompute_signals()
    assert [each.began for each in monitor_setup.events] == [True]
    # Problems that the state does not determine are still reported.
    monitor_setup.members = 0
    await monitor_setup.recompute_signals()
    monitor_setup.members = 1
    await monitor_setup.recompute_signals()
    monitor_setup.view.states, monitor_setup.view.outdated = states, set()
    await monitor_setup.recompute_signals()
    stuck, no_consumers = ("stuck", True), ("no-consumers", True)
    events = [(each.problem, each.began) for each in monitor_setup.events]
    assert events == [stuck, ("stuck", False), no_consumers, ("no-consumers", False), stuck]


async def test_problem_does_not_end_because_one_of_its_shards_is_loaded_again(
    monitor_setup: MonitorSetup,
) -> None:
    monitor_setup.view.states[find_key_of_other_shard(KEY.group_id)] = make_state(start_offset=10)
    await monitor_setup.compute_signals((0, 1, AVAILABLE, 1))
    await asyncio.sleep(61)
    await monitor_setup.recompute_signals()
    del monitor_setup.view.states[KEY]
    monitor_setup.view.outdated = {NUMBER}
    await monitor_setup.recompute_signals()
    assert [(each.problem, each.began) for each in monitor_setup.events] == [("stuck", True)]


async def test_lag_is_unknown_without_the_end_offsets_of_all_share_partitions(
    monitor_setup: MonitorSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "SLICE", 1)
    monitor_setup.view.states[find_key_of_other_shard(KEY.group_id)] = make_state()
    monitor_setup.topics.delay_s = 0.75 * monitor.QUERIES_S
    signals = await monitor_setup.compute_signals()
    assert (signals.lag, signals.oldest_record_age_s) == (-1, -1)
    monitor_setup.topics.delay_s = 0.0
    assert (await monitor_setup.recompute_signals()).lag == 20


async def test_pass_that_failed_has_no_effect_on_the_next_one(monitor_setup: MonitorSetup) -> None:
    async def fail_after_one_state() -> AsyncIterator[tuple[SharePartitionKey, ShareState]]:
        for number in range(monitor.SLICE):
            yield KEY._replace(group_id="deleted", partition=number), make_state((0, 1, AVAILABLE, 1))
        raise RuntimeError("a defect")

    monitor_setup.topics.fails = True
    monitor_setup.view.share_partitions, states = fail_after_one_state, monitor_setup.view.share_partitions
    with pytest.raises(RuntimeError):
        await monitor_setup.compute_signals()
    monitor_setup.view.share_partitions = states
    assert (await monitor_setup.recompute_signals()).lag == -1


async def test_pause_depends_on_the_work_and_not_on_the_waits_of_a_pass(
    monitor_setup: MonitorSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The process serves brokers all the time, so all of it is CPU time.
    monkeypatch.setattr(monitor, "cpu_seconds", lambda: asyncio.get_running_loop().time())
    monitor_setup.view.states[KEY] = make_state()
    monitor_setup.topics.delay_s = 10.0
    running = asyncio.create_task(monitor_setup.monitor.run())
    await asyncio.sleep(11.0)
    first = monitor_setup.monitor.groups
    await asyncio.sleep(monitor.PASS_INTERVAL_S + 10.0)
    assert monitor_setup.monitor.groups is not first
    running.cancel()


async def test_move_of_a_shard_hides_only_the_ends_of_its_own_problems(monitor_setup: MonitorSetup) -> None:
    other = find_key_of_other_shard("other")
    monitor_setup.members = 0
    monitor_setup.view.states[other] = make_state()
    await monitor_setup.compute_signals()
    monitor_setup.view.states = {other: make_state(start_offset=10)}
    monitor_setup.view.shards.remove(NUMBER)
    await monitor_setup.monitor.compute_signals()
    events = [(each.group, each.began) for each in monitor_setup.events]
    assert sorted(events) == [(KEY.group_id, True), ("other", False), ("other", True)]


@pytest.mark.parametrize("is_moved", [False, True])
async def test_problem_ends_when_its_group_is_deleted_but_not_when_its_shard_moves(
    monitor_setup: MonitorSetup, is_moved: bool
) -> None:
    monitor_setup.members = 0
    await monitor_setup.compute_signals()
    monitor_setup.view.states = {}
    if is_moved:
        monitor_setup.view.shards.remove(NUMBER)
    await monitor_setup.monitor.compute_signals()
    events = [(each.problem, each.began) for each in monitor_setup.events]
    assert events == [("no-consumers", True), *[("no-consumers", False)] * (not is_moved)]


async def test_missing_consumers_are_reported_until_the_cluster_reports_a_member(
    monitor_setup: MonitorSetup,
) -> None:
    monitor_setup.members = 0
    await monitor_setup.compute_signals()
    monitor_setup.topics.fails = True
    assert (await monitor_setup.recompute_signals()).problem is Problem.NO_CONSUMERS
    monitor_setup.topics.fails, monitor_setup.members = False, 1
    await monitor_setup.recompute_signals()
    assert [each.began for each in monitor_setup.events] == [True, False]


async def test_group_without_waiting_records_is_not_stuck(monitor_setup: MonitorSetup) -> None:
    await monitor_setup.compute_signals(start_offset=10)
    await asyncio.sleep(600)
    assert (await monitor_setup.recompute_signals()).stuck_s == 0.0


@pytest.mark.parametrize(("log_start", "lost"), [(8, 4), (5, 0)])
async def test_skipped_records_are_lost_only_if_retention_deleted_them(
    monitor_setup: MonitorSetup, log_start: int, lost: int
) -> None:
    monitor_setup.topics.start = log_start
    monitor_setup.view.states = {KEY: make_state((0, 3, ACKNOWLEDGED, 1))}
    monitor_setup.record_followed_update(start_offset=8)
    signals = await monitor_setup.recompute_signals()
    assert signals.lost_records == lost
    assert (signals.problem is Problem.LOST_BEFORE_DELIVERY) is bool(lost)
    # After an hour the problem ends, but the number of lost records stays.
    monitor_setup.now_ms += 3_600_000
    signals = await monitor_setup.recompute_signals()
    assert signals.problem is not Problem.LOST_BEFORE_DELIVERY
    assert signals.lost_records == lost


@pytest.mark.parametrize("is_observer", [True, False])
async def test_rates_are_records_per_second_between_two_calls(is_observer: bool) -> None:
    """An observer counts from the updates that it reads, a coordinator from the updates that it appends."""
    sample = None if is_observer else AppendSampler()
    monitor_setup = MonitorSetup(sample)
    assert (await monitor_setup.compute_signals()).acknowledged_rate == -1.0
    batches = ((0, 9, ACKNOWLEDGED, 1), (10, 14, AVAILABLE, 1))
    if sample is None:
        monitor_setup.record_followed_update(*batches, start_offset=0)
    else:
        record = StateRecord(KEY, ShareUpdateValue(0, 0, 0, pack_batches(*batches), 0))
        sample.add([encode_batch(0, 1, [encode_record(record)])], 0)
    await asyncio.sleep(5)
    signals = await monitor_setup.recompute_signals()
    assert (signals.acknowledged_rate, signals.released_rate) == pytest.approx((2.0, 1.0))


async def test_oldest_record_age_is_that_of_the_largest_lag(monitor_setup: MonitorSetup) -> None:
    monitor_setup.view.states = {KEY._replace(group_id="idle"): make_state(start_offset=10)}
    assert 70 < (await monitor_setup.compute_signals()).oldest_record_age_s <= 100
    assert monitor_setup.monitor.groups["idle"].oldest_record_age_s == 0.0


async def test_hidden_topic_is_reported_but_not_an_unreachable_cluster(monitor_setup: MonitorSetup) -> None:
    monitor_setup.topics.fails = True
    await monitor_setup.compute_signals()
    assert monitor_setup.monitor.missing_access.sentences == []
    monitor_setup.topics.fails, monitor_setup.topics.is_hidden = False, True
    await monitor_setup.recompute_signals()
    (sentence,) = monitor_setup.monitor.missing_access.sentences
    assert "add the ACL: Describe" in sentence
    monitor_setup.topics.is_hidden = False
    await monitor_setup.recompute_signals()
    assert monitor_setup.monitor.missing_access.sentences == []


async def test_unreachable_cluster_leaves_lag_unknown(monitor_setup: MonitorSetup) -> None:
    monitor_setup.topics.fails = True
    signals = await monitor_setup.compute_signals((0, 1, AVAILABLE, 1))
    assert (signals.lag, signals.in_flight) == (-1, 2)
