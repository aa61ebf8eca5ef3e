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


@pytest.mark.parametrize("direct", [False, True], ids=["found", "direct"])
async def test_state_is_initialized_written_read_and_deleted(direct: bool) -> None:
    async with open_client(direct=direct) as client:
        await client.initialize(KEY, state_epoch=3, start_offset=10)
        assert await client.read(KEY, leader_epoch=5) == ReadState(3, 10, [])
        await client.write(
            KEY,
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
        state = await client.read(KEY, leader_epoch=5)
        assert state == ReadState(
            3, 12, [StateBatch(12, 13, 2, 1), StateBatch(14, 14, 0, 2), StateBatch(16, 16, 4, 1)]
        )
        assert await client.summary(KEY) == StateSummary(3, 5, 12, 2)
        await client.delete(KEY)
        assert await client.summary(KEY) == StateSummary(0, 0, -1, -1)


async def test_read_and_write_without_state_raise_uninitialised() -> None:
    async with open_client() as client:
        with pytest.raises(Uninitialised) as caught:
            await client.read(KEY, leader_epoch=0)
        assert caught.value.key == KEY
        assert caught.value.error_code is ErrorCode.INVALID_REQUEST
        assert caught.value.message
        with pytest.raises(Uninitialised):
            await client.write(KEY, state_epoch=0, leader_epoch=0, start_offset=0)
        await client.delete(KEY)


async def test_old_leader_epoch_is_fenced() -> None:
    async with open_client() as client:
        await client.initialize(KEY, state_epoch=1, start_offset=0)
        await client.read(KEY, leader_epoch=2)
        with pytest.raises(FencedLeaderEpoch) as caught:
            await client.write(KEY, state_epoch=1, leader_epoch=1, start_offset=0)
        assert caught.value.key == KEY
        with pytest.raises(FencedLeaderEpoch):
            await client.read(KEY, leader_epoch=1)


async def test_old_state_epoch_is_fenced() -> None:
    async with open_client() as client:
        await client.initialize(KEY, state_epoch=2, start_offset=0)
        with pytest.raises(FencedStateEpoch):
            await client.initialize(KEY, state_epoch=1, start_offset=0)
        with pytest.raises(FencedStateEpoch):
            await client.write(KEY, state_epoch=1, leader_epoch=0, start_offset=0)


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
