"""Test three brokers, each behind its own HAProxy, and one coordinator, with deploy/kafka/three unchanged."""

import pytest

from tests.e2e.delivery_recorder import (
    SMALL_COMMITS,
    DeliveryRecorder,
    consume_rest,
    mixed_acknowledgements,
    new_topic,
    produce_records,
)
from tests.kafka import ThreeBrokerRig

pytestmark = pytest.mark.broker

PARTITIONS = 6


def test_new_leader_reads_state_of_killed_leader(three_brokers: ThreeBrokerRig) -> None:
    """Each record has three replicas, so the brokers must also reach each other through HAProxy."""
    client = three_brokers.client
    topic, group, _ = new_topic(client, "replicated", partitions=PARTITIONS)
    produce_records(client, topic, PARTITIONS, first=0, count=50)
    recorder = DeliveryRecorder()
    consumer = client.share_consumer(group, topic, SMALL_COMMITS)
    recorder.consume_until_acknowledged(consumer, mixed_acknowledgements, PARTITIONS * 20, seconds=120)
    # The killed broker led two of the six partitions.
    three_brokers.brokers[1].kill()
    recorder.consume_until_acknowledged(consumer, mixed_acknowledgements, PARTITIONS * 50, seconds=120)
    consumer.close()

    assert consume_rest(client, group, topic, PARTITIONS, end=50) == []
    assert recorder.violations == []
    assert "__share_group_state" not in client.topics()
