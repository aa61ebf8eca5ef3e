"""Requests of expiry to group coordinators that move, load or hang, and to brokers with old metadata."""

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.cluster.kafka import share_groups
from coordinator.cluster.kafka.broker_results import NoResponse
from coordinator.cluster.kafka.share_group_types import ChangeResult
from coordinator.cluster.kafka.share_groups import ShareGroups
from protocol.errors import ErrorCode
from protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsResponse
from protocol.messages.describe_share_group_offsets import DescribedGroup as DescribedOffsets
from protocol.messages.describe_share_group_offsets import DescribedPartition as PartitionOffset
from protocol.messages.describe_share_group_offsets import DescribedTopic as TopicOffsets
from protocol.messages.describe_share_group_offsets import DescribeShareGroupOffsetsResponse
from protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from protocol.messages.metadata import DescribedTopic, MetadataResponse
from protocol.messages.share_group_describe import DescribedGroup, ShareGroupDescribeResponse
from tests.unit.expiry.fake_cluster import topic_id


class FakeBrokers:
    """Brokers by node id. Each broker is a function that answers a request or raises an exception.

    `where` is the node id of the group coordinator.
    """

    def __init__(self, **brokers: Callable[[Any], Any]) -> None:
        self.brokers = {int(name[1:]): answer for name, answer in brokers.items()}
        self.where = 1
        self.asked: list[int] = []
        self.lookups = 0

    def nodes(self) -> list[int]:
        return list(self.brokers)

    async def refresh(self) -> None:
        pass

    def add_address(self, node: int, host: str, port: int) -> None:
        pass

    async def send(self, node: int, channel: str, request: Any) -> Any:
        self.asked.append(node)
        return self.brokers[node](request)

    async def send_to_any_broker(self, request: Any) -> Any:
        self.lookups += 1
        groups = request.message.coordinator_keys
        return FindCoordinatorResponse(
            coordinators=[Coordinator(group, self.where, "host", 9092, 0, None) for group in groups]
        )

    async def close(self) -> None:
        pass


def make_share_groups(brokers: FakeBrokers) -> ShareGroups:
    groups = ShareGroups("kafka:9092")
    groups._connections = brokers  # type: ignore[assignment]
    return groups


def describe_answer(code: int = 0) -> Callable[[Any], Any]:
    def describe_groups(request: Any) -> Any:
        groups = [
            DescribedGroup(code, None, group, "Empty", 4, 4, "", [], 0) for group in request.message.group_ids
        ]
        return ShareGroupDescribeResponse(0, groups)

    return describe_groups


def raise_no_response(request: Any) -> Any:
    raise NoResponse("broker 1 did not answer: TimeoutError", sent=True)


@pytest.fixture(autouse=True)
def _no_retry_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_groups, "_FIRST_PAUSE_S", 0.0)


async def test_group_coordinator_that_moved_is_looked_up_again() -> None:
    brokers = FakeBrokers(_1=describe_answer(ErrorCode.NOT_COORDINATOR), _2=describe_answer())
    groups = make_share_groups(brokers)

    def move_coordinator(request: Any) -> Any:
        brokers.where = 2
        return describe_answer(ErrorCode.NOT_COORDINATOR)(request)

    brokers.brokers[1] = move_coordinator
    described = await groups.describe_groups(["g", "h"])
    assert {group: each.is_empty for group, each in described.items()} == {"g": True, "h": True}
    assert brokers.asked == [1, 2]
    assert brokers.lookups == 2
    await groups.describe_groups(["g"])
    assert brokers.lookups == 2, "the coordinator's node id is cached"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (describe_answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (raise_no_response, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_loading_or_silent_coordinator_does_not_mean_a_missing_group(
    answer: Callable[[Any], Any], code: int
) -> None:
    brokers = FakeBrokers(_1=answer)
    described = await make_share_groups(brokers).describe_groups(["g"])
    assert (described["g"].error_code, described["g"].is_empty) == (code, False)
    assert len(brokers.asked) == share_groups._ATTEMPTS_MAX


async def test_silent_coordinator_costs_only_the_attempts_of_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_groups, "_GROUPS_MAX", 2)
    brokers = FakeBrokers(_1=raise_no_response)
    described = await make_share_groups(brokers).describe_groups([f"g{number}" for number in range(10)])
    assert {each.error_code for each in described.values()} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert len(brokers.asked) == share_groups._ATTEMPTS_MAX


async def test_delete_request_of_unknown_outcome_is_not_sent_again() -> None:
    brokers = FakeBrokers(_1=raise_no_response)
    outcome = (await make_share_groups(brokers).delete_offsets("g", ["t"]))["t"]
    assert outcome.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "did not answer" in outcome.error_message
    assert brokers.asked == [1]


async def test_groups_above_the_limit_are_described_in_several_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_groups, "_GROUPS_MAX", 3)
    brokers = FakeBrokers(_1=describe_answer())
    names = {f"g{number}" for number in range(10)}
    described = await make_share_groups(brokers).describe_groups(names)
    assert described.keys() == names
    assert all(each.is_empty for each in described.values())
    assert len(brokers.asked) == 4


async def test_group_deleted_together_with_its_offsets_is_not_found() -> None:
    answer = DeleteShareGroupOffsetsResponse(0, 0, None, [])
    outcomes = await make_share_groups(FakeBrokers(_1=lambda _: answer)).delete_offsets("g", ["t", "u"])
    assert {topic: outcome.error_code for topic, outcome in outcomes.items()} == {
        "t": ErrorCode.GROUP_ID_NOT_FOUND,
        "u": ErrorCode.GROUP_ID_NOT_FOUND,
    }


async def test_error_of_a_whole_request_applies_to_each_topic() -> None:
    refusal = DeleteShareGroupOffsetsResponse(0, ErrorCode.NON_EMPTY_GROUP, "The group is not empty.", [])
    groups = make_share_groups(FakeBrokers(_1=lambda _: refusal))
    outcome = ChangeResult(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    assert await groups.delete_offsets("g", ["t", "u"]) == {"t": outcome, "u": outcome}


def metadata_answer(
    *known: str, unknown: tuple[str, ...] = (), hidden: tuple[str, ...] = ()
) -> Callable[[Any], Any]:
    """Return a broker with known topics, unknown topics, and topics without the Describe permission."""
    forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topics = [
        *(DescribedTopic(0, topic, topic_id(topic), False, [], 0) for topic in known),
        *(
            DescribedTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id(topic), False, [], 0)
            for topic in unknown
        ),
        *(DescribedTopic(forbidden, None, topic_id(topic), False, [], 0) for topic in hidden),
    ]
    return lambda _: MetadataResponse(0, [], "cluster", -1, topics)


async def test_topic_is_missing_if_every_broker_reports_it_as_unknown() -> None:
    wanted = [topic_id(topic) for topic in ("a", "b", "c")]
    stale = metadata_answer("a", unknown=("b", "c"))
    seen = await make_share_groups(
        FakeBrokers(_1=stale, _2=metadata_answer("a", "b", unknown=("c",)))
    ).resolve_topic_ids(wanted)
    assert seen.names == {topic_id("a"): "a", topic_id("b"): "b"}
    assert seen.missing == {topic_id("c")}
    seen = await make_share_groups(
        FakeBrokers(_1=stale, _2=metadata_answer("a", unknown=("b",), hidden=("c",)))
    ).resolve_topic_ids(wanted)
    assert seen.missing == {topic_id("b")}
    seen = await make_share_groups(FakeBrokers(_1=stale, _2=raise_no_response)).resolve_topic_ids(wanted)
    assert (seen.names, seen.missing) == ({topic_id("a"): "a"}, frozenset())


async def test_other_brokers_receive_only_topics_that_were_not_found() -> None:
    wanted = [topic_id(topic) for topic in ("a", "b")]
    asked: list[tuple[int, list[bytes]]] = []

    def recording_broker(node: int, answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def record_request(request: Any) -> Any:
            asked.append((node, [topic.topic_id for topic in request.message.topics]))
            return answer(request)

        return record_request

    first, second = (
        recording_broker(1, metadata_answer("a", unknown=("b",))),
        recording_broker(2, metadata_answer("b")),
    )
    seen = await make_share_groups(
        FakeBrokers(_1=first, _2=second, _3=recording_broker(3, raise_no_response))
    ).resolve_topic_ids(wanted)
    assert (set(seen.names.values()), seen.missing) == ({"a", "b"}, frozenset())
    assert asked == [(1, sorted(wanted)), (2, [topic_id("b")])]


def offsets_answer(code: int = 0, *topics: TopicOffsets) -> Callable[[Any], Any]:
    def list_offsets(request: Any) -> Any:
        groups = [
            DescribedOffsets(group.group_id, list(topics), code, None) for group in request.message.groups
        ]
        return DescribeShareGroupOffsetsResponse(0, groups)

    return list_offsets


FAILED_PARTITION = TopicOffsets(
    "t", topic_id("t"), [PartitionOffset(0, -1, 0, ErrorCode.COORDINATOR_NOT_AVAILABLE, "")]
)


@pytest.mark.parametrize(
    ("broker", "bare"),
    [
        (offsets_answer(), {"g"}),
        (offsets_answer(ErrorCode.NOT_COORDINATOR), set()),
        (offsets_answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), set()),
        (offsets_answer(30), set()),
        (offsets_answer(0, FAILED_PARTITION), set()),
        (raise_no_response, set()),
    ],
    ids=["has nothing", "moved", "loads", "not authorized", "a partition failed", "silent"],
)
async def test_group_has_no_offsets_only_if_its_coordinator_confirms_it(broker: Any, bare: set[str]) -> None:
    assert await make_share_groups(FakeBrokers(b1=broker)).groups_without_offsets(["g"]) == bare


async def test_brokers_removed_from_the_cluster_receive_no_more_requests() -> None:
    brokers = FakeBrokers(b1=offsets_answer(), b2=raise_no_response)

    async def refresh_brokers() -> None:
        brokers.brokers.pop(2, None)

    brokers.refresh = refresh_brokers  # type: ignore[method-assign]
    assert await make_share_groups(brokers).offsets(["g"]) == []
    assert brokers.asked == [1]
