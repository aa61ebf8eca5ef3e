"""Test the check for the existence of a topic on a real broker, with and without the Describe permission."""

import asyncio
from pathlib import Path

import pytest

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.topic_existence import make_topic_check
from coordinator.errors import LogUnavailable
from coordinator.serve.forwarding import KAFKA_STATE_TOPIC
from tests.kafka import wait_until
from tests.kafka.broker import Broker
from tests.kafka.jars import KafkaJars
from tests.kafka.ports import free_ports
from tests.kafka.rig import BuiltInRig
from tests.topic.test_group_security import allow_operation, deny_all_requests
from tests.topic.test_security import PASSWORD, USER, secure_listener

pytestmark = pytest.mark.broker


def test_exists_reports_the_topic_and_does_not_create_it(built_in: BuiltInRig) -> None:
    bootstrap = f"127.0.0.1:1,{built_in.broker.bootstrap}"
    built_in.client.create_topic("looked-for")
    assert asyncio.run(make_topic_check(bootstrap, "looked-for")()) is True
    assert asyncio.run(make_topic_check(bootstrap, "not-looked-for")()) is False
    assert "not-looked-for" not in built_in.client.topics()


def test_exists_raises_if_no_broker_can_be_reached() -> None:
    (port,) = free_ports(1)
    with pytest.raises(LogUnavailable):
        asyncio.run(make_topic_check(f"127.0.0.1:{port}", KAFKA_STATE_TOPIC)())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_exists_returns_none_without_the_describe_permission(newest_jars: KafkaJars, tmp_path: Path) -> None:
    broker = Broker(newest_jars, tmp_path)
    signer = secure_listener(broker, tmp_path)
    deny_all_requests(broker)
    look = make_topic_check(
        broker.bootstrap,
        KAFKA_STATE_TOPIC,
        security=ClientSecurity("SASL_SSL", "PLAIN", USER, PASSWORD, ca_file=str(signer)),
    )
    try:
        broker.start()
        assert asyncio.run(look()) is None
        allow_operation(broker, "--operation", "DESCRIBE", "--topic", KAFKA_STATE_TOPIC)
        # The broker applies the ACL later than the controller.
        wait_until(
            lambda: asyncio.run(look()) is not None,
            seconds=120,
            what="the principal may describe the topic",
        )
        assert asyncio.run(look()) is False
    finally:
        broker.kill()
