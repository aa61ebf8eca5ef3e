"""Requests for many share-partitions: split by coordinator, results in request order, errors as codes."""

import asyncio

import pytest

from coordinator.client import ONCE, ConnectionLimits, ShareCoordinatorClient, SharePartitionKey
from protocol.errors import ErrorCode
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID
from tests.kafka.ports import free_ports
from tests.unit import clock_skipping
from tests.unit.client.fake_coordinator import (
    DELETE,
    FIND,
    INITIALIZE,
    FakeCoordinator,
    close_connection,
    error_answer,
    never_answer,
)
from tests.unit.clock_skipping import skip_time
from tests.unit.coroutine_tests import FakeSleep

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)


def make_delete_request(*partitions: int) -> delete_api.DeleteShareGroupStateRequest:
    """Return a request for these partitions of TOPIC_ID, and for `partitions[0]` of OTHER_TOPIC_ID."""
    return delete_api.DeleteShareGroupStateRequest(
        "group",
        [
            delete_api.DeleteStateData(TOPIC_ID, [delete_api.PartitionData(p) for p in partitions]),
            delete_api.DeleteStateData(OTHER_TOPIC_ID, [delete_api.PartitionData(partitions[0])]),
        ],
    )


def response_outcomes(response: delete_api.DeleteShareGroupStateResponse) -> list[tuple[bytes, int, int]]:
    return [
        (topic.topic_id, result.partition, result.error_code)
        for topic in response.results
        for result in topic.partitions
    ]


def split_by_parity(asked: FakeCoordinator, other_port: int) -> None:
    """Make `asked` the coordinator of even partitions, and the node at `other_port` that of odd ones."""

    def coordinator_of(text: str) -> tuple[int, str, int, int, str]:
        odd = SharePartitionKey.parse(text).partition % 2
        return (1_000_000 + odd, "127.0.0.1", other_port if odd else asked.port, 0, "")

    asked.coordinator_of = coordinator_of


async def test_request_is_split_by_coordinator() -> None:
    async with (
        FakeCoordinator() as even,
        FakeCoordinator() as odd,
        ShareCoordinatorClient(even.address, sleep=FakeSleep()) as client,
    ):
        split_by_parity(even, odd.port)
        odd.plan_answers(DELETE, error_answer(int(ErrorCode.FENCED_STATE_EPOCH)))
        response = await client.send(make_delete_request(1, 2, 3, 4))
        assert response_outcomes(response) == [
            (TOPIC_ID, 1, 124),
            (TOPIC_ID, 2, 0),
            (TOPIC_ID, 3, 124),
            (TOPIC_ID, 4, 0),
            (OTHER_TOPIC_ID, 1, 124),
        ]
        assert even.count_requests(FIND) == 1
        assert (even.count_requests(DELETE), odd.count_requests(DELETE)) == (1, 1)


async def test_unreachable_coordinator_fails_only_its_own_share_partitions() -> None:
    (dead_port,) = free_ports(1)
    waits = FakeSleep()
    async with FakeCoordinator() as even, ShareCoordinatorClient(even.address, sleep=waits) as client:
        split_by_parity(even, dead_port)
        response = await client.send(make_delete_request(2, 3))
        assert response_outcomes(response) == [(TOPIC_ID, 2, 0), (TOPIC_ID, 3, 13), (OTHER_TOPIC_ID, 2, 0)]
        assert "Cannot connect" in (response.results[0].partitions[1].error_message or "")
        assert len(waits) == 4
        assert even.count_requests(DELETE) == 1


async def test_only_share_partitions_with_a_retriable_failure_are_retried() -> None:
    async with (
        FakeCoordinator() as even,
        FakeCoordinator() as odd,
        ShareCoordinatorClient(even.address, sleep=FakeSleep()) as client,
    ):
        split_by_parity(even, odd.port)
        odd.plan_answers(DELETE, error_answer(15), close_connection)
        response = await client.send(make_delete_request(1, 2))
        assert [code for _, _, code in response_outcomes(response)] == [0, 0, 0]
        assert (even.count_requests(DELETE), odd.count_requests(DELETE)) == (1, 3)


async def test_timeout_is_returned_as_an_error_code() -> None:
    async with (
        FakeCoordinator() as fake,
        ShareCoordinatorClient(fake.address, retry=ONCE, limits=ConnectionLimits(request_s=30)) as client,
    ):
        fake.plan_answers(DELETE, never_answer)
        sending = asyncio.ensure_future(client.send(make_delete_request(1)))
        await fake.wait_for_requests(DELETE, 1)
        skip_time(31)
        response = await sending
        assert [code for _, _, code in response_outcomes(response)] == [ErrorCode.REQUEST_TIMED_OUT] * 2


async def test_duplicate_share_partition_stays_in_one_request_in_order() -> None:
    parts = [initialize_api.PartitionData(0, state_epoch, 0) for state_epoch in (1, 2)]
    request = initialize_api.InitializeShareGroupStateRequest(
        "group", [initialize_api.InitializeStateData(TOPIC_ID, [part]) for part in parts]
    )
    async with FakeCoordinator() as fake, ShareCoordinatorClient(fake.address) as client:
        response = await client.send(request)
        assert [[result.partition for result in topic.partitions] for topic in response.results] == [[0]]
        assert fake.count_requests(INITIALIZE) == 1
        assert (await client.summary(SharePartitionKey("group", TOPIC_ID, 0))).state_epoch == 2


async def test_empty_request_gets_an_empty_response_without_sending() -> None:
    async with FakeCoordinator() as fake, ShareCoordinatorClient(fake.address) as client:
        response = await client.send(delete_api.DeleteShareGroupStateRequest("group", []))
        assert response == delete_api.DeleteShareGroupStateResponse([])
        assert fake.requests == []


async def test_unknown_request_class_raises_key_error() -> None:
    async with ShareCoordinatorClient("127.0.0.1:9095") as client:
        with pytest.raises(KeyError):
            await client.send("delete")  # type: ignore[call-overload]
