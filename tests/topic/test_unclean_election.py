"""An unclean leader election of a real Kafka loses the claim of an owner."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest

from coordinator.cluster.kafka.broker_results import NO_NODE, ProducerId
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.errors import LogOutcomeUnknown
from coordinator.log.kafka import KafkaLog, TopicConfig
from coordinator.process.clock import SystemClock
from tests.kafka.broker import Broker, new_cluster
from tests.kafka.jars import KafkaJars
from tests.kafka.rig import start_brokers
from tests.topic.logs import LIMITS
from tests.unit.log.environments import append, append_durably, append_error, read_all
from tests.unit.log.kafka_logs import wait_for_leases

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

REPLICAS = 2
TOPIC_CONFIGS = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
# A dead broker is detected early, and each broker can coordinate transactions.
BROKER_SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "1",
}


class BrokersWithoutTransactionalIds(Brokers):
    """A client that is not authorized to use transactional ids: each owner has another producer id."""

    async def init_producer_id(self, transactional_id: str | None) -> ProducerId:
        return await super().init_producer_id(None)


@asynccontextmanager
async def owned_log(brokers: Brokers, topic: str) -> AsyncIterator[KafkaLog]:
    """Claim the only state partition of a topic."""
    config = TopicConfig(topic, 1, replication_factor=REPLICAS, min_isr=1)
    log = KafkaLog(brokers, config, owner="test", clock=SystemClock(), limits=LIMITS)
    try:
        await log.open()
        await log.acquire_ownership(0)
        await read_all(log, range(1))
        await wait_for_leases(log, 0)
        yield log
    finally:
        await log.close()


async def wait_for_leader(brokers: Brokers, node: int) -> None:
    """Wait until the metadata names this leader."""
    while brokers.leader(0) != node:
        brokers.refresh_soon()
        await asyncio.sleep(0.1)


def find_replicas(brokers: Brokers) -> tuple[int, ...]:
    """Return the replicas of the state partition."""
    return brokers._connections.metadata.topic.partitions[0].replicas


@pytest.fixture(scope="module")
def nodes(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Broker]]:
    """Three brokers by node id."""
    directory = tmp_path_factory.mktemp("unclean")
    with ExitStack() as stack:
        cluster = new_cluster(brokers=3)
        yield dict(
            enumerate(start_brokers(stack, newest_jars, directory, cluster, overrides=BROKER_SETTINGS), 1)
        )


@pytest.mark.parametrize("client", [Brokers, BrokersWithoutTransactionalIds])
async def test_owner_detects_the_loss_of_its_claim_if_another_process_wrote_as_many_records(
    client: type[Brokers], nodes: dict[int, Broker]
) -> None:
    topic, bootstrap = client.__name__, nodes[1].bootstrap
    async with AsyncExitStack() as logs:
        brokers = client(bootstrap, topic, request_timeout_s=LIMITS.request_timeout_s)
        await brokers.connect()
        logs.push_async_callback(brokers.close)
        assert await brokers.create_topic(1, REPLICAS, TOPIC_CONFIGS)
        first = await logs.enter_async_context(owned_log(client(bootstrap, topic), topic))
        await append_durably(first, 0, [(b"k", b"kept")])
        await brokers.describe_topic()
        leader = brokers.leader(0)
        assert leader != NO_NODE
        (follower,) = set(find_replicas(brokers)) - {leader}
        await asyncio.to_thread(nodes[follower].kill)
        second = await logs.enter_async_context(owned_log(client(bootstrap, topic), topic))
        await append_durably(second, 0, [(b"k", b"lost")])
        lost = second.end_offset(0) - first.end_offset(0)
        assert lost > 1
        await asyncio.to_thread(nodes[leader].kill)
        await asyncio.to_thread(nodes[follower].start)
        await wait_for_leader(brokers, follower)
        # The claim of the second owner is lost, so the first owner is the owner again.
        base_offset, error = await append(first, 0, [(b"k", b"%d" % number) for number in range(lost)])
        assert (base_offset, error) == (second.end_offset(0) - lost, None)
        assert isinstance(await append_error(second, 0, [(b"k", b"invalid")]), LogOutcomeUnknown)
        assert second.lease_left_s(0) <= 0
    # The next test uses the same brokers.
    await asyncio.to_thread(nodes[leader].start)
