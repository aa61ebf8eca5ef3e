"""Offsets of user topics after changes of leaders and of the brokers' addresses."""

from collections.abc import Callable

import pytest

from coordinator.cluster.kafka.broker_results import NO_NODE
from coordinator.cluster.kafka.user_topics import UserTopics
from tests.kafka_in_memory.kafka import KafkaInMemory, TopicBrokers, register_for_close, running_network
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)

TOPIC = "topic"


def restart_at_another_address(brokers: TopicBrokers, node: int) -> None:
    moved = ("moved", 9092)
    network = running_network().brokers.pop(brokers.addresses[node])
    network._nodes[moved] = node
    running_network().brokers[moved] = network
    brokers.addresses[node] = moved
    brokers.set_down(node)
    brokers.set_down()


@pytest.mark.parametrize(
    ("fail", "recover"),
    [
        pytest.param(
            lambda brokers: brokers.set_leader(0, NO_NODE),
            lambda brokers: brokers.set_leader(0, 2),
            id="no leader for some time",
        ),
        pytest.param(
            lambda brokers: restart_at_another_address(brokers, 1), lambda brokers: None, id="another address"
        ),
    ],
)
async def test_offsets_are_known_again_after_a_failure(
    fail: Callable[[TopicBrokers], None], recover: Callable[[TopicBrokers], None]
) -> None:
    kafka = KafkaInMemory(nodes=2)
    kafka.new_client(TOPIC)
    kafka.create_topic(TOPIC, 2)
    brokers = kafka.brokers(TOPIC)
    servers = ",".join(f"{host}:{port}" for host, port in brokers.addresses.values())
    topics = register_for_close(UserTopics(servers))
    partitions = [(brokers.topic_id, 0), (brokers.topic_id, 1)]
    known = dict.fromkeys(partitions, 0)
    assert await topics.end_offsets(partitions) == known
    fail(brokers)
    for _ in range(2):
        await topics.end_offsets(partitions)
    recover(brokers)
    for _ in range(2):
        found = await topics.end_offsets(partitions)
    assert found == known
