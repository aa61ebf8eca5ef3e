"""Requests of the share-group client to group coordinators that move, load or do not answer."""

import asyncio

import pytest

from coordinator.cluster.kafka import share_groups
from coordinator.cluster.kafka.share_group_types import ChangeResult
from coordinator.cluster.kafka.share_groups import ShareGroups
from protocol.errors import ErrorCode
from tests.kafka_in_memory.share_group_cluster import ShareGroupCluster
from tests.kafka_in_memory.share_groups import ShareGroup, topic_id
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)


def make_cluster(*groups: str, nodes: int = 1) -> tuple[ShareGroupCluster, ShareGroups]:
    """Return a cluster with empty groups, and a client."""
    cluster = ShareGroupCluster(nodes)
    cluster.groups = {group: ShareGroup() for group in groups}
    return cluster, cluster.new_client()


async def test_group_coordinator_that_moved_is_looked_up_again() -> None:
    cluster, client = make_cluster("g", "h", nodes=2)
    cluster.brokers.coordinators = {"g": 1, "h": 1}

    async def move_coordinator() -> None:
        cluster.brokers.coordinators = {"g": 2, "h": 2}

    cluster.before["describe"] = move_coordinator
    described = await client.describe_groups(["g", "h"])
    assert {group: each.is_empty for group, each in described.items()} == {"g": True, "h": True}
    assert [request.node for request in cluster.requests if request.api == "describe"] == [1, 2]
    assert cluster.request_counts["find"] == 2
    await client.describe_groups(["g"])
    assert cluster.request_counts["find"] == 2, "the coordinator's node id is cached"


@pytest.mark.parametrize("silent", [False, True])
async def test_loading_or_silent_coordinator_does_not_mean_a_missing_group(silent: bool) -> None:
    cluster, client = make_cluster("g")
    cluster.loading = True
    if silent:
        cluster.unanswered.add("describe")
    described = (await client.describe_groups(["g"]))["g"]
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE if silent else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (described.error_code, described.is_empty) == (code, False)
    assert cluster.request_counts["describe"] == share_groups._ATTEMPTS_MAX


async def test_remaining_requests_are_not_sent_after_one_timed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_groups, "_GROUPS_MAX", 2)
    cluster, client = make_cluster()
    cluster.unanswered.add("describe")
    described = await client.describe_groups([f"g{number}" for number in range(10)])
    assert {each.error_code for each in described.values()} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert cluster.request_counts["describe"] == share_groups._ATTEMPTS_MAX


async def test_delete_request_of_unknown_outcome_is_not_sent_again() -> None:
    cluster, client = make_cluster("g")
    cluster.unanswered.add("delete")
    outcome = (await client.delete_offsets("g", ["t"]))["t"]
    assert outcome.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "did not answer" in outcome.error_message
    assert cluster.request_counts["delete"] == 1


async def test_groups_above_the_limit_are_described_in_several_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_groups, "_GROUPS_MAX", 3)
    names = {f"g{number}" for number in range(10)}
    cluster, client = make_cluster(*names)
    described = await client.describe_groups(names)
    assert described.keys() == names
    assert all(each.is_empty for each in described.values())
    assert cluster.request_counts["describe"] == 4


async def test_group_deleted_together_with_its_offsets_is_not_found() -> None:
    cluster, client = make_cluster()
    cluster.groups["g"] = ShareGroup("t", "u")

    async def delete_group(group: str, topic: str) -> None:
        cluster.groups.pop(group, None)

    cluster.state_deleted.append(delete_group)
    outcomes = await client.delete_offsets("g", ["t", "u"])
    assert {topic: outcome.error_code for topic, outcome in outcomes.items()} == {
        "t": ErrorCode.GROUP_ID_NOT_FOUND,
        "u": ErrorCode.GROUP_ID_NOT_FOUND,
    }


async def test_error_of_a_whole_request_applies_to_each_topic() -> None:
    cluster, client = make_cluster("g")
    cluster.groups["g"].join("t")
    outcome = ChangeResult(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    assert await client.delete_offsets("g", ["t", "u"]) == {"t": outcome, "u": outcome}


async def test_topic_is_missing_if_every_broker_reports_it_as_unknown() -> None:
    wanted = [topic_id(topic) for topic in ("a", "b", "c")]
    cluster, client = make_cluster(nodes=2)
    cluster.topics = {"a", "b"}
    cluster.unknown_topics = {1: {"b"}}
    found = await client.resolve_topic_ids(wanted)
    assert found.names == {topic_id("a"): "a", topic_id("b"): "b"}
    assert found.missing == {topic_id("c")}
    cluster.topics, cluster.hidden_topics = {"a"}, {"c"}
    found = await client.resolve_topic_ids(wanted)
    assert found.missing == {topic_id("b")}
    cluster.unanswered_nodes.add(2)
    cluster.hidden_topics.clear()
    found = await client.resolve_topic_ids(wanted)
    assert (found.names, found.missing) == ({topic_id("a"): "a"}, frozenset())


async def test_other_brokers_receive_only_topics_that_were_not_found() -> None:
    wanted = [topic_id(topic) for topic in ("a", "b")]
    cluster, client = make_cluster(nodes=3)
    cluster.topics = {"a", "b"}
    cluster.unknown_topics = {1: {"b"}, 2: {"a"}}
    found = await client.resolve_topic_ids(wanted)
    assert (set(found.names.values()), found.missing) == ({"a", "b"}, frozenset())
    received = [
        (request.node, [topic.topic_id for topic in request.message.topics])
        for request in cluster.requests
        if request.api == "resolve"
    ]
    assert received == [(1, sorted(wanted)), (2, [topic_id("b")])]


@pytest.mark.parametrize(
    "state",
    ["has no offsets", "moved", "loading", "not authorized", "a partition failed", "silent"],
)
async def test_group_has_no_offsets_only_if_its_coordinator_confirms_it(state: str) -> None:
    cluster, client = make_cluster("g", nodes=2)
    cluster.brokers.coordinators["g"] = 1
    if state == "moved":
        cluster.errors["g"] = ErrorCode.NOT_COORDINATOR
    cluster.loading = state == "loading"
    if state == "not authorized":
        cluster.errors["g"] = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if state == "a partition failed":
        cluster.groups["g"].topics["t"] = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if state == "silent":
        cluster.unanswered.add("offsets")
    found = await client.groups_without_offsets(["g"])
    assert found == ({"g"} if state == "has no offsets" else set())


async def test_brokers_removed_from_the_cluster_receive_no_more_requests() -> None:
    cluster, client = make_cluster("g", nodes=2)
    assert await client.list_offsets(["g"]) == []
    cluster.requests.clear()
    cluster.unanswered_nodes.add(2)
    del cluster.brokers.addresses[2]
    async with asyncio.timeout(1):
        assert await client.list_offsets(["g"]) == []
    assert [request.node for request in cluster.requests if request.api == "offsets"] == [1]
