"""Test that an observer needs Describe and Read on the state topic, and reports a missing permission."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import KafkaClient, wait_until
from tests.kafka.jars import KafkaJars
from tests.kafka.observer import ObserverProcess
from tests.topic.secured_broker import SecuredBroker, run_secured_broker

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPIC = GROUP = "orders"
STATE_TOPIC = "__share_group_state"


@pytest.mark.timeout(600)
def test_observer_needs_read_and_describe_and_names_a_missing_one(
    newest_jars: KafkaJars, tmp_path: Path
) -> None:
    with run_secured_broker(newest_jars, tmp_path) as broker:
        client = KafkaClient(newest_jars, broker.internal_bootstrap, tmp_path)
        observer = ObserverProcess(tmp_path, broker.bootstrap, broker.settings())
        try:
            _produce_10_and_consume_5_records(client)
            check_named_permissions(broker, observer)
        finally:
            observer.kill()
            client.close()


def check_named_permissions(broker: SecuredBroker, observer: ObserverProcess) -> None:
    def unready_reasons() -> str:
        return observer.get("/readyz")[1].decode()

    def get_signals() -> dict[str, Any]:
        items = json.loads(observer.get("/api/v1/signals")[1])["items"]
        return items[0] if items else {}

    def missing_access() -> str:
        return " ".join(json.loads(observer.get("/healthz")[1])["missing_access"])

    observer.process.start()
    _wait_until("Describe is named", lambda: f"ACL: Describe on topic {STATE_TOPIC}" in unready_reasons())
    broker.allow("--operation", "DESCRIBE", "--topic", STATE_TOPIC)
    _wait_until("Read is named", lambda: f"ACL: Read on topic {STATE_TOPIC}" in unready_reasons())
    broker.allow("--operation", "READ", "--topic", STATE_TOPIC)
    _wait_until("the observer is ready", lambda: observer.get("/readyz")[0] == 200)
    _wait_until("the group is shown", lambda: get_signals().get("group") == GROUP)
    assert get_signals()["lag"] is None, "the user topic is hidden"
    _wait_until("Describe on topics is named", lambda: "Lag is not known for 1 topic" in missing_access())
    broker.allow("--operation", "DESCRIBE", "--topic", TOPIC)
    _wait_until("the lag is known", lambda: get_signals()["lag"] == 5)
    _wait_until(
        "Describe on groups is named",
        lambda: (
            missing_access() == f"Members are not known for 1 group, such as {GROUP}: not allowed. "
            "Add the ACL: Describe on these groups."
        ),
    )
    broker.allow("--operation", "DESCRIBE", "--group", GROUP)
    _wait_until("the members are known", lambda: get_signals()["members"] == 0)
    assert missing_access() == ""


def _produce_10_and_consume_5_records(client: KafkaClient) -> None:
    client.create_topic(TOPIC)
    client.set_group_config(GROUP, {"share.auto.offset.reset": "earliest"})
    client.produce(TOPIC, 5)
    consumer = client.share_consumer(GROUP, TOPIC)
    records = wait_until(consumer.poll, seconds=120, what="records are delivered")
    consumer.acknowledge(["ACCEPT"] * len(records))
    consumer.close()
    client.produce(TOPIC, 5, first=5)


def _wait_until(what: str, condition: Any) -> None:
    wait_until(condition, seconds=120, what=what)
