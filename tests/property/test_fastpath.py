"""Test that compiled fast-path requests and Python ones have byte-identical responses, records and states.

Two coordinators receive the same random frames; one of them has no compiled module.  Most frames are requests
that brokers send. Others have repeated share-partitions, unknown tags, old epochs or unordered batches, or
are truncated. Some clients disconnect before the response.
"""

import asyncio
from typing import Any

import msgspec
import pytest

from coordinator import fastpath
from coordinator.cluster.topics import EveryTopicExists, TopicDirectory
from coordinator.config import HostPort
from coordinator.fastpath.operation_queue import WriteDecider, unit_bytes
from coordinator.log.base import RECORD_BYTES_MAX
from coordinator.log.memory import MemoryLog
from coordinator.metrics import Metrics
from coordinator.serve.runtime import RuntimeLimits
from coordinator.serve.server import Api, CoordinatorDirectory
from coordinator.serve.server.error_responses import CloseConnection
from coordinator.serve.service import Service
from coordinator.shard import SnapshotPolicy, decisions
from protocol import record_batch
from protocol.errors import ErrorCode
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.routing import state_partition
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID, unpack_batches
from tests.manual_clock import ManualClock
from tests.property.fastpath_requests import GROUPS, RequestGenerator, make_initialize_request
from tests.unit.runtime.runtime_without_jobs import make_runtime
from tests.unit.runtime.test_runtime import FakeOrigin
from tests.unit.server.wire import request_frame

compiled = pytest.importorskip(
    "coordinator.fastpath._compiled", reason="it was not built: is there a C compiler?"
)


@pytest.fixture(autouse=True)
def _compiled_module_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastpath, "compiled", compiled)


STATE_PARTITIONS = 3
SEEDS_PER_TEST = 8
ROUNDS_PER_SEED = 60


class FakeTopicDirectory:
    """A topic directory in which every topic exists. With `disconnected`, partition 1 does not exist."""

    disconnected = False

    def contains(self, topic_id: bytes, partition: int) -> bool:
        return not (self.disconnected and partition == 1)


class SizeCheckingLog(MemoryLog):
    """A log that records the units of each append, and asserts that no record or unit is too large."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.units: list[Any] = []

    def append(
        self, state_partition: int, records: Any, timestamp_ms: int, done: Any, units: Any = ()
    ) -> None:
        assert all(len(key) + len(value or b"") <= self.record_bytes_max for key, value in records)
        assert all(unit_bytes(records[begin:end]) <= self.record_bytes_max for begin, end in units)
        self.units.append(units)
        super().append(state_partition, records, timestamp_ms, done)


class CoordinatorUnderTest:
    """A coordinator under test, with or without the compiled module."""

    def __init__(
        self,
        policy: SnapshotPolicy,
        topics: TopicDirectory,
        record_bytes_max: int = RECORD_BYTES_MAX,
        limits: RuntimeLimits = RuntimeLimits(),  # noqa: B008
    ) -> None:
        self.log = SizeCheckingLog(STATE_PARTITIONS)
        self.log.record_bytes_max = record_bytes_max
        self.metrics = Metrics()
        self.runtime = make_runtime(
            self.log,
            STATE_PARTITIONS,
            clock=ManualClock(),
            topics=topics,
            metrics=self.metrics,
            policy=policy,
            limits=limits,
        )
        directory = CoordinatorDirectory(
            HostPort("localhost", 9095), node_id_first=1, node_ids=1, state_partitions=STATE_PARTITIONS
        )
        self.api = Api(Service(self.runtime), directory, self.metrics)
        self.answers: list[tuple[int, bytes | str]] = []

    async def start_and_initialize(self) -> None:
        """Load the shards, and initialize some share-partitions."""
        self._write_unreadable_records()
        await self.runtime.start()
        while not self.runtime.initial_load_done:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for group in GROUPS:
            for partition in range(3):
                self.send_frame(
                    0, make_initialize_request(group, TOPIC_ID, partition, 0, partition - 1), False
                )
        await self.wait_for_appends()

    def _write_unreadable_records(self) -> None:
        """Write a snapshot of a share-partition, and an update whose unknown version prevents loading."""
        key = SharePartitionKey(GROUPS[0], OTHER_TOPIC_ID, 0)
        snapshot = encode_record(StateRecord(key, ShareSnapshotValue(0, 0, 0, 0, 1, 1, b"", 0)))
        update_key, _ = encode_record(StateRecord(key, ShareUpdateValue(0, 0, 0, b"")))
        batch = record_batch.encode_batch(0, 1, [snapshot, (update_key, b"\0\7")])
        home = state_partition(key, STATE_PARTITIONS)
        self.log._batches[home].append(batch)
        self.log._end_offsets[home] = 2

    def send_frame(self, number: int, request: tuple[int, int, bytes], disconnects: bool) -> None:
        origin = FakeOrigin()
        frame = request_frame(request[0], request[1], number, request[2])[4:]
        try:
            self.api.handle(frame, origin, lambda answer: self.answers.append((number, answer)))
        except CloseConnection as error:
            self.answers.append((number, str(error)))
        origin.disconnected = disconnects

    async def wait_for_appends(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)
        while self.runtime.appends_in_flight():  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert self.runtime.appends_in_flight() == 0

    async def observed_results(self) -> Any:
        """Return all observable results: responses, states, log, shard views, metrics, and units of the
        appends.
        """
        states = {}
        async for key, state in self.runtime.share_partitions():
            states[key] = state
        counted = [
            (sample.name, tuple(sample.labels.items()), sample.value)
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if not sample.name.startswith(("process_", "python_"))
            and not sample.name.endswith("_created")
            and "seconds" not in sample.name
        ]
        batches = [chunk async for chunk in self.log.read(range(STATE_PARTITIONS))]
        views = [msgspec.structs.replace(view, load_ms=0) for view in self.runtime.shard_views()]
        return self.answers, states, batches, views, counted, list(map(list, self.log.units))


async def compare_with_seed(seed: int) -> None:
    """Send the random requests of a seed to both coordinators, and compare the results."""
    generator = RequestGenerator(seed)
    random = generator.random
    policy = SnapshotPolicy(random.choice([2, 30, 500]), random.choice([500, 10_000]))
    topics: EveryTopicExists | FakeTopicDirectory = (
        EveryTopicExists() if random.randrange(2) else FakeTopicDirectory()
    )
    record_bytes_max = random.choice([RECORD_BYTES_MAX, RECORD_BYTES_MAX, 300, 1_000])
    limits = RuntimeLimits(
        operations_per_append_max=random.choice([1, 3, 4_096]),
        bytes_per_append_max=random.choice([1, 300, 1 << 22]),
    )
    plain = CoordinatorUnderTest(policy, topics, record_bytes_max, limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastpath, "compiled", None)
        general = CoordinatorUnderTest(policy, topics, record_bytes_max, limits)
    both = (plain, general)
    for each in both:
        await each.start_and_initialize()
    for number in range(ROUNDS_PER_SEED):
        if isinstance(topics, FakeTopicDirectory):
            topics.disconnected = number > ROUNDS_PER_SEED // 2
        for _ in range(random.randrange(1, 4)):
            request, disconnects = generator.draw_request(), generator.is_unusual() and generator.is_unusual()
            for each in both:
                each.send_frame(number, request, disconnects)
        for each in both:
            await each.wait_for_appends()
        assert plain.answers == general.answers
    for one, other in zip(await plain.observed_results(), await general.observed_results(), strict=True):
        assert one == other
    for each in both:
        await each.runtime.stop()


@pytest.mark.parametrize("first_seed", range(0, 4 * SEEDS_PER_TEST, SEEDS_PER_TEST))
def test_compiled_and_python_writes_are_equal(first_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[int] = []
    make_kernel = compiled.WriteKernel

    class CountingKernel(WriteDecider):
        def __init__(self, *args: Any) -> None:
            self._kernel = make_kernel(*args)
            self.begin = self._kernel.begin

        def decide_writes(self, *args: Any) -> None:
            self._kernel.decide_writes(*args)

        def end(self) -> int:
            decided.append(self._kernel.end())
            return decided[-1]

    monkeypatch.setattr(compiled, "WriteKernel", CountingKernel)
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        try:
            asyncio.run(compare_with_seed(seed))
        except BaseException as error:
            error.add_note(f"tests.property.test_fastpath.compare_with_seed({seed})")
            raise
    assert sum(decided) > SEEDS_PER_TEST * ROUNDS_PER_SEED


async def test_usual_writes_use_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the Python path by a function that raises, so that only the fast path can succeed."""

    def fail_on_python_path(*_: Any) -> Any:
        raise AssertionError("this write must use the fast path")

    coordinator = CoordinatorUnderTest(SnapshotPolicy(), EveryTopicExists())
    await coordinator.start_and_initialize()
    monkeypatch.setattr(write_api, "decode_request", fail_on_python_path)
    monkeypatch.setattr(decisions, "decide_write", fail_on_python_path)
    # Advance the window, then fill a gap, then repeat the same write.
    for start_offset, first in ((0, 4), (2, 10), (4, 7), (4, 7)):
        written = [StateBatch(first + n, first + n, 2, 1) for n in range(3)]
        parts = [
            write_api.PartitionData(partition, 0, 0, start_offset, 2, pack(written)) for partition in range(3)
        ]
        topic = write_api.WriteStateData(TOPIC_ID, parts)
        request = write_api.WriteShareGroupStateRequest("group", [topic])
        coordinator.send_frame(1, (write_api.API_KEY, 1, write_api.encode_request(request, 1)), False)
        await coordinator.wait_for_appends()
    for _, answer in coordinator.answers[-4:]:
        response = write_api.decode_response(answer, 9, 1)
        assert [result.error_code for result in response.results[0].partitions] == [0, 0, 0]
    state = coordinator.runtime.share_partition(SharePartitionKey("group", TOPIC_ID, 1))
    assert state is not None
    assert unpack_batches(state.batches) == [(4, 12, 2, 1)]
    assert (state.start_offset, state.delivery_complete_count, state.updates) == (4, 2, 4)
    await coordinator.runtime.stop()


async def test_usual_reads_use_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the Python path by a function that raises; the leader epoch of the read is known."""

    def fail_on_python_path(*_: Any) -> Any:
        raise AssertionError("this read must use the fast path")

    coordinator = CoordinatorUnderTest(SnapshotPolicy(), FakeTopicDirectory())
    await coordinator.start_and_initialize()
    monkeypatch.setattr(Service, "handle", fail_on_python_path)
    parts = [read_api.PartitionData(partition, 0) for partition in range(3)]
    request = read_api.ReadShareGroupStateRequest("group", [read_api.ReadStateData(TOPIC_ID, parts)])
    body = read_api.encode_request(request, 0)
    for api_key, version in ((read_api.API_KEY, 0), (summary_api.API_KEY, 0), (summary_api.API_KEY, 1)):
        coordinator.send_frame(1, (api_key, version, body), False)
    read, *summaries = (answer for _, answer in coordinator.answers[-3:])
    (topic,) = read_api.decode_response(read, 9, 0).results
    assert [each.start_offset for each in topic.partitions] == [-1, 0, 1]
    for version, summary in enumerate(summaries):
        (results,) = summary_api.decode_response(summary, 9, version).results
        assert [each.start_offset for each in results.partitions] == [-1, 0, 1]
    await coordinator.runtime.stop()


async def test_read_above_the_response_limit_does_not_use_fast_path() -> None:
    coordinator = CoordinatorUnderTest(SnapshotPolicy(), EveryTopicExists())
    await coordinator.start_and_initialize()
    requests: Any = coordinator.api._fast_path_executor
    batches = pack([StateBatch(90, 99, 2, 1)])
    write = write_api.WriteShareGroupStateRequest(
        "group",
        [write_api.WriteStateData(TOPIC_ID, [write_api.PartitionData(0, 0, 0, -1, -1, batches)])],
    )
    coordinator.send_frame(1, (write_api.API_KEY, 1, write_api.encode_request(write, 1)), False)
    await coordinator.wait_for_appends()
    read = read_api.ReadShareGroupStateRequest(
        "group", [read_api.ReadStateData(TOPIC_ID, [read_api.PartitionData(0, 0)])]
    )
    frame = request_frame(read_api.API_KEY, 0, 1, read_api.encode_request(read, 0))[4:]
    answers: list[bytes] = []
    for limit, is_executed in ((len(batches), False), (len(batches) + 1, True)):
        requests.response_bytes_max = limit
        assert requests.try_execute(frame, None, answers.append, 0.0) is is_executed
    assert len(answers) == 1
    await coordinator.runtime.stop()


async def test_a_topic_directory_that_raises_fails_one_operation() -> None:
    class RaisingTopics(FakeTopicDirectory):
        def contains(self, topic_id: bytes, partition: int) -> bool:
            if self.disconnected and partition == 2:
                raise RuntimeError("a defect")
            return True

    topics = RaisingTopics()
    coordinator = CoordinatorUnderTest(SnapshotPolicy(), topics)
    await coordinator.start_and_initialize()

    async def write_all_partitions() -> list[int]:
        batches = pack([StateBatch(90, 99, 2, 1)])
        parts = [write_api.PartitionData(partition, 0, 0, -1, -1, batches) for partition in range(3)]
        request = write_api.WriteShareGroupStateRequest("group", [write_api.WriteStateData(TOPIC_ID, parts)])
        coordinator.send_frame(1, (write_api.API_KEY, 1, write_api.encode_request(request, 1)), False)
        await coordinator.wait_for_appends()
        response = write_api.decode_response(coordinator.answers[-1][1], 9, 1)  # type: ignore[arg-type]
        return [result.error_code for result in response.results[0].partitions]

    topics.disconnected = True
    assert await write_all_partitions() == [0, 0, int(ErrorCode.UNKNOWN_SERVER_ERROR)]
    state = coordinator.runtime.share_partition(SharePartitionKey("group", TOPIC_ID, 2))
    assert state is not None
    assert state.batches == b""
    topics.disconnected = False
    assert await write_all_partitions() == [0, 0, 0]
    await coordinator.runtime.stop()
