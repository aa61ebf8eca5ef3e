"""Coordinators and brokers whose links to each other fail. The brokers are started once."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import TypeVar

import pytest

from coordinator.client import RetryPolicy, ShareCoordinatorClient, SharePartitionKey, StateBatch
from coordinator.cluster.kafka.group_client import KafkaGroupClient
from protocol.errors import ErrorCode
from protocol.messages import find_coordinator
from protocol.state_records import parse_topic_id
from tests.builders import ACKNOWLEDGED
from tests.kafka import wait_until
from tests.kafka.client import KafkaClient
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import KafkaJars
from tests.kafka.served_process import INSTALLED, ProgramBuild
from tests.kafka.wire import send_request
from tests.topic.groups import group_settings
from tests.topic.linked_brokers import BROKERS, BrokersWithFaultyLinks, broker_name
from tests.topic.logs import new_topic
from tests.topic.partition_schedule import draw_schedule
from tests.topic.partitioned_cluster import BROKER_SETTINGS, PartitionedCluster, keys_of_each_shard

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1200)]

# Together, these seeds have all kinds of faults, also of brokers. `make soak` runs longer schedules and other
# seeds.
SEEDS = (0, 2, 4, 7, 8)
SCHEDULE_S = 4.0
SHARDS = 12
PATIENCE_S = 240
Answer = TypeVar("Answer")
# The name of the far coordinator in the network.
FAR = "far"


@pytest.fixture(scope="module")
def linked_brokers(
    newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokersWithFaultyLinks]:
    with ExitStack() as stack:
        yield BrokersWithFaultyLinks(newest_jars, tmp_path_factory.mktemp("linked"), stack, BROKER_SETTINGS)


def test_histories_are_linearizable_in_random_partitions(
    linked_brokers: BrokersWithFaultyLinks, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        cluster = PartitionedCluster(linked_brokers, tmp_path, stack, new_topic("partitions"))
        cluster.start()
        for seed in SEEDS:
            cluster.run(draw_schedule(seed, SCHEDULE_S))


class PartitionedCoordinators:
    """Two coordinators, `near` and `far`. Only the links of the coordinator `far` can fail."""

    def __init__(self, brokers: BrokersWithFaultyLinks, directory: Path, stack: ExitStack) -> None:
        self.topic = new_topic("reach")
        self.bootstrap = brokers.bootstrap
        self.network = brokers.network
        self.network.add_process(FAR, ())
        far = ProgramBuild(INSTALLED.command, self.network.environment(FAR))
        self.near = self._start_coordinator(directory / "near", INSTALLED, stack)
        self.far = self._start_coordinator(directory / "far", far, stack)

    def _start_coordinator(
        self, directory: Path, build: ProgramBuild, stack: ExitStack
    ) -> CoordinatorProcess:
        settings = group_settings(self.bootstrap, self.topic, SHARDS)
        coordinator = CoordinatorProcess(directory, log="kafka", settings=settings, build=build)
        stack.callback(coordinator.kill)
        return coordinator

    def _query_group(self, query: Callable[[KafkaGroupClient], Awaitable[Answer]]) -> Answer:
        async def query_and_close() -> Answer:
            client = KafkaGroupClient(self.bootstrap, self.topic, self.topic)
            try:
                return await query(client)
            finally:
                await client.close()

        return asyncio.run(query_and_close())

    def group_coordinator(self) -> int:
        return self._query_group(KafkaGroupClient.find_coordinator).node

    def shards_led_by(self, node: int) -> set[int]:
        """Return the shards whose state partitions a broker leads. On a busy machine, leaders may change."""
        leaders = self._query_group(KafkaGroupClient.leaders_by_partition)
        return {shard for shard, leader in leaders.items() if leader == node}

    def shards_served_by(self, coordinator: CoordinatorProcess) -> set[int]:
        status, body = coordinator.get("/api/v1/shards")
        assert status == 200, body
        shards = json.loads(body)["items"]
        return {shard["state_partition"] for shard in shards if shard["status"] == "ACTIVE"}

    def is_shared_equally(self) -> bool:
        near, far = self.shards_served_by(self.near), self.shards_served_by(self.far)
        return len(near) == len(far) == SHARDS // 2 and len(near | far) == SHARDS

    def write(self, offset: int) -> None:
        """Write to every shard. Raise an exception if a write is not acknowledged."""

        async def write_to_each_shard() -> None:
            addresses = f"127.0.0.1:{self.near.port},127.0.0.1:{self.far.port}"
            async with ShareCoordinatorClient(addresses) as client, asyncio.TaskGroup() as writers:
                for key in keys_of_each_shard("group", SHARDS, 1):
                    writers.create_task(_write_until_accepted(client, key, offset))

        asyncio.run(write_to_each_shard())


async def _write_until_accepted(client: ShareCoordinatorClient, key: SharePartitionKey, offset: int) -> None:
    if offset == 0:
        await client.initialize(key, 1, 0)
    batches = [StateBatch(offset, offset, ACKNOWLEDGED, 1)]
    await client.write(key, state_epoch=1, leader_epoch=0, start_offset=0, batches=batches)
    state = await client.read(key, 0)
    assert [(batch.first_offset, batch.last_offset) for batch in state.batches] == [(0, offset)]


@pytest.fixture
def partitioned_coordinators(
    linked_brokers: BrokersWithFaultyLinks, tmp_path: Path
) -> Iterator[PartitionedCoordinators]:
    with ExitStack() as stack:
        yield PartitionedCoordinators(linked_brokers, tmp_path, stack)


def test_shards_move_to_the_coordinator_that_reaches_their_leader(
    partitioned_coordinators: PartitionedCoordinators,
) -> None:
    pair = partitioned_coordinators
    pair.near.start()
    pair.far.start()
    wait_until(
        pair.is_shared_equally,
        seconds=PATIENCE_S,
        what="each coordinator has half of the shards",
    )
    pair.write(0)
    coordinating = pair.group_coordinator()
    # A member that cannot reach the group coordinator is removed from the group. Therefore this test
    # disconnects another broker than the group coordinator.
    away = next(node for node in BROKERS if node != coordinating)
    assert pair.shards_served_by(pair.far) & pair.shards_led_by(away)

    pair.network.cut(FAR, broker_name(away))
    wait_until(
        lambda: not pair.shards_served_by(pair.far) & pair.shards_led_by(away) and pair.is_shared_equally(),
        seconds=PATIENCE_S,
        what="the near coordinator serves the shards of the unreachable broker",
    )
    pair.write(1)
    assert f"broker {away} at 127.0.0.1:" in pair.far.process.log.read_text()

    # The far coordinator alone serves all shards that it reaches. The far coordinator can claim these shards
    # although the unreachable broker coordinates some transactional ids.
    pair.near.stop()
    wait_until(
        lambda: pair.shards_served_by(pair.far) == set(range(SHARDS)) - pair.shards_led_by(away),
        seconds=PATIENCE_S,
        what="the far coordinator serves all shards of reachable brokers",
    )

    # When the connection is repaired, the requests that waited for it arrive. They must not change any state.
    pair.network.end_faults(FAR, broker_name(away))
    wait_until(
        lambda: len(pair.shards_served_by(pair.far)) == SHARDS,
        seconds=PATIENCE_S,
        what="the far coordinator serves all",
    )
    pair.write(2)


def _share_coordinator(brokers: BrokersWithFaultyLinks, node: int, key: SharePartitionKey) -> int | None:
    """Ask the broker `node` which broker is the share coordinator of a share-partition; return its number."""
    request = find_coordinator.FindCoordinatorRequest(key_type=2, coordinator_keys=[str(key)])
    port = brokers.brokers[node].client_port
    (found,) = send_request(port, find_coordinator, 6, request).coordinators
    return int(found.node_id) if found.error_code == ErrorCode.NONE else None


class KafkaCoordinators:
    """Kafka's own share coordinator of one share-partition, and clients of each broker."""

    def __init__(self, brokers: BrokersWithFaultyLinks, key: SharePartitionKey) -> None:
        self._brokers = brokers
        self._key = key
        self.owner = wait_until(
            lambda: _share_coordinator(brokers, BROKERS[0], key), seconds=PATIENCE_S, what="a coordinator"
        )
        self.others = [node for node in BROKERS if node != self.owner]

    def client(self, node: int) -> ShareCoordinatorClient:
        address = ("127.0.0.1", self._brokers.brokers[node].client_port)
        return ShareCoordinatorClient(address, direct=True, retry=RetryPolicy(1000, 0.1, 1.0))

    async def acknowledge_offset(self, node: int, offset: int) -> None:
        async with self.client(node) as client:
            if offset == 0:
                await client.initialize(self._key, 1, 0)
            batches = [StateBatch(offset, offset, ACKNOWLEDGED, 1)]
            await client.write(self._key, state_epoch=1, leader_epoch=0, start_offset=0, batches=batches)

    async def read_last_offset(self, node: int) -> int:
        async with self.client(node) as client:
            return (await client.read(self._key, 0)).batches[-1].last_offset

    def find_successor(self) -> int | None:
        """Return the new coordinator that another broker reports, or None if it still reports the owner."""
        found = _share_coordinator(self._brokers, self.others[0], self._key)
        return None if found == self.owner else found

    def isolate_owner(self) -> None:
        for node in self.others:
            self._brokers.network.cut(broker_name(self.owner), broker_name(node))

    def end_faults(self) -> None:
        for node in self.others:
            self._brokers.network.end_faults(broker_name(self.owner), broker_name(node))


def test_isolated_share_coordinator_of_kafka_answers_stale_reads(
    linked_brokers: BrokersWithFaultyLinks, newest_jars: KafkaJars, tmp_path: Path
) -> None:
    """A coordinator of this project answers no stale read: another owner waits for the end of its lease."""
    kafka = KafkaClient(newest_jars, linked_brokers.bootstrap, tmp_path)
    try:
        topic_id = parse_topic_id(kafka.create_topic("stale"))
    finally:
        kafka.close()
    coordinators = KafkaCoordinators(linked_brokers, SharePartitionKey("stale", topic_id, 0))
    asyncio.run(coordinators.acknowledge_offset(coordinators.owner, 0))
    coordinators.isolate_owner()
    try:
        successor = wait_until(coordinators.find_successor, seconds=PATIENCE_S, what="another coordinator")
        asyncio.run(coordinators.acknowledge_offset(successor, 1))
        # Read for a longer time than the default of `owner.lease.ms`.
        until_s = monotonic() + 4.0
        while monotonic() < until_s:
            assert asyncio.run(coordinators.read_last_offset(coordinators.owner)) == 0
    finally:
        coordinators.end_faults()
    assert asyncio.run(coordinators.read_last_offset(successor)) == 1
