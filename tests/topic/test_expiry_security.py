"""Test what a real broker answers about topics and groups to a principal without the Describe permission."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.share_groups import ShareGroups
from protocol.errors import ErrorCode
from protocol.state_records import parse_topic_id
from tests.builders import TOPIC_ID
from tests.kafka import KafkaClient, wait_until
from tests.kafka.broker import Broker
from tests.kafka.jars import KafkaJars
from tests.topic.test_group_security import allow_operation, deny_all_requests
from tests.topic.test_security import PASSWORD, USER, secure_listener

pytestmark = [pytest.mark.broker, pytest.mark.slow]


Answer = TypeVar("Answer")


def run_query(made: ShareGroups, question: Callable[[ShareGroups], Awaitable[Answer]]) -> Answer:
    async def main() -> Answer:
        try:
            return await question(made)
        finally:
            await made.close()

    return asyncio.run(main())


@pytest.mark.timeout(600)
def test_missing_permission_does_not_look_like_absence(newest_jars: KafkaJars, tmp_path: Path) -> None:
    broker = Broker(newest_jars, tmp_path)
    signer = secure_listener(broker, tmp_path)
    deny_all_requests(broker)
    security = ClientSecurity("SASL_SSL", "PLAIN", USER, PASSWORD, ca_file=str(signer))

    groups = partial(ShareGroups, broker.bootstrap, security=security)
    broker.start()
    client = KafkaClient(newest_jars, f"127.0.0.1:{broker.internal_port}", tmp_path)
    try:
        topic_id = parse_topic_id(client.create_topic("hidden"))
        client.set_group_config("hidden", {"share.auto.offset.reset": "earliest"})
        client.produce("hidden", 1)
        consumer = client.share_consumer("hidden", "hidden")
        wait_until(lambda: consumer.poll(200), seconds=120, what="a record")
        consumer.acknowledge(["ACCEPT"])
        consumer.close()

        presence = run_query(groups(), lambda each: each.resolve_topic_ids([topic_id, TOPIC_ID]))
        assert presence.names == {}
        assert presence.missing == {TOPIC_ID}
        described = run_query(groups(), lambda each: each.describe_groups(["hidden", "nobody"]))
        assert {each.error_code for each in described.values()} == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
        assert run_query(groups(), lambda each: each.names()) == set()

        allow_operation(broker, "--operation", "DESCRIBE", "--operation", "DELETE", "--group", "*")
        wait_until(
            lambda: run_query(groups(), lambda each: each.describe_groups(["hidden"]))["hidden"].is_empty,
            seconds=120,
            what="the principal may describe the group",
        )
        # In this response, the broker omits topics without permission, and reports no error.
        assert run_query(groups(), lambda each: each.groups_without_offsets(["hidden"])) == {"hidden"}
        allow_operation(broker, "--operation", "DESCRIBE", "--topic", "hidden")
        described = run_query(groups(), lambda each: each.describe_groups(["nobody"]))
        assert described["nobody"].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        wait_until(
            lambda: (
                run_query(groups(), lambda each: each.resolve_topic_ids([topic_id])).names
                == {topic_id: "hidden"}
            ),
            seconds=120,
            what="the principal may describe the topic",
        )
        assert run_query(groups(), lambda each: each.groups_without_offsets(["hidden"])) == set()
        # The documented permissions are necessary and sufficient.
        delete = partial(run_query, question=lambda each: each.delete_offsets("hidden", ["hidden"]))
        assert delete(groups())["hidden"].error_code == 29
        allow_operation(broker, "--operation", "READ", "--topic", "hidden")
        wait_until(
            lambda: delete(groups())["hidden"].error_code == 0,
            seconds=120,
            what="the principal may delete offsets",
        )
        assert run_query(groups(), lambda each: each.delete_groups(["hidden"]))["hidden"].error_code == 0
    finally:
        client.close()
        broker.kill()
