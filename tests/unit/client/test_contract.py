"""The client against the real coordinator: states, fencing errors and the order of results."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator.client import (
    ONCE,
    FencedLeaderEpoch,
    FencedStateEpoch,
    ReadState,
    ShareCoordinatorClient,
    StateBatch,
    StateSummary,
    Uninitialised,
)
from protocol.errors import ErrorCode
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import pack
from protocol.state_records import SharePartitionKey
from tests.builders import ACKNOWLEDGED, ARCHIVED, AVAILABLE, KEY, OTHER_TOPIC_ID, TOPIC_ID
from tests.unit import clock_skipping
from tests.unit.client.our_coordinator import serve_real_coordinator

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)


@asynccontextmanager
async def open_client(*, direct: bool = False) -> AsyncIterator[ShareCoordinatorClient]:
    async with (
        serve_real_coordinator() as address,
        ShareCoordinatorClient(address, retry=ONCE, direct=direct) as client,
    ):
        yield client


async def check_states_and_errors(client: ShareCoordinatorClient, key: SharePartitionKey) -> None:
    """Initialize, read, write and delete state, and check each class of errors."""
    with pytest.raises(Uninitialised) as caught:
        await client.read(key, leader_epoch=0)
    assert (caught.value.key, caught.value.error_code) == (key, ErrorCode.INVALID_REQUEST)
    with pytest.raises(Uninitialised):
        await client.write(key, state_epoch=0, leader_epoch=0, start_offset=0)
    await client.initialize(key, state_epoch=3, start_offset=10)
    assert await client.read(key, leader_epoch=5) == ReadState(3, 10, [])
    await client.write(
        key,
        state_epoch=3,
        leader_epoch=5,
        start_offset=12,
        delivery_complete_count=2,
        batches=[
            StateBatch(10, 13, ACKNOWLEDGED, 1),
            StateBatch(14, 14, AVAILABLE, 2),
            StateBatch(16, 16, ARCHIVED, 1),
        ],
    )
    batches = [StateBatch(12, 13, 2, 1), StateBatch(14, 14, 0, 2), StateBatch(16, 16, 4, 1)]
    assert await client.read(key, leader_epoch=5) == ReadState(3, 12, batches)
    with pytest.raises(FencedLeaderEpoch):
        await client.read(key, leader_epoch=4)
    with pytest.raises(FencedLeaderEpoch):
        await client.write(key, state_epoch=3, leader_epoch=4, start_offset=12)
    with pytest.raises(FencedStateEpoch):
        await client.write(key, state_epoch=2, leader_epoch=5, start_offset=12)
    with pytest.raises(FencedStateEpoch):
        await client.initialize(key, state_epoch=2, start_offset=0)
    assert await client.summary(key) == StateSummary(3, 5, 12, 2)
    await client.delete(key)
    assert (await client.summary(key)).start_offset == -1


@pytest.mark.parametrize("direct", [False, True], ids=["found", "direct"])
async def test_states_and_errors(direct: bool) -> None:
    """tests/conformance/test_client.py has the same test with Kafka's own coordinator."""
    async with open_client(direct=direct) as client:
        await check_states_and_errors(client, KEY)


async def test_response_has_one_result_per_share_partition_in_request_order() -> None:
    first, again = (
        write_api.PartitionData(4, 1, 1, 0, -1, pack([StateBatch(offset, offset, ACKNOWLEDGED, 1)]))
        for offset in (0, 1)
    )
    unknown = write_api.PartitionData(9, 1, 1, 0)
    request = write_api.WriteShareGroupStateRequest(
        "group",
        [
            write_api.WriteStateData(OTHER_TOPIC_ID, [unknown, first]),
            write_api.WriteStateData(TOPIC_ID, [unknown]),
            write_api.WriteStateData(OTHER_TOPIC_ID, [again]),
        ],
    )
    key = SharePartitionKey("group", OTHER_TOPIC_ID, 4)
    async with open_client() as client:
        await client.initialize(key, 1, 0)
        response = await client.send(request)
        outcomes = [
            (topic.topic_id, [(result.partition, result.error_code) for result in topic.partitions])
            for topic in response.results
        ]
        assert outcomes == [(OTHER_TOPIC_ID, [(9, 42), (4, 0)]), (TOPIC_ID, [(9, 42)])]
        assert (await client.read(key, 1)).batches == [StateBatch(0, 1, ACKNOWLEDGED, 1)]
