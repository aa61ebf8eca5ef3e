"""Test which permission a coordinator needs for its group, and the error without the permission."""

import asyncio
from pathlib import Path

import pytest

from tests.kafka.jars import KafkaJars
from tests.topic.groups import run_replica_group
from tests.topic.secured_broker import run_secured_broker

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.timeout(600)
async def test_read_on_the_group_is_the_only_needed_permission(
    newest_jars: KafkaJars, tmp_path: Path
) -> None:
    with run_secured_broker(newest_jars, tmp_path) as broker:
        async with run_replica_group(broker.bootstrap, security=broker.security) as fleet:
            replica = await fleet.add()
            refused = "(GROUP_AUTHORIZATION_FAILED): it needs READ on the group"
            await fleet.wait_until(lambda: refused in str(replica.ownership.health()))
            group = ("--group", "coordinators-", "--resource-pattern-type", "prefixed")
            await asyncio.to_thread(broker.allow, "--operation", "READ", *group)
            await fleet.wait_until(lambda: fleet.is_shared_by(replica))
            await fleet.wait_until(lambda: replica.ownership.health() == [])
