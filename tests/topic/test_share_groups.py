"""Test share-group requests to a real broker of each release: descriptions, changes and refusals."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from coordinator.cluster.kafka.share_groups import ChangeResult, GroupDescription, ShareGroups
from coordinator.errors import LogUnavailable
from protocol.errors import ErrorCode
from tests.kafka import RELEASES, BuiltInRig, fetch_jars
from tests.kafka.ports import free_ports
from tests.kafka.processes import wait_until
from tests.kafka.rig import built_in_rig

pytestmark = [pytest.mark.broker, pytest.mark.slow]

DONE = ChangeResult(0)

T = TypeVar("T")


@pytest.fixture(scope="module", params=RELEASES)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltInRig]:
    """Start a broker of each release with its own share coordinator."""
    with built_in_rig(fetch_jars(request.param), tmp_path_factory.mktemp(request.param)) as rig:
        yield rig


def query_share_groups(rig: BuiltInRig, question: Callable[[ShareGroups], Awaitable[T]]) -> T:
    async def ask_and_close() -> T:
        groups = ShareGroups(rig.broker.bootstrap)
        try:
            return await question(groups)
        finally:
            await groups.close()

    return asyncio.run(ask_and_close())


def describe_group(rig: BuiltInRig, group: str) -> GroupDescription:
    return query_share_groups(rig, lambda groups: groups.describe_groups([group]))[group]


@contextmanager
def running_member(rig: BuiltInRig, group: str, topic: str) -> Iterator[None]:
    """Run a share consumer that has received a record of a topic, while the context is open."""
    rig.client.set_group_config(group, {"share.auto.offset.reset": "earliest"})
    rig.client.produce(topic, 1)
    consumer = rig.client.share_consumer(group, topic)
    try:
        wait_until(lambda: consumer.poll(200) or None, seconds=120, what="a record")
        consumer.acknowledge(["ACCEPT"])
        yield
    finally:
        consumer.close()


def test_description_of_a_group_has_the_subscriptions_of_its_members(rig: BuiltInRig) -> None:
    for topic in ("described-a", "described-b"):
        rig.client.create_topic(topic)
    with running_member(rig, "described", "described-a"):
        with running_member(rig, "described", "described-b"):
            both = describe_group(rig, "described")
            assert (both.error_code, both.members, both.is_empty) == (0, 2, False)
            assert both.subscribed == {"described-a", "described-b"}
        one = describe_group(rig, "described")
        assert (one.members, one.subscribed) == (1, {"described-a"})
        assert one.group_epoch > both.group_epoch
    empty = describe_group(rig, "described")
    assert (empty.state, empty.is_empty, empty.subscribed) == ("Empty", True, frozenset())
    assert empty.group_epoch > one.group_epoch
    assert describe_group(rig, "described") == empty, "the group epoch changed without a member"


def test_missing_group_is_distinguished_from_an_unreachable_cluster(rig: BuiltInRig) -> None:
    unknown = describe_group(rig, "nobody")
    assert (unknown.error_code, unknown.is_empty) == (ErrorCode.GROUP_ID_NOT_FOUND, False)
    (port,) = free_ports(1)
    with pytest.raises(LogUnavailable):
        asyncio.run(ShareGroups(f"127.0.0.1:{port}").describe_groups(["nobody"]))


def test_offsets_can_be_deleted_only_while_the_group_is_empty(rig: BuiltInRig) -> None:
    for topic in ("deleted-a", "deleted-b"):
        rig.client.create_topic(topic)
    topics = ["deleted-a", "deleted-b", "deleted-c"]
    with running_member(rig, "deleting", "deleted-a"):
        with running_member(rig, "deleting", "deleted-b"):
            pass
        refused = query_share_groups(rig, lambda groups: groups.delete_offsets("deleting", topics))
        # The refusal also applies to a topic without a current subscription.
        assert {outcome.error_code for outcome in refused.values()} == {ErrorCode.NON_EMPTY_GROUP}
    outcomes = query_share_groups(rig, lambda groups: groups.delete_offsets("deleting", topics))
    assert outcomes["deleted-a"] == outcomes["deleted-b"] == DONE
    assert outcomes["deleted-c"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert query_share_groups(rig, lambda groups: groups.offsets(["deleting"])) == []
    again = query_share_groups(rig, lambda groups: groups.delete_offsets("deleting", ["deleted-a"]))[
        "deleted-a"
    ]
    assert again.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert describe_group(rig, "deleting").is_empty, "the group stays"
    unknown = query_share_groups(rig, lambda groups: groups.delete_offsets("nobody", ["deleted-a"]))
    assert unknown["deleted-a"].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_group_can_be_deleted_only_while_it_is_empty(rig: BuiltInRig) -> None:
    rig.client.create_topic("whole")
    with running_member(rig, "going", "whole"):
        refused = query_share_groups(rig, lambda groups: groups.delete_groups(["going", "nobody"]))
        assert refused["going"].error_code == ErrorCode.NON_EMPTY_GROUP
        assert refused["nobody"].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert query_share_groups(rig, lambda groups: groups.delete_groups(["going"])) == {"going": DONE}
    assert describe_group(rig, "going").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "going" not in query_share_groups(rig, lambda groups: groups.names())
