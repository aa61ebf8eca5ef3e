"""Test the check for the existence of a topic on a real broker (without permission: test_permissions)."""

import asyncio

import pytest

from coordinator.cluster.kafka.topic_existence import topic_exists
from coordinator.errors import LogUnavailable
from coordinator.serve.forwarding import KAFKA_STATE_TOPIC
from tests.kafka.ports import free_ports
from tests.kafka.rig import BuiltInRig

pytestmark = pytest.mark.broker


def test_exists_reports_the_topic_and_does_not_create_it(built_in: BuiltInRig) -> None:
    bootstrap = f"127.0.0.1:1,{built_in.broker.bootstrap}"
    built_in.client.create_topic("looked-for")
    assert asyncio.run(topic_exists(bootstrap, "looked-for")) is True
    assert asyncio.run(topic_exists(bootstrap, "not-looked-for")) is False
    assert "not-looked-for" not in built_in.client.topics()


def test_exists_raises_if_no_broker_can_be_reached() -> None:
    (port,) = free_ports(1)
    with pytest.raises(LogUnavailable):
        asyncio.run(topic_exists(f"127.0.0.1:{port}", KAFKA_STATE_TOPIC))
