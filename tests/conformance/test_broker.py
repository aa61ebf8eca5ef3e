"""Send the same random requests to Kafka's and this project's share coordinator, and compare responses.

All fields are compared except message texts. The generator omits requests with intentionally different
responses (docs/differences.md). The order of results is ignored, because Kafka's order is that of a hash map.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from coordinator.config import HostPort
from coordinator.log.memory import MemoryLog
from coordinator.metrics import Metrics
from coordinator.process.clock import SystemClock
from coordinator.serve.runtime import Runtime, RuntimeLimits
from coordinator.serve.server import Api, CoordinatorDirectory, Listener, ServerLimits
from coordinator.serve.service import Service
from coordinator.shard import SnapshotPolicy
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack
from tests.builders import ACKNOWLEDGED
from tests.kafka.built_in import BuiltInCoordinator
from tests.static_topics import StaticTopics
from tests.unit.server.wire import WireClient, request_frame

pytestmark = pytest.mark.broker

REQUESTS = 4_000
SEED = 20_932
GROUPS = ("differential", "with:colons", "über-日本-😀")


class RandomRequests:
    """Generate requests that are mostly valid, so that they pass the first checks."""

    def __init__(self, seed: int, topic_id: bytes, partitions: int) -> None:
        self._random = random.Random(seed)
        self._topic_id = topic_id
        self._partitions = partitions
        # State epoch and start offset of the last Initialize, by (group, partition).
        self._initialized: dict[tuple[str, int], tuple[int, int]] = {}
        self._initialize_count = 0

    def requests(self, count: int) -> Iterator[tuple[Any, int, Any]]:
        """Yield (API module, version, request)."""
        kinds = [
            self._make_initialize_request,
            self._make_read_request,
            self._make_write_request,
            self._make_write_request,
            self._make_write_request,
            self._make_summary_request,
            self._make_delete_request,
        ]
        weights = [3, 6, 8, 8, 8, 3, 1]
        for _ in range(count):
            group = self._random.choice(GROUPS)
            (make,) = self._random.choices(kinds, weights)
            # Usually one partition, sometimes all partitions, and rarely a partition that the topic does not
            # have.
            partitions = self._random.sample(
                range(self._partitions), self._random.choice([1, 1, 1, 2, self._partitions])
            )
            if self._random.random() < 0.03 and make != self._make_delete_request:
                partitions.append(self._random.choice([-1, self._partitions, 999]))
            yield make(group, partitions)

    def _random_epoch(self, group: str, partition: int) -> int:
        known = self._initialized.get((group, partition), (0, 0))[0]
        return known + self._random.choice([0, 0, 0, 0, 0, 0, 1, -1])

    def _random_leader_epoch(self) -> int:
        # The leader epoch rises slowly. If it rose fast, most requests would have an old epoch and be fenced.
        return self._initialize_count // 40 + self._random.choice([0, 0, 0, 0, -1, 1])

    def _make_initialize_request(self, group: str, partitions: list[int]) -> tuple[Any, int, Any]:
        parts = []
        for partition in partitions:
            epoch, _ = self._initialized.get((group, partition), (0, 0))
            self._initialize_count += 1
            # Use each start offset only once, so that no request repeats an earlier one.
            start_offset = 1_000 * self._initialize_count
            step = self._random.choice([0, 0, 1, -1])
            if step == 1 and self._random.random() < 0.5:
                start_offset = -1
            if step >= 0:
                self._initialized[group, partition] = (epoch + step, max(start_offset, 0))
            parts.append(initialize_api.PartitionData(partition, epoch + step, start_offset))
        return (
            initialize_api,
            0,
            initialize_api.InitializeShareGroupStateRequest(
                group, [initialize_api.InitializeStateData(self._topic_id, parts)]
            ),
        )

    def _make_read_request(self, group: str, partitions: list[int]) -> tuple[Any, int, Any]:
        parts = [read_api.PartitionData(partition, self._random_leader_epoch()) for partition in partitions]
        return (
            read_api,
            0,
            read_api.ReadShareGroupStateRequest(group, [read_api.ReadStateData(self._topic_id, parts)]),
        )

    def _make_write_request(self, group: str, partitions: list[int]) -> tuple[Any, int, Any]:
        version = self._random.choice([0, 1, 1, 1])
        parts = []
        for partition in partitions:
            leader_epoch, epoch = self._random_leader_epoch() + 1, self._random_epoch(group, partition)
            _, base = self._initialized.get((group, partition), (0, 0))
            # Rarely include a share-partition twice, as brokers do with queued writes.
            for _ in range(self._random.choice([1, 1, 1, 1, 2])):
                parts.append(
                    write_api.PartitionData(
                        partition,
                        epoch,
                        leader_epoch,
                        self._random.choice([-1, base, base + self._random.randint(0, 60)]),
                        self._random.choice([-1, 0, self._random.randint(0, 30)]) if version else -1,
                        pack(self._batches(base)),
                    )
                )
        return (
            write_api,
            version,
            write_api.WriteShareGroupStateRequest(group, [write_api.WriteStateData(self._topic_id, parts)]),
        )

    def _batches(self, base: int) -> Iterator[StateBatch]:
        for _ in range(self._random.choice([0, 1, 1, 2, 5, 12])):
            first = base + self._random.randint(-10, 80)
            yield StateBatch(
                max(first, 0),
                max(first, 0) + self._random.choice([0, 0, 1, 4, 20]),
                self._random.choice([0, 2, 2, 3, 4, 7]),
                self._random.randint(0, 5),
            )

    def _make_summary_request(self, group: str, partitions: list[int]) -> tuple[Any, int, Any]:
        parts = [
            summary_api.PartitionData(partition, self._random_leader_epoch()) for partition in partitions
        ]
        request = summary_api.ReadShareGroupStateSummaryRequest(
            group, [summary_api.ReadStateSummaryData(self._topic_id, parts)]
        )
        return summary_api, self._random.choice([0, 1]), request

    def _make_delete_request(self, group: str, partitions: list[int]) -> tuple[Any, int, Any]:
        parts = [delete_api.PartitionData(partition) for partition in partitions]
        return (
            delete_api,
            0,
            delete_api.DeleteShareGroupStateRequest(
                group, [delete_api.DeleteStateData(self._topic_id, parts)]
            ),
        )


def comparable_results(api: Any, version: int, body: bytes) -> list[Any]:
    """Return the results of a response in a fixed order, without message texts."""
    response = api.decode_response(body, 1, version)
    found = []
    for topic in response.results:
        for result in topic.partitions:
            result.error_message = None if result.error_code == 0 else "text"
            found.append((topic.topic_id, result.partition, msgspec.to_builtins(result)))
    return sorted(found, key=lambda entry: (entry[0], entry[1]))


async def send_request(client: WireClient, api: Any, version: int, correlation_id: int, body: bytes) -> bytes:
    client.send(request_frame(api.API_KEY, version, correlation_id, body))
    got, rest = await client.read_frame()
    assert got == correlation_id
    return rest


class BothCoordinators:
    """This coordinator and Kafka's, which get the same requests."""

    def __init__(self, ours: WireClient, theirs: WireClient) -> None:
        self._ours = ours
        self._theirs = theirs
        self._sent = 0

    async def send_to_both(self, api: Any, version: int, request: Any) -> tuple[list[Any], list[Any]]:
        """Send a request to both; return the comparable results of this coordinator and of Kafka's."""
        self._sent += 1
        body = api.encode_request(request, version)
        ours, theirs = await asyncio.gather(
            send_request(self._ours, api, version, self._sent, body),
            send_request(self._theirs, api, version, self._sent, body),
        )
        return comparable_results(api, version, ours), comparable_results(api, version, theirs)


@asynccontextmanager
async def both_coordinators(kafka: BuiltInCoordinator) -> AsyncIterator[BothCoordinators]:
    """Start this coordinator, and connect to it and to Kafka's."""
    metrics = Metrics()
    runtime = Runtime(
        log=MemoryLog(50),
        clock=SystemClock(),
        topics=StaticTopics({kafka.topic_id: kafka.partitions}),
        metrics=metrics,
        policy=SnapshotPolicy(),
        limits=RuntimeLimits(),
        state_partitions=50,
        cold_interval_ms=300_000,
        prune_interval_ms=300_000,
    )
    await runtime.start()
    directory = CoordinatorDirectory(
        HostPort("localhost", 9095), node_id_first=1_000_000, node_ids=4, state_partitions=50
    )
    listener = Listener(Api(Service(runtime), directory, metrics), metrics, ServerLimits())
    await listener.start(HostPort("127.0.0.1", 0))
    try:
        theirs = WireClient(*await asyncio.open_connection(kafka.host, kafka.port))
        ours = WireClient(*await asyncio.open_connection("127.0.0.1", listener.port))
        yield BothCoordinators(ours, theirs)
        ours.writer.close()
        theirs.writer.close()
    finally:
        await listener.stop()
        await runtime.stop()


async def compare_random_requests(kafka: BuiltInCoordinator) -> dict[str, int]:
    seen: dict[str, int] = {}
    async with both_coordinators(kafka) as both:
        generator = RandomRequests(SEED, kafka.topic_id, kafka.partitions)
        for number, (api, version, request) in enumerate(generator.requests(REQUESTS)):
            ours, theirs = await both.send_to_both(api, version, request)
            assert ours == theirs, f"request {number} of seed {SEED}: {request}"
            for _, _, result in theirs:
                label = f"{api.__name__.rsplit('.', 1)[1]} {result['error_code']}"
                seen[label] = seen.get(label, 0) + 1
    return seen


async def repeat_initialize(kafka: BuiltInCoordinator, start_offset: int) -> tuple[Any, Any]:
    """Initialize a share-partition, acknowledge records, and repeat the request. Return the two states."""
    group, topic_id = f"repeated {start_offset}", kafka.topic_id
    initialize = initialize_api.InitializeShareGroupStateRequest(
        group,
        [initialize_api.InitializeStateData(topic_id, [initialize_api.PartitionData(0, 3, start_offset)])],
    )
    batches = pack([StateBatch(14, 15, ACKNOWLEDGED, 1)])
    write = write_api.WriteShareGroupStateRequest(
        group, [write_api.WriteStateData(topic_id, [write_api.PartitionData(0, 3, 0, 12, 2, batches)])]
    )
    read = read_api.ReadShareGroupStateRequest(
        group, [read_api.ReadStateData(topic_id, [read_api.PartitionData(0, 0)])]
    )
    async with both_coordinators(kafka) as both:
        for api, version, request in (
            (initialize_api, 0, initialize),
            (write_api, 1, write),
            (initialize_api, 0, initialize),
        ):
            for ((_, _, result),) in await both.send_to_both(api, version, request):
                assert result["error_code"] == 0
        ((_, _, ours),), ((_, _, theirs),) = await both.send_to_both(read_api, 0, read)
    return ours, theirs


@pytest.mark.parametrize("start_offset", [0, 12])
def test_repeated_initialize_with_a_start_offset_deletes_progress_as_in_kafka(
    built_in_coordinator: BuiltInCoordinator, start_offset: int
) -> None:
    """The acknowledged records are delivered again after the next load of the share-partition."""
    ours, theirs = asyncio.run(repeat_initialize(built_in_coordinator, start_offset))
    assert ours == theirs
    assert (theirs["start_offset"], theirs["state_batches"]) == (start_offset, "")


def test_repeated_initialize_without_a_start_offset_deletes_progress_only_in_kafka(
    built_in_coordinator: BuiltInCoordinator,
) -> None:
    ours, theirs = asyncio.run(repeat_initialize(built_in_coordinator, -1))
    assert (theirs["start_offset"], theirs["state_batches"]) == (-1, "")
    assert (ours["start_offset"], ours["state_epoch"]) == (12, 3)
    assert ours["state_batches"]


def test_random_requests_get_the_same_responses_as_from_kafka(
    built_in_coordinator: BuiltInCoordinator,
) -> None:
    seen = asyncio.run(compare_random_requests(built_in_coordinator))
    for label in (
        "initialize_share_group_state 0",
        "initialize_share_group_state 124",
        "read_share_group_state 0",
        "read_share_group_state 42",
        "read_share_group_state 74",
        "write_share_group_state 0",
        "write_share_group_state 42",
        "write_share_group_state 74",
        "write_share_group_state 124",
        "delete_share_group_state 0",
        "read_share_group_state_summary 0",
        "read_share_group_state_summary 3",
    ):
        assert seen.get(label, 0) > 0, f"the requests never led to {label}: {seen}"
    assert seen["write_share_group_state 0"] > 300
