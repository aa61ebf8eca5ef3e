"""The contract of requests about share groups: brokers in memory, and real brokers of each release."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import pytest

from coordinator.cluster.kafka.share_group_types import ChangeResult, GroupDescription
from coordinator.cluster.kafka.share_groups import ShareGroups
from coordinator.errors import LogUnavailable
from protocol.errors import ErrorCode
from protocol.state_records import parse_topic_id
from tests.kafka import RELEASES, BuiltInRig, fetch_jars
from tests.kafka.processes import wait_until
from tests.kafka.rig import built_in_rig
from tests.kafka_in_memory.share_group_cluster import ShareGroupCluster
from tests.kafka_in_memory.share_groups import ShareGroup, topic_id
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(fixture="cluster")

DONE = ChangeResult(0)
UNREACHABLE = "127.0.0.1:1"


class ClusterUnderTest(Protocol):
    """A Kafka cluster with share groups. All tests share one cluster, so their groups and topics differ."""

    def run(self, test: Coroutine[Any, Any, Any]) -> None: ...

    def new_client(self) -> ShareGroups: ...

    def create_topic(self, topic: str) -> bytes:
        """Create a topic; return its topic id."""
        ...

    def member(self, group: str, topic: str) -> AbstractContextManager[None]:
        """Return a context in which a member of a group has received a record of a topic."""
        ...


class MemoryClusterUnderTest:
    """Three brokers in memory, on virtual time."""

    def __init__(self) -> None:
        self._cluster = ShareGroupCluster(nodes=3)
        self.run: Callable[[Coroutine[Any, Any, Any]], None] = run_simulated
        self.new_client = self._cluster.new_client

    def create_topic(self, topic: str) -> bytes:
        self._cluster.topics.add(topic)
        return topic_id(topic)

    @contextmanager
    def member(self, group: str, topic: str) -> Iterator[None]:
        joined = self._cluster.groups.setdefault(group, ShareGroup())
        joined.join(topic)
        joined.topics[topic] = ErrorCode.NONE
        yield
        joined.leave()


class RealClusterUnderTest:
    """A real broker with its own share coordinator, and share consumers of Kafka's Java client."""

    def __init__(self, rig: BuiltInRig) -> None:
        self._rig = rig
        self._clients: list[ShareGroups] = []

    def run(self, test: Coroutine[Any, Any, Any]) -> None:
        async def run_and_close() -> None:
            try:
                await test
            finally:
                while self._clients:
                    await self._clients.pop().close()

        asyncio.run(run_and_close())

    def new_client(self) -> ShareGroups:
        self._clients.append(ShareGroups(self._rig.broker.bootstrap))
        return self._clients[-1]

    def create_topic(self, topic: str) -> bytes:
        return parse_topic_id(self._rig.client.create_topic(topic))

    @contextmanager
    def member(self, group: str, topic: str) -> Iterator[None]:
        self._rig.client.set_group_config(group, {"share.auto.offset.reset": "earliest"})
        self._rig.client.produce(topic, 1)
        consumer = self._rig.client.share_consumer(group, topic)
        try:
            wait_until(lambda: consumer.poll(200) or None, seconds=120, what="a record")
            consumer.acknowledge(["ACCEPT"])
            yield
        finally:
            consumer.close()


@pytest.fixture(
    scope="module",
    params=[
        "in memory",
        *(pytest.param(each, marks=[pytest.mark.broker, pytest.mark.slow]) for each in RELEASES),
    ],
)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterUnderTest]:
    if request.param == "in memory":
        yield MemoryClusterUnderTest()
        return
    with built_in_rig(fetch_jars(request.param), tmp_path_factory.mktemp(request.param)) as rig:
        yield RealClusterUnderTest(rig)


async def describe_group(client: ShareGroups, group: str) -> GroupDescription:
    return (await client.describe_groups([group]))[group]


async def test_group_is_described_with_the_subscriptions_of_its_members(cluster: ClusterUnderTest) -> None:
    client = cluster.new_client()
    for topic in ("described-a", "described-b"):
        cluster.create_topic(topic)
    with cluster.member("described", "described-a"):
        with cluster.member("described", "described-b"):
            both = await describe_group(client, "described")
            assert (both.error_code, both.members, both.is_empty) == (0, 2, False)
            assert both.subscribed == {"described-a", "described-b"}
        one = await describe_group(client, "described")
        assert (one.members, one.subscribed) == (1, {"described-a"})
        assert one.group_epoch > both.group_epoch
    empty = await describe_group(client, "described")
    assert (empty.state, empty.is_empty, empty.subscribed) == ("Empty", True, frozenset())
    assert empty.group_epoch > one.group_epoch
    assert await describe_group(client, "described") == empty, "the group epoch changed without a member"


async def test_missing_group_is_distinguished_from_an_unreachable_cluster(cluster: ClusterUnderTest) -> None:
    unknown = await describe_group(cluster.new_client(), "nobody")
    assert (unknown.error_code, unknown.is_empty) == (ErrorCode.GROUP_ID_NOT_FOUND, False)
    with pytest.raises(LogUnavailable):
        await ShareGroups(UNREACHABLE).describe_groups(["nobody"])


async def test_initialised_share_partitions_of_a_group_are_described(cluster: ClusterUnderTest) -> None:
    client = cluster.new_client()
    ids = {topic: cluster.create_topic(topic) for topic in ("offsets-a", "offsets-b")}
    with cluster.member("reading", "offsets-a"):
        pass
    described = await client.list_offsets(["reading", "nobody"])
    assert {(offset.group_id, offset.topic_id) for offset in described} == {("reading", ids["offsets-a"])}
    assert 0 in {offset.partition for offset in described}
    assert await client.groups_without_offsets(["reading", "nobody"]) == {"nobody"}
    assert "reading" in await client.list_groups()


async def test_topic_ids_are_resolved_or_missing(cluster: ClusterUnderTest) -> None:
    known, unknown = cluster.create_topic("resolved"), b"no topic's id..."
    resolved = await cluster.new_client().resolve_topic_ids([known, unknown])
    assert resolved.cluster_id
    assert (resolved.names, resolved.missing) == ({known: "resolved"}, {unknown})


async def test_offsets_can_be_deleted_only_while_the_group_is_empty(cluster: ClusterUnderTest) -> None:
    client = cluster.new_client()
    for topic in ("deleted-a", "deleted-b"):
        cluster.create_topic(topic)
    topics = ["deleted-a", "deleted-b", "deleted-c"]
    with cluster.member("deleting", "deleted-a"):
        with cluster.member("deleting", "deleted-b"):
            pass
        refused = await client.delete_offsets("deleting", topics)
        # The refusal also applies to a topic without a current subscription.
        assert {outcome.error_code for outcome in refused.values()} == {ErrorCode.NON_EMPTY_GROUP}
    outcomes = await client.delete_offsets("deleting", topics)
    assert outcomes["deleted-a"] == outcomes["deleted-b"] == DONE
    assert outcomes["deleted-c"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await client.list_offsets(["deleting"]) == []
    assert await client.groups_without_offsets(["deleting"]) == {"deleting"}
    again = await client.delete_offsets("deleting", ["deleted-a"])
    assert again["deleted-a"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await describe_group(client, "deleting")).is_empty, "the group stays"
    unknown = await client.delete_offsets("nobody", ["deleted-a"])
    assert unknown["deleted-a"].error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_group_can_be_deleted_only_while_it_is_empty(cluster: ClusterUnderTest) -> None:
    client = cluster.new_client()
    cluster.create_topic("deleted-with-group")
    with cluster.member("deleted", "deleted-with-group"):
        refused = await client.delete_groups(["deleted", "nobody"])
        assert refused["deleted"].error_code == ErrorCode.NON_EMPTY_GROUP
        assert refused["nobody"].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert await client.delete_groups(["deleted"]) == {"deleted": DONE}
    assert (await describe_group(client, "deleted")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "deleted" not in await client.list_groups()
