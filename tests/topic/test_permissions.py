"""Test which permissions each function needs on a real broker, and what it reports without them.

All tests share a broker, so each needs unique names of topics and groups.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from coordinator.cluster.kafka.share_groups import ShareGroups
from coordinator.cluster.kafka.topic_existence import topic_exists
from protocol.errors import ErrorCode
from protocol.state_records import parse_topic_id
from tests.builders import TOPIC_ID
from tests.kafka import KafkaClient, wait_until
from tests.kafka.jars import KafkaJars
from tests.kafka.observer import ObserverProcess
from tests.topic.groups import run_replica_group
from tests.topic.secured_broker import SecuredBroker, run_secured_broker

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = GROUP = "orders"
STATE_TOPIC = "__share_group_state"

Answer = TypeVar("Answer")


@pytest.fixture(scope="module")
def broker(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with run_secured_broker(newest_jars, tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture(scope="module")
def client(
    newest_jars: KafkaJars, broker: SecuredBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaClient]:
    """A client that may do everything."""
    client = KafkaClient(newest_jars, broker.internal_bootstrap, tmp_path_factory.mktemp("client"))
    yield client
    client.close()


def test_topics_and_groups_without_permission_are_not_reported_as_missing(
    broker: SecuredBroker, client: KafkaClient
) -> None:
    def query(send: Callable[[ShareGroups], Awaitable[Answer]]) -> Answer:
        async def send_and_close() -> Answer:
            groups = ShareGroups(broker.bootstrap, security=broker.security)
            try:
                return await send(groups)
            finally:
                await groups.close()

        return asyncio.run(send_and_close())

    topic_id = parse_topic_id(client.create_topic("hidden"))
    client.set_group_config("hidden", {"share.auto.offset.reset": "earliest"})
    client.produce("hidden", 1)
    consumer = client.share_consumer("hidden", "hidden")
    wait_until(lambda: consumer.poll(200), seconds=120, what="a record")
    consumer.acknowledge(["ACCEPT"])
    consumer.close()

    presence = query(lambda groups: groups.resolve_topic_ids([topic_id, TOPIC_ID]))
    assert presence.names == {}
    assert presence.missing == {TOPIC_ID}
    described = query(lambda groups: groups.describe_groups(["hidden", "nobody"]))
    assert {each.error_code for each in described.values()} == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
    assert query(lambda groups: groups.list_groups()) == set()

    broker.allow("--operation", "DESCRIBE", "--operation", "DELETE", "--group", "hidden", "--group", "nobody")
    wait_until(
        lambda: query(lambda groups: groups.describe_groups(["hidden"]))["hidden"].is_empty,
        seconds=120,
        what="the principal may describe the group",
    )
    # In this response, the broker omits topics without permission, and reports no error.
    assert query(lambda groups: groups.groups_without_offsets(["hidden"])) == {"hidden"}
    broker.allow("--operation", "DESCRIBE", "--topic", "hidden")
    described = query(lambda groups: groups.describe_groups(["nobody"]))
    assert described["nobody"].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    wait_until(
        lambda: query(lambda groups: groups.resolve_topic_ids([topic_id])).names == {topic_id: "hidden"},
        seconds=120,
        what="the principal may describe the topic",
    )
    assert query(lambda groups: groups.groups_without_offsets(["hidden"])) == set()
    # The documented permissions are necessary and sufficient.
    assert query(lambda groups: groups.delete_offsets("hidden", ["hidden"]))["hidden"].error_code == 29
    broker.allow("--operation", "READ", "--topic", "hidden")
    wait_until(
        lambda: query(lambda groups: groups.delete_offsets("hidden", ["hidden"]))["hidden"].error_code == 0,
        seconds=120,
        what="the principal may delete offsets",
    )
    assert query(lambda groups: groups.delete_groups(["hidden"]))["hidden"].error_code == 0


def test_observer_needs_read_and_describe_and_names_a_missing_one(
    broker: SecuredBroker, client: KafkaClient, tmp_path: Path
) -> None:
    _produce_10_and_consume_5_records(client)
    observer = ObserverProcess(tmp_path, broker.bootstrap, broker.settings())
    observer.process.start()
    try:
        check_named_permissions(broker, observer)
    finally:
        observer.kill()


def check_named_permissions(broker: SecuredBroker, observer: ObserverProcess) -> None:
    def unready_reasons() -> str:
        return observer.get("/readyz")[1].decode()

    def get_signals() -> dict[str, Any]:
        items = json.loads(observer.get("/api/v1/signals")[1])["items"]
        return next((item for item in items if item["group"] == GROUP), {})

    def missing_access() -> str:
        return " ".join(json.loads(observer.get("/healthz")[1])["missing_access"])

    def exists(topic: str = STATE_TOPIC) -> bool | None:
        return asyncio.run(topic_exists(broker.bootstrap, topic, security=broker.security))

    broker.allow("--operation", "DESCRIBE", "--topic", "not-created")
    _wait_until("a missing topic is known to be missing", lambda: exists("not-created") is False)
    assert exists() is None, "without the permission, the topic may or may not exist"
    _wait_until("Describe is named", lambda: f"ACL: Describe on topic {STATE_TOPIC}" in unready_reasons())
    broker.allow("--operation", "DESCRIBE", "--topic", STATE_TOPIC)
    _wait_until("the topic is known to exist", lambda: exists() is True)
    _wait_until("Read is named", lambda: f"ACL: Read on topic {STATE_TOPIC}" in unready_reasons())
    broker.allow("--operation", "READ", "--topic", STATE_TOPIC)
    _wait_until("the observer is ready", lambda: observer.get("/readyz")[0] == 200)
    _wait_until("the group is shown", get_signals)
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


async def test_read_on_the_group_is_the_only_needed_permission(broker: SecuredBroker) -> None:
    async with run_replica_group(broker.bootstrap, security=broker.security) as fleet:
        replica = await fleet.add()
        refused = "(GROUP_AUTHORIZATION_FAILED): it needs READ on the group"
        await fleet.wait_until(lambda: refused in str(replica.ownership.health()))
        group = ("--group", "coordinators-", "--resource-pattern-type", "prefixed")
        await asyncio.to_thread(broker.allow, "--operation", "READ", *group)
        await fleet.wait_until(lambda: fleet.is_shared_by(replica))
        await fleet.wait_until(lambda: replica.ownership.health() == [])
