"""Operations that cannot be executed yet wait, and time out with a retriable error."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from coordinator.client.rpcs import DELETE, INITIALIZE, READ, WRITE, Rpc
from coordinator.serve.forwarding import ForwardingLimits
from protocol.errors import ErrorCode
from protocol.messages import delete_share_group_state as delete_api
from protocol.state_records import SharePartitionKey
from tests.builders import ACKNOWLEDGED, TOPIC_ID, make_initialize, make_read, make_write, unpack_batches
from tests.simulation.loop import run
from tests.unit.forwarding.coordinator_group import (
    GROUP,
    NOBODY,
    CoordinatorNode,
    ForwardingGroup,
    partition_of_shard,
    run_forwarding_group,
)

pytestmark = pytest.mark.run_with(function=run)

NONE = int(ErrorCode.NONE)
LIMITS = ForwardingLimits()
# A shard of the second coordinator, and a partition whose state belongs to it.
SHARD = 1
REMOTE_PARTITION = partition_of_shard(SHARD)
READ_REMOTE = (READ, make_read(partition=REMOTE_PARTITION))
WRITE_REMOTE = (WRITE, make_write((0, 4, ACKNOWLEDGED, 1), partition=REMOTE_PARTITION))


async def await_error_code_and_duration(asked: Any) -> tuple[int, float]:
    """Return the error code of the only partition result, and the seconds until the response."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    (result,) = await asked
    return result.error_code, loop.time() - began_s


def start_request(asked: CoordinatorNode, *request: Any) -> "asyncio.Task[tuple[int, float]]":
    """Send a request; return a task of its error code and duration."""
    return asyncio.ensure_future(await_error_code_and_duration(asked.send_request(*request)))


async def initialize_remote_partition(group: ForwardingGroup) -> CoordinatorNode:
    asked = group.nodes[0]
    assert await asked.get_error_codes(INITIALIZE, make_initialize(partition=REMOTE_PARTITION)) == [NONE]
    await group.wait_until(lambda: not asked.forwarder.requests_in_flight)
    return asked


async def test_request_waits_for_the_first_assignment() -> None:
    async with run_forwarding_group() as group:
        asked = await initialize_remote_partition(group)
        asked.apply_assignment(None)
        answer = start_request(asked, *READ_REMOTE)
        await asyncio.sleep(3.03)
        assert (answer.done(), asked.forwarder.held_operations) == (False, 1)
        asked.apply_assignment(group.make_assignment(0, 1, 2, 0, 1, 2))
        code, seconds = await answer
        assert code == NONE
        # The new assignment triggers a retry, so that the request does not wait for the next poll.
        assert seconds < 3.03 + LIMITS.pause_s / 2


@pytest.mark.parametrize("owner", [None, NOBODY])
async def test_request_without_a_known_owner_times_out(owner: int | None) -> None:
    async with run_forwarding_group() as group:
        asked = await initialize_remote_partition(group)
        asked.apply_assignment(None if owner is None else group.make_assignment(0, owner, 2, 0, 1, 2))
        code, seconds = await start_request(asked, *READ_REMOTE)
        assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert LIMITS.hold_s <= seconds < LIMITS.hold_s + 2 * LIMITS.pause_s


async def test_own_shard_is_served_without_an_assignment() -> None:
    async with run_forwarding_group() as group:
        asked, own = group.nodes[0], partition_of_shard(0)
        asked.forwarder.set_assignment(None)
        code, seconds = await start_request(asked, INITIALIZE, make_initialize(partition=own))
        assert code == NONE
        assert seconds < 1.0


async def test_owner_with_an_old_assignment_is_retried() -> None:
    async with run_forwarding_group() as group:
        asked, second, third = group.nodes
        await initialize_remote_partition(group)
        moved = group.make_assignment(0, 2, 2, 0, 1, 2)
        asked.apply_assignment(moved)
        answer = start_request(asked, *WRITE_REMOTE)
        await asyncio.sleep(1.0)
        assert asked.count_forwarded("WriteShareGroupState", "NOT_COORDINATOR") > 5
        second.apply_assignment(moved)
        third.apply_assignment(moved)
        code, seconds = await answer
        assert code == NONE
        assert seconds < 1.5


async def test_owner_that_never_learns_the_assignment_times_out() -> None:
    async with run_forwarding_group() as group:
        asked = await initialize_remote_partition(group)
        asked.apply_assignment(group.make_assignment(0, 2, 2, 0, 1, 2))
        code, seconds = await start_request(asked, *READ_REMOTE)
        assert code == ErrorCode.NOT_COORDINATOR
        assert LIMITS.hold_s <= seconds < LIMITS.hold_s + 2 * LIMITS.pause_s


async def test_operation_waiting_for_own_shard_is_forwarded_to_its_next_owner() -> None:
    async with run_forwarding_group() as group:
        asked, own = group.nodes[0], partition_of_shard(3)
        assert await asked.get_error_codes(INITIALIZE, make_initialize(partition=own)) == [NONE]
        asked.runtime.resign(3)
        await group.wait_until(lambda: not asked.runtime.resigning_shards)
        # The log cannot be read, so the shard stays in status LOADING, and operations wait.
        group.block_brokers(1, 2, 3)
        asked.runtime.elect(3)
        answer = asked.send_request(WRITE, make_write((0, 4, ACKNOWLEDGED, 1), partition=own))
        await asyncio.sleep(1.0)
        assert (answer.done(), asked.forwarder.held_operations) == (False, 0)
        group.block_brokers()
        group.publish_assignment(0, 1, 2, 1, 1, 2)
        await group.wait_until(answer.done, 5.0)
        assert [result.error_code for result in await answer] == [NONE]
        assert asked.count_forwarded("WriteShareGroupState") == 1


async def test_request_for_a_fenced_shard_waits_for_the_next_assignment() -> None:
    async with run_forwarding_group() as group:
        asked, second, _ = group.nodes
        await initialize_remote_partition(group)
        # The second coordinator claims a shard of the first coordinator, so that the log fences the first
        # one.
        own = partition_of_shard(3)
        second.runtime.elect(3)
        await group.wait_until_loaded()
        answer = asked.send_request(INITIALIZE, make_initialize(partition=own))
        await group.wait_until(lambda: asked.forwarder.held_operations)
        asked.apply_assignment(group.make_assignment(0, 1, 2, 1, 1, 2))
        await group.wait_until(answer.done, 1.0)
        assert [result.error_code for result in await answer] == [NONE]


async def test_restarting_owner_is_retried() -> None:
    async with run_forwarding_group() as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        relay.abort_all()
        answer = start_request(asked, *READ_REMOTE)
        await asyncio.sleep(5.0)
        assert asked.count_forwarded("ReadShareGroupState", "NETWORK_EXCEPTION") > 10
        relay.open()
        code, seconds = await answer
        assert (code, seconds < 5.5) == (NONE, True)


async def test_request_through_a_proxy_without_a_coordinator_is_retried() -> None:
    """HAProxy accepts connections even if no coordinator is behind it."""
    async with run_forwarding_group() as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        relay.abort_all()
        relay.open()
        relay.silent = True
        answer = start_request(asked, *READ_REMOTE)
        await asyncio.sleep(3 * LIMITS.connect_s)
        for tunnel in relay.open_connections:
            tunnel.abort_connections()
        relay.silent = False
        code, seconds = await answer
        assert (code, seconds < 4 * LIMITS.connect_s) == (NONE, True)


REPEATED: list[tuple[Rpc, Any]] = [
    (INITIALIZE, make_initialize(state_epoch=1, start_offset=5, partition=REMOTE_PARTITION)),
    (WRITE, make_write((0, 4, ACKNOWLEDGED, 1), (5, 9, ACKNOWLEDGED, 2), partition=REMOTE_PARTITION)),
    (READ, make_read(leader_epoch=7, partition=REMOTE_PARTITION)),
    (DELETE, delete_api.PartitionData(REMOTE_PARTITION)),
]


@pytest.mark.parametrize(("rpc", "part"), REPEATED, ids=[rpc.name for rpc, _ in REPEATED])
async def test_executed_but_unanswered_request_is_repeated_without_effect(rpc: Rpc, part: Any) -> None:
    """The final state equals that of a request whose response arrived."""

    async def send_and_read_state(
        group: ForwardingGroup, partition: int, answers_lost: int
    ) -> tuple[Any, Any]:
        asked, second, _ = group.nodes
        await asked.get_error_codes(INITIALIZE, make_initialize(partition=partition))
        second.relay.answers_lost = answers_lost
        same = structs.replace(part, partition=partition)
        (result,) = await asked.send_request(rpc, same)
        assert (result.error_code, second.relay.answers_lost) == (NONE, 0)
        state = second.runtime.share_partition(SharePartitionKey(GROUP, TOPIC_ID, partition))
        # Snapshot epochs and timestamps may differ, so compare only the following fields.
        return structs.replace(result, partition=0), state and (
            state.state_epoch,
            state.leader_epoch,
            state.start_offset,
            state.delivery_complete_count,
            unpack_batches(state.batches),
        )

    async with run_forwarding_group() as group:
        # Shards 1 and 4 belong to the same coordinator.
        at_once = await send_and_read_state(group, partition_of_shard(1), 0)
        assert await send_and_read_state(group, partition_of_shard(4), 2) == at_once
        assert group.nodes[0].count_forwarded(rpc.name, "NETWORK_EXCEPTION") == 2


async def test_repeated_initialize_writes_no_second_record() -> None:
    async with run_forwarding_group() as group:
        asked, second, _ = group.nodes
        log = group.brokers.partitions[SHARD]
        end = log.end
        second.relay.answers_lost = 3
        assert await asked.get_error_codes(INITIALIZE, make_initialize(1, 5, partition=REMOTE_PARTITION)) == [
            NONE
        ]
        assert second.relay.count_requests(83) == 4
        assert log.end == end + 1
