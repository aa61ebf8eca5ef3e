"""Test that an observer needs Describe and Read on the state topic, and reports a missing permission."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import KafkaClient, wait_until
from tests.kafka.broker import Broker
from tests.kafka.jars import KafkaJars
from tests.kafka.observer import ObserverProcess
from tests.topic.test_group_security import allow_operation, deny_all_requests
from tests.topic.test_security import PASSWORD, USER, secure_listener

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPIC = GROUP = "orders"
STATE_TOPIC = "__share_group_state"


@pytest.mark.timeout(600)
def test_observer_needs_read_and_describe_and_names_a_missing_one(
    newest_jars: KafkaJars, tmp_path: Path
) -> None:
    broker = Broker(newest_jars, tmp_path)
    signer = secure_listener(broker, tmp_path)
    deny_all_requests(broker)
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(signer),
    }
    observer = ObserverProcess(tmp_path, broker.bootstrap, settings)

    def unready_reasons() -> str:
        return observer.get("/readyz")[1].decode()

    def get_signals() -> dict[str, Any]:
        items = json.loads(observer.get("/api/v1/signals")[1])["items"]
        return items[0] if items else {}

    def missing_access() -> str:
        return " ".join(json.loads(observer.get("/healthz")[1])["missing_access"])

    client = None
    try:
        broker.start()
        client = KafkaClient(newest_jars, f"127.0.0.1:{broker.internal_port}", tmp_path)
        _consume_half(client)
        observer.process.start()
        _wait_for("Describe is named", lambda: f"ACL: Describe on topic {STATE_TOPIC}" in unready_reasons())
        allow_operation(broker, "--operation", "DESCRIBE", "--topic", STATE_TOPIC)
        _wait_for("Read is named", lambda: f"ACL: Read on topic {STATE_TOPIC}" in unready_reasons())
        allow_operation(broker, "--operation", "READ", "--topic", STATE_TOPIC)
        _wait_for("the observer is ready", lambda: observer.get("/readyz")[0] == 200)
        _wait_for("the group is shown", lambda: get_signals().get("group") == GROUP)
        assert get_signals()["lag"] is None, "the user topic is hidden"
        _wait_for("Describe on topics is named", lambda: "Lag is not known for 1 topic" in missing_access())
        allow_operation(broker, "--operation", "DESCRIBE", "--topic", TOPIC)
        _wait_for("the lag is known", lambda: get_signals()["lag"] == 5)
        _wait_for(
            "Describe on groups is named",
            lambda: (
                missing_access() == f"Members are not known for 1 group, such as {GROUP}: not allowed. "
                "Add the ACL: Describe on these groups."
            ),
        )
        allow_operation(broker, "--operation", "DESCRIBE", "--group", GROUP)
        _wait_for("the members are known", lambda: get_signals()["members"] == 0)
        assert missing_access() == ""
    finally:
        observer.kill()
        if client is not None:
            client.close()
        broker.kill()


def _consume_half(client: KafkaClient) -> None:
    """Produce 10 records and consume 5 of them."""
    client.create_topic(TOPIC)
    client.set_group_config(GROUP, {"share.auto.offset.reset": "earliest"})
    client.produce(TOPIC, 5)
    consumer = client.share_consumer(GROUP, TOPIC)
    records = wait_until(consumer.poll, seconds=120, what="records are delivered")
    consumer.acknowledge(["ACCEPT"] * len(records))
    consumer.close()
    client.produce(TOPIC, 5, first=5)


def _wait_for(what: str, condition: Any) -> None:
    wait_until(condition, seconds=120, what=what)
