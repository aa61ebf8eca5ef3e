"""Test that the simulated brokers have the faults of real brokers, and no other faults."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from coordinator.cluster.kafka import broker_results as kafka
from coordinator.cluster.kafka.broker_results import NoResponse
from coordinator.cluster.kafka.brokers import Brokers
from protocol.errors import ErrorCode
from protocol.record_batch import encode_batch
from tests.simulation.kafka.brokers import BrokerFaults, SimBrokers
from tests.simulation.kafka.connections import PROCESS_NAME, connect_to_brokers
from tests.simulation.loop import SimLoop
from tests.simulation.world import wait_until

Scene = Callable[[SimBrokers, Brokers], Awaitable[None]]
RunScenario = Callable[..., None]
TIMEOUT_S = 2.0


@pytest.fixture
def run_scene() -> Iterator[RunScenario]:
    """Run a scene in a process that is connected to the leader of partition 0; then the faults begin."""
    loop = SimLoop()

    def run(scene: Scene, **faults: float) -> None:
        async def main() -> None:
            brokers = SimBrokers(loop, Random(3), BrokerFaults(), nodes=3, partitions=2)
            connect_to_brokers(brokers, TIMEOUT_S)
            cluster = Brokers("broker-2:9092,broker-3:9092", "state", request_timeout_s=TIMEOUT_S)
            await cluster.connect()
            assert cluster.pin_topic_id() == brokers.topic_id
            assert await read_end_offset(cluster, cluster.leader(0)) == (ErrorCode.NONE, 0)
            brokers.faults = BrokerFaults(**faults)  # type: ignore[arg-type]
            await scene(brokers, cluster)
            await cluster.close()

        loop.run_until_complete(main())
        assert not loop.failures

    yield run
    loop.close()


def encode_test_batch(sequence: int, producer_id: int = 7, producer_epoch: int = 0) -> bytes:
    return encode_batch(
        0,
        1,
        [(b"k", b"v")],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )


async def produce_batch(cluster: Brokers, data: bytes, node: int | None = None) -> kafka.ProduceResult:
    node = cluster.leader(0) if node is None else node
    return (await cluster.produce(node, "lane", [(0, data)], 1_000))[0]


async def fetch_records(cluster: Brokers, node: int, channel: str = "lane") -> kafka.FetchResult:
    return (await cluster.fetch(node, channel, {0: 0}, 1 << 20))[0]


def test_disconnected_broker_keeps_its_metadata_and_others_learn_of_leaders_later(
    run_scene: RunScenario,
) -> None:
    async def run_test(brokers: SimBrokers, cluster: Brokers) -> None:
        old = brokers.topic_metadata(1)
        brokers.disconnect_broker(1)
        assert brokers.topic_metadata(2) == brokers.topic_metadata(3) == old
        await asyncio.sleep(60.0)
        for node in (2, 3):
            # The second leader epoch began when the partition had no leader.
            assert brokers.topic_metadata(node).partitions[0][1:3] == (brokers.leaders()[0], 2)
        assert brokers.topic_metadata(1) == old
        brokers.reconnect_broker(1)
        assert brokers.topic_metadata(1) == brokers.topic_metadata(2)

    run_scene(run_test, elections_s=0.2, metadata_delay_s=2.0)


async def read_end_offset(cluster: Brokers, node: int, channel: str = "lane") -> kafka.ListedOffset:
    return (await cluster.list_end_offsets(node, channel, [0]))[0]


def test_disconnected_node_returns_an_old_end_and_acknowledges_nothing(run_scene: RunScenario) -> None:
    async def run_test(brokers: SimBrokers, cluster: Brokers) -> None:
        node = cluster.leader(0)
        assert await produce_batch(cluster, encode_test_batch(0)) == (ErrorCode.NONE, 0)
        brokers.disconnect_broker(node)
        await asyncio.sleep(10.0)
        leader = brokers.partitions[0].leader
        assert leader not in (node, kafka.NO_NODE)
        assert await produce_batch(cluster, encode_test_batch(1), leader) == (ErrorCode.NONE, 1)
        assert await read_end_offset(cluster, leader) == (ErrorCode.NONE, 2)
        assert await read_end_offset(cluster, node) == (ErrorCode.NONE, 1)
        assert len((await fetch_records(cluster, node)).data) == len(encode_test_batch(0))
        assert (await fetch_records(cluster, leader)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        cluster.refresh_soon()
        await wait_until(lambda: cluster.leader(0) == leader, brokers.leaders)
        assert len((await fetch_records(cluster, leader)).data) > len(encode_test_batch(0))
        assert (await fetch_records(cluster, node)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await produce_batch(cluster, encode_test_batch(2), node)).error_code != ErrorCode.NONE
        assert brokers.partitions[0].end == 2
        brokers.reconnect_broker(node)
        assert (await read_end_offset(cluster, node)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_scene(run_test)


def test_acknowledged_record_survives_the_death_of_its_leader(run_scene: RunScenario) -> None:
    async def run_test(brokers: SimBrokers, cluster: Brokers) -> None:
        node = cluster.leader(0)
        assert (await produce_batch(cluster, encode_test_batch(0))).error_code == ErrorCode.NONE
        brokers.kill(node)
        with pytest.raises(NoResponse):
            await produce_batch(cluster, encode_test_batch(1))
        await asyncio.sleep(10.0)
        assert await read_end_offset(cluster, brokers.partitions[0].leader) == (ErrorCode.NONE, 1)

    run_scene(run_test)


def test_append_is_visible_when_the_replicas_have_it(run_scene: RunScenario) -> None:
    async def run_test(brokers: SimBrokers, cluster: Brokers) -> None:
        node, partition = cluster.leader(0), brokers.partitions[0]
        assert await produce_batch(cluster, encode_test_batch(0)) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert (partition.end, partition.high_watermark) == (1, 0)
        assert await read_end_offset(cluster, node, "read") == (ErrorCode.NONE, 0)
        assert (await fetch_records(cluster, node, "read")).data == b""
        committed = asyncio.create_task(produce_batch(cluster, encode_test_batch(0)))
        await asyncio.sleep(0.5)
        assert not committed.done()
        partition.commit(1)
        assert await committed == (ErrorCode.NONE, 0)
        assert await read_end_offset(cluster, node, "read") == (ErrorCode.NONE, 1)
        assert (await fetch_records(cluster, node, "read")).data

    run_scene(run_test, replicas_late_rate=1.0, replicas_late_max_s=500.0)


def test_election_loses_no_acknowledged_batch_but_uncommitted_ones(run_scene: RunScenario) -> None:
    async def run_test(brokers: SimBrokers, cluster: Brokers) -> None:
        partition = brokers.partitions[0]
        lost = 0
        for sequence in range(20):
            end = partition.end
            pending = asyncio.create_task(produce_batch(cluster, encode_test_batch(sequence)))
            await wait_until(lambda end=end: partition.end == end + 1, lambda: partition.end)
            assert partition.high_watermark == end
            brokers.elect_another_leader(0)
            assert (await pending).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            lost += partition.end == end
            cluster.refresh_soon()
            await wait_until(lambda: cluster.leader(0) == partition.leader, brokers.leaders)
            await asyncio.sleep(1.0)
            # The producer sends the batch again. The new leader has it, or appends it now.
            brokers.faults = replace(brokers.faults, replicas_late_rate=0.0)
            assert await produce_batch(cluster, encode_test_batch(sequence)) == (ErrorCode.NONE, end)
            brokers.faults = replace(brokers.faults, replicas_late_rate=1.0)
        assert 0 < lost < 20

    run_scene(run_test, replicas_late_rate=1.0, replicas_late_max_s=500.0, elections_s=0.01)


def test_late_request_arrives_after_its_sender_has_timed_out(run_scene: RunScenario) -> None:
    async def run_test(brokers: SimBrokers, cluster: Brokers) -> None:
        with pytest.raises(NoResponse) as given_up:
            await produce_batch(cluster, encode_test_batch(0))
        assert given_up.value.sent
        assert brokers.partitions[0].end == 0
        await asyncio.sleep(20.0)
        assert brokers.partitions[0].end == 1
        brokers.faults = replace(brokers.faults, late_rate=0.0)
        assert await produce_batch(cluster, encode_test_batch(0)) == (ErrorCode.NONE, 0), (
            "a duplicate returns its old offset"
        )

    async def check_dropped(brokers: SimBrokers, cluster: Brokers) -> None:
        with pytest.raises(NoResponse):
            await produce_batch(cluster, encode_test_batch(0))
        brokers.kill(cluster.leader(0))
        await asyncio.sleep(20.0)
        assert brokers.partitions[0].end == 0

    run_scene(run_test, late_rate=1.0, late_max_s=5.0)
    run_scene(check_dropped, late_rate=1.0, late_max_s=5.0)


def test_late_request_of_a_fenced_producer_is_refused_until_it_expires(run_scene: RunScenario) -> None:
    async def run_test(brokers: SimBrokers, cluster: Brokers) -> None:
        assert (
            await produce_batch(cluster, encode_test_batch(0, producer_epoch=0))
        ).error_code == ErrorCode.NONE
        assert (
            await produce_batch(cluster, encode_test_batch(0, producer_epoch=1))
        ).error_code == ErrorCode.NONE
        refused = await produce_batch(cluster, encode_test_batch(1, producer_epoch=0))
        assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        brokers.expire_producers(older_than_s=brokers.loop.time() + 1.0)
        assert (
            await produce_batch(cluster, encode_test_batch(1, producer_epoch=0))
        ).error_code == ErrorCode.NONE

    run_scene(run_test)


def test_process_without_one_node_reaches_the_others(run_scene: RunScenario) -> None:
    async def run_test(brokers: SimBrokers, cluster: Brokers) -> None:
        node = cluster.leader(0)
        brokers.blocked.add((PROCESS_NAME, node))
        with pytest.raises(NoResponse) as unanswered:
            await produce_batch(cluster, encode_test_batch(0))
        assert unanswered.value.sent
        with pytest.raises(NoResponse) as refused:
            await produce_batch(cluster, encode_test_batch(0))
        assert not refused.value.sent
        brokers.elect_another_leader(0)
        cluster.refresh_soon()
        await wait_until(lambda: cluster.leader(0) != node, brokers.leaders)
        assert (await produce_batch(cluster, encode_test_batch(0))).error_code == ErrorCode.NONE

    run_scene(run_test)
