"""Test what a real broker answers about topics and groups to a principal without the Describe permission."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from coordinator.cluster.kafka.share_groups import ShareGroups
from protocol.errors import ErrorCode
from protocol.state_records import parse_topic_id
from tests.builders import TOPIC_ID
from tests.kafka import KafkaClient, wait_until
from tests.kafka.jars import KafkaJars
from tests.topic.secured_broker import SecuredBroker, run_secured_broker

pytestmark = [pytest.mark.broker, pytest.mark.slow]


Answer = TypeVar("Answer")


@pytest.mark.timeout(600)
def test_topics_and_groups_without_permission_are_not_reported_as_missing(
    newest_jars: KafkaJars, tmp_path: Path
) -> None:
    with run_secured_broker(newest_jars, tmp_path) as broker:
        client = KafkaClient(newest_jars, broker.internal_bootstrap, tmp_path)
        try:
            check_permissions(broker, client)
        finally:
            client.close()


def check_permissions(broker: SecuredBroker, client: KafkaClient) -> None:
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

    broker.allow("--operation", "DESCRIBE", "--operation", "DELETE", "--group", "*")
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
