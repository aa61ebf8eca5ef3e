"""Test the check for the existence of a topic on a real broker, with and without the Describe permission."""

import asyncio
from pathlib import Path

import pytest

from coordinator.cluster.kafka.topic_existence import topic_exists
from coordinator.errors import LogUnavailable
from coordinator.serve.forwarding import KAFKA_STATE_TOPIC
from tests.kafka import wait_until
from tests.kafka.jars import KafkaJars
from tests.kafka.ports import free_ports
from tests.kafka.rig import BuiltInRig
from tests.topic.secured_broker import run_secured_broker

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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_exists_returns_none_without_the_describe_permission(newest_jars: KafkaJars, tmp_path: Path) -> None:
    with run_secured_broker(newest_jars, tmp_path) as broker:

        def check_existence() -> bool | None:
            return asyncio.run(topic_exists(broker.bootstrap, KAFKA_STATE_TOPIC, security=broker.security))

        assert check_existence() is None
        broker.allow("--operation", "DESCRIBE", "--topic", KAFKA_STATE_TOPIC)
        # The broker applies the ACL later than the controller.
        wait_until(
            lambda: check_existence() is not None,
            seconds=120,
            what="the principal may describe the topic",
        )
        assert check_existence() is False
