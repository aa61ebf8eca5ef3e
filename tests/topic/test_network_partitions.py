"""Coordinators whose links to the brokers and to each other fail. The brokers are started once."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from coordinator.client import ShareCoordinatorClient, SharePartitionKey, StateBatch
from coordinator.cluster.kafka.group_client import KafkaGroupClient
from protocol.routing import state_partition
from tests.builders import ACKNOWLEDGED, TOPIC_ID
from tests.kafka import wait_until
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import KafkaJars
from tests.kafka.ports import free_ports
from tests.topic.groups import sharing
from tests.topic.linked_brokers import LinkedBrokers
from tests.topic.logs import new_topic
from tests.topic.partition_schedule import draw_schedule
from tests.topic.partitioned_cluster import BROKER_SETTINGS, PartitionedCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

# `make soak` runs longer schedules, and other seeds.
SCHEDULES = 10
SCHEDULE_S = 4.0
SHARDS = 12
PATIENCE_S = 240


@pytest.fixture(scope="module")
def brokers(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedBrokers]:
    with ExitStack() as stack:
        yield LinkedBrokers(newest_jars, tmp_path_factory.mktemp("linked"), stack, BROKER_SETTINGS)


def test_histories_are_linearizable_in_random_partitions(brokers: LinkedBrokers, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = PartitionedCluster(brokers, tmp_path, stack, new_topic("partitions"))
        cluster.start()
        for seed in range(SCHEDULES):
            cluster.run(draw_schedule(seed, SCHEDULE_S))


class NearAndFar:
    """Two coordinators. The near one connects to the brokers directly, and the far one through proxies."""

    def __init__(self, brokers: LinkedBrokers, directory: Path, stack: ExitStack) -> None:
        self.topic = new_topic("reach")
        self.bootstrap = brokers.bootstrap
        self.links = brokers.links[0]
        self.near = self._coordinator(directory / "near", self.bootstrap, stack)
        self.far = self._coordinator(directory / "far", brokers.bootstraps[0], stack)

    def _coordinator(self, directory: Path, bootstrap: str, stack: ExitStack) -> CoordinatorProcess:
        directory.mkdir()
        port, http_port = free_ports(2)
        settings = sharing(bootstrap, self.topic, SHARDS)
        one = CoordinatorProcess(directory, port=port, http_port=http_port, log="kafka", settings=settings)
        stack.callback(one.kill)
        return one

    def look(self) -> tuple[int, dict[int, int]]:
        """Return the broker that coordinates the group, and the leader of each state partition."""

        async def main() -> tuple[int, dict[int, int]]:
            link = KafkaGroupClient(self.bootstrap, self.topic, self.topic)
            try:
                return (await link.find_coordinator()).node, dict(await link.leaders())
            finally:
                await link.close()

        return asyncio.run(main())

    def served_by(self, one: CoordinatorProcess) -> set[int]:
        status, body = one.get("/api/v1/shards")
        assert status == 200, body
        shards = json.loads(body)["items"]
        return {shard["state_partition"] for shard in shards if shard["status"] == "ACTIVE"}

    def share(self) -> bool:
        near, far = self.served_by(self.near), self.served_by(self.far)
        return len(near) == len(far) == SHARDS // 2 and len(near | far) == SHARDS

    def write(self, offset: int) -> None:
        """Write to every shard. Raise an exception if a write is not acknowledged."""

        async def main() -> None:
            addresses = f"127.0.0.1:{self.near.port},127.0.0.1:{self.far.port}"
            async with ShareCoordinatorClient(addresses) as client, asyncio.TaskGroup() as writers:
                for key in _a_key_of_each_shard():
                    writers.create_task(_write(client, key, offset))

        asyncio.run(main())


def _a_key_of_each_shard() -> list[SharePartitionKey]:
    found: dict[int, SharePartitionKey] = {}
    for number in count():
        key = SharePartitionKey(f"group-{number}", TOPIC_ID, 0)
        found.setdefault(state_partition(key, SHARDS), key)
        if len(found) == SHARDS:
            return list(found.values())
    raise AssertionError


async def _write(client: ShareCoordinatorClient, key: SharePartitionKey, offset: int) -> None:
    if offset == 0:
        await client.initialize(key, 1, 0)
    batches = [StateBatch(offset, offset, ACKNOWLEDGED, 1)]
    await client.write(key, state_epoch=1, leader_epoch=0, start_offset=0, batches=batches)
    state = await client.read(key, 0)
    assert [(batch.first_offset, batch.last_offset) for batch in state.batches] == [(0, offset)]


@pytest.fixture
def world(brokers: LinkedBrokers, tmp_path: Path) -> Iterator[NearAndFar]:
    with ExitStack() as stack:
        yield NearAndFar(brokers, tmp_path, stack)


def test_shards_move_to_the_coordinator_that_reaches_their_leader(world: NearAndFar) -> None:
    world.near.start()
    world.far.start()
    wait_until(world.share, seconds=PATIENCE_S, what="each coordinator has half of the shards")
    world.write(0)
    coordinating, leaders = world.look()
    # A member that cannot reach the group coordinator is removed from the group. This test cuts another
    # broker.
    away = next(node for node in world.links if node != coordinating)
    led = {shard for shard, leader in leaders.items() if leader == away}
    assert world.served_by(world.far) & led

    world.links[away].cut()
    wait_until(
        lambda: not world.served_by(world.far) & led and world.share(),
        seconds=PATIENCE_S,
        what="the near coordinator serves the shards of the unreachable broker",
    )
    world.write(1)
    assert f"broker {away} at 127.0.0.1:" in world.far.process.log.read_text()

    # The far coordinator alone serves all shards that it reaches. It can claim them although the unreachable
    # broker coordinates some transactional ids.
    world.near.stop()
    wait_until(
        lambda: world.served_by(world.far) == set(range(SHARDS)) - led,
        seconds=PATIENCE_S,
        what="the far coordinator serves all shards of reachable brokers",
    )

    # Requests that waited for the connection change nothing after its repair.
    world.links[away].mend()
    wait_until(
        lambda: len(world.served_by(world.far)) == SHARDS,
        seconds=PATIENCE_S,
        what="the far coordinator serves all",
    )
    world.write(2)
