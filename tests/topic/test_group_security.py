"""Test which permission a coordinator needs for its group, and the error without the permission."""

import asyncio
from pathlib import Path

import pytest

from coordinator.client import ClientSecurity
from tests.kafka.broker import Broker
from tests.kafka.jars import RELEASES, KafkaJars, fetch_jars
from tests.topic.groups import run_fleet
from tests.topic.test_security import PASSWORD, USER, secure_listener

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def deny_all_requests(broker: Broker) -> None:
    """Make the broker deny all requests, except those on its internal listener."""
    for override in (
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:ANONYMOUS",
    ):
        broker.process.command += ["--override", override]


def allow_operation(broker: Broker, *what: str) -> None:
    """Add an ACL that allows an operation to the test user."""
    # The tool needs a class that the newest release does not have.
    done = fetch_jars(RELEASES[-2]).run(
        "org.apache.kafka.tools.AclCommand",
        "--bootstrap-server",
        f"127.0.0.1:{broker.internal_port}",
        "--add",
        "--allow-principal",
        f"User:{USER}",
        *what,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@pytest.mark.timeout(600)
def test_read_on_the_group_is_the_only_needed_permission(newest_jars: KafkaJars, tmp_path: Path) -> None:
    broker = Broker(newest_jars, tmp_path)
    signer = secure_listener(broker, tmp_path)
    deny_all_requests(broker)
    security = ClientSecurity("SASL_SSL", "PLAIN", USER, PASSWORD, ca_file=str(signer))

    async def run_test() -> None:
        async with run_fleet(broker.bootstrap, security=security) as fleet:
            one = await fleet.add()
            refused = "(GROUP_AUTHORIZATION_FAILED): it needs READ on the group"
            await fleet.wait_until(lambda: refused in str(one.ownership.health()))
            group = ("--group", "coordinators-", "--resource-pattern-type", "prefixed")
            await asyncio.to_thread(allow_operation, broker, "--operation", "READ", *group)
            await fleet.wait_until(lambda: fleet.is_shared_by(one))
            await fleet.wait_until(lambda: one.ownership.health() == [])

    try:
        broker.start()
        asyncio.run(run_test())
    finally:
        broker.kill()
