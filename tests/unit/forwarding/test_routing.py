"""Routing: any coordinator accepts a request, and the owners of the requested shards execute it."""

import pytest

from coordinator.client import Connection
from coordinator.client.rpcs import DELETE, INITIALIZE, READ, SUMMARY, WRITE
from coordinator.serve.forwarding import FORWARDED_CLIENT_ID
from protocol.errors import ErrorCode
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from tests.builders import (
    ACKNOWLEDGED,
    ARCHIVED,
    TOPIC_ID,
    make_initialize,
    make_read,
    make_write,
    unpack_batches,
)
from tests.simulation.loop import run
from tests.unit.forwarding.coordinator_group import GROUP, partition_of_shard, run_forwarding_group

pytestmark = pytest.mark.run_with(function=run)

NONE = int(ErrorCode.NONE)


async def test_request_is_split_by_owner_and_answered_in_request_order() -> None:
    async with run_forwarding_group() as group:
        asked = group.nodes[0]
        # Two share-partitions of each shard, in arbitrary order.
        partitions = [partition_of_shard(shard, which) for which in (0, 1) for shard in (5, 0, 3, 1, 4, 2)]
        await asked.send_request(
            INITIALIZE, *(make_initialize(partition=partition) for partition in partitions)
        )
        results = await asked.send_request(
            WRITE, *(make_write((p, p + 4, ACKNOWLEDGED, 1), partition=p) for p in partitions)
        )
        assert [(result.partition, result.error_code) for result in results] == [
            (p, NONE) for p in partitions
        ]
        # For each API, the coordinator sent one request to each of the two other owners.
        assert asked.count_forwarded("InitializeShareGroupState") == 2
        assert asked.count_forwarded("WriteShareGroupState") == 2
        for other in group.nodes[1:]:
            assert [other.relay.count_requests(api_key) for api_key in (83, 85)] == [1, 1]
            assert all(
                (seen.client_id or "").startswith(FORWARDED_CLIENT_ID + "instance-0")
                for seen in other.relay.seen
            )
        # Each coordinator returns the states, although only the owners hold them.
        for one in group.nodes:
            states = await one.send_request(READ, *(make_read(partition=p) for p in partitions))
            assert [unpack_batches(state.state_batches) for state in states] == [
                [(p, p + 4, ACKNOWLEDGED, 1)] for p in partitions
            ]
        assert [one.count_forwarded("WriteShareGroupState") for one in group.nodes] == [2, 0, 0]


async def test_request_for_own_shards_is_not_forwarded() -> None:
    async with run_forwarding_group() as group:
        own = partition_of_shard(0)
        assert await group.nodes[0].get_error_codes(INITIALIZE, make_initialize(partition=own)) == [NONE]
        assert await group.nodes[0].get_error_codes(READ, make_read(partition=own)) == [NONE]
        assert [one.relay.seen for one in group.nodes] == [[], [], []]


async def test_duplicates_of_a_share_partition_are_forwarded_in_one_request() -> None:
    async with run_forwarding_group() as group:
        asked, theirs = group.nodes[0], partition_of_shard(1)
        await asked.send_request(INITIALIZE, make_initialize(partition=theirs))
        refused = make_write((0, 4, ACKNOWLEDGED, 1), leader_epoch=-1, partition=theirs)
        fine = make_write((5, 9, ACKNOWLEDGED, 1), partition=theirs)
        # If one of the two writes of the share-partition is refused, neither is executed.
        assert await asked.get_error_codes(WRITE, refused, fine) == [ErrorCode.INVALID_REQUEST]
        assert await asked.get_error_codes(
            WRITE, fine, make_write((0, 4, ARCHIVED, 1), partition=theirs)
        ) == [NONE]
        (state,) = await asked.send_request(READ, make_read(partition=theirs))
        assert unpack_batches(state.state_batches) == [(0, 4, ARCHIVED, 1), (5, 9, ACKNOWLEDGED, 1)]
        assert asked.count_forwarded("WriteShareGroupState") == 1
        assert asked.count_forwarded("WriteShareGroupState", "INVALID_REQUEST") == 1


async def test_all_five_apis_are_forwarded() -> None:
    async with run_forwarding_group() as group:
        asked, theirs = group.nodes[2], partition_of_shard(0)
        assert await asked.get_error_codes(INITIALIZE, make_initialize(3, 10, partition=theirs)) == [NONE]
        part = make_write(
            (10, 14, ACKNOWLEDGED, 1), start_offset=10, state_epoch=3, complete_count=5, partition=theirs
        )
        assert await asked.get_error_codes(WRITE, part) == [NONE]
        (summary,) = await asked.send_request(SUMMARY, summary_api.PartitionData(theirs, 0))
        assert (summary.state_epoch, summary.start_offset, summary.delivery_complete_count) == (3, 10, 5)
        assert await asked.get_error_codes(READ, make_read(partition=theirs)) == [NONE]
        assert await asked.get_error_codes(DELETE, delete_api.PartitionData(theirs)) == [NONE]
        # An error of the owner is returned unchanged.
        assert await asked.get_error_codes(READ, make_read(partition=theirs)) == [ErrorCode.INVALID_REQUEST]


async def test_wrong_coordinator_returns_not_coordinator_without_forwarding() -> None:
    async with run_forwarding_group() as group:
        asked = group.nodes[0]
        asked.forwarder.active = False
        codes = await asked.get_error_codes(
            INITIALIZE,
            make_initialize(partition=partition_of_shard(0)),
            make_initialize(partition=partition_of_shard(1)),
        )
        assert codes == [NONE, ErrorCode.NOT_COORDINATOR]
        assert group.nodes[1].relay.seen == []


async def test_forwarded_request_is_not_forwarded_again() -> None:
    """Two coordinators that each consider the other the owner do not send a request back and forth."""
    async with run_forwarding_group() as group:
        theirs = partition_of_shard(0)
        first, second, _ = group.nodes
        first.apply_assignment(group.make_assignment(1, 1, 1, 1, 1, 1))
        second.apply_assignment(group.make_assignment(0, 0, 0, 0, 0, 0))
        asked = first.send_request(READ, make_read(partition=theirs))
        await group.wait_until(asked.done)
        assert [result.error_code for result in await asked] == [ErrorCode.NOT_COORDINATOR]
        assert second.relay.count_requests(84) > 10
        assert first.relay.seen == []
        assert second.forwarder.held_operations == 0


async def test_only_requests_of_other_clients_than_coordinators_are_forwarded() -> None:
    async with run_forwarding_group() as group:
        theirs = partition_of_shard(1)
        await group.nodes[0].send_request(INITIALIZE, make_initialize(partition=theirs))
        request = read_api.ReadShareGroupStateRequest(
            GROUP, [read_api.ReadStateData(TOPIC_ID, [make_read(partition=theirs)])]
        )
        for client_id, code in (
            ("Persister-client-1", ErrorCode.NONE),
            ("", ErrorCode.NONE),
            (FORWARDED_CLIENT_ID + "somebody", ErrorCode.NOT_COORDINATOR),
        ):
            connection = await Connection.open("coordinator-0", 9095, client_id=client_id)
            response = await connection.request(request)
            assert response.results[0].partitions[0].error_code == code
            await connection.close()
        assert group.nodes[0].count_forwarded("ReadShareGroupState") == 2
