"""Limits of forwarding: time, queue size, bytes, connections and disconnected clients."""

import asyncio
from typing import Any

import pytest

from coordinator.client.rpcs import INITIALIZE, READ, WRITE
from coordinator.serve.forwarding import ForwardingLimits
from coordinator.serve.runtime import RuntimeLimits
from protocol.errors import ErrorCode
from tests.builders import ACKNOWLEDGED, make_initialize, make_read, make_write, unpack_batches
from tests.simulation.loop import run
from tests.unit.forwarding.coordinator_group import (
    LEASE_WAIT_S,
    FakeClientConnection,
    partition_of_shard,
    run_forwarding_group,
)
from tests.unit.forwarding.test_deferred_operations import (
    NONE,
    READ_REMOTE,
    REMOTE_PARTITION,
    WRITE_REMOTE,
    await_error_code_and_duration,
    initialize_remote_partition,
    start_request,
)

pytestmark = pytest.mark.run_with(function=run)

LIMITS = ForwardingLimits()
UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


async def get_error_code(asked: Any) -> int:
    """Return the error code of the only partition result."""
    (result,) = await asked
    return int(result.error_code)


def test_local_and_remote_waits_end_before_the_request_age_limit() -> None:
    for load_wait_s, request_age_max_s in ((10.0, 25.0), (20.0, 25.0), (0.0, 25.0), (30.0, 25.0)):
        limits = RuntimeLimits(load_wait_s=load_wait_s, request_age_max_s=request_age_max_s)
        bounds = ForwardingLimits.for_runtime_limits(limits)
        waits_there_s = max(limits.load_wait_s, limits.write_timeout_s)
        assert 0 <= bounds.hold_s <= limits.load_wait_s
        assert bounds.hold_s == 0 or bounds.hold_s + waits_there_s < request_age_max_s


async def test_request_is_not_sent_after_its_hold_time() -> None:
    async with run_forwarding_group() as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        relay.abort_all()
        answer = start_request(asked, *READ_REMOTE)
        await asyncio.sleep(LIMITS.hold_s - LIMITS.pause_s / 2)
        # The last forwarding attempt has just failed, and no time is left for another attempt.
        relay.open()
        assert (await answer)[0] == UNAVAILABLE
        await asyncio.sleep(5.0)
        assert relay.count_requests(84) == 0


async def test_request_is_not_sent_if_connecting_outlasts_its_hold_time() -> None:
    async with run_forwarding_group() as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        relay.abort_all()
        relay.open()
        relay.silent = True
        answer = start_request(asked, *READ_REMOTE)
        await asyncio.sleep(LIMITS.hold_s + 0.1)
        # A forwarding attempt that began before the time limit is still connecting; its connection now fails.
        relay.silent = False
        for tunnel in relay.open_connections:
            tunnel.abort_connections()
        assert (await answer)[0] == UNAVAILABLE
        assert relay.count_requests(84) == 0


async def test_unanswered_request_times_out_at_the_request_age_limit() -> None:
    async with run_forwarding_group() as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        relay.silent = True
        answer = start_request(asked, *WRITE_REMOTE)
        answered_code, seconds = await answer
        assert answered_code == UNAVAILABLE
        assert seconds == pytest.approx(LIMITS.request_age_max_s)
        assert asked.count_forwarded("WriteShareGroupState", "REQUEST_TIMED_OUT") == 1
        # The connection is closed, so that the owner cannot execute the request later.
        await group.wait_until(lambda: not relay.open_connections, 1.0)


async def test_request_to_a_replaced_owner_is_sent_to_the_new_owner() -> None:
    async with run_forwarding_group() as group:
        asked, second, third = group.nodes
        await initialize_remote_partition(group)
        second.relay.silent = True
        answer = start_request(asked, *WRITE_REMOTE)
        await asyncio.sleep(3.0)
        moved = group.make_assignment(0, 2, 2, 0, 1, 2)
        asked.apply_assignment(moved)
        third.apply_assignment(moved)
        answered_code, seconds = await answer
        assert answered_code == NONE
        # The silent coordinator wrote no release, so the third coordinator waits until its lease has ended.
        assert seconds < 3.0 + max(LIMITS.moved_grace_s, LEASE_WAIT_S) + 0.5
        (state,) = await third.send_request(*READ_REMOTE)
        assert unpack_batches(state.state_batches) == [(0, 4, ACKNOWLEDGED, 1)]


async def test_request_stays_with_its_owner_when_other_shards_move() -> None:
    async with run_forwarding_group() as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        relay.holding = True
        answer = asked.send_request(*READ_REMOTE)
        await group.wait_until(lambda: relay.count_requests(84))
        group.publish_assignment(0, 1, 0, 0, 1, 2)
        await asyncio.sleep(3.0)
        relay.resume_responses()
        assert await get_error_code(answer) == NONE
        assert relay.count_requests(84) == 1


async def test_held_request_is_dropped_when_its_client_disconnects() -> None:
    async with run_forwarding_group() as group:
        asked, origin = await initialize_remote_partition(group), FakeClientConnection()
        asked.apply_assignment(None)
        waiting = asked.send_request(*READ_REMOTE, origin=origin)
        await asyncio.sleep(0.5)
        assert asked.forwarder.held_operations == 1
        origin.disconnected = True
        await group.wait_until(lambda: not asked.forwarder.held_operations, 2 * LIMITS.pause_s)
        assert not waiting.done()


async def test_request_of_a_disconnected_client_is_not_sent_after_connecting() -> None:
    async with run_forwarding_group() as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        for disconnected in (True, False):
            relay.abort_all()
            relay.open()
            # The previous connection is closed, and the next one takes some time to open.
            await asyncio.sleep(0.1)
            group.network.block_traffic(LIMITS.connect_s / 2)
            origin = FakeClientConnection()
            waiting = asked.send_request(*READ_REMOTE, origin=origin)
            await asyncio.sleep(LIMITS.connect_s / 4)
            assert asked.forwarder.requests_in_flight == 1
            origin.disconnected = disconnected
            await group.wait_until(lambda: not asked.forwarder.requests_in_flight)
            assert (waiting.done(), relay.count_requests(84)) == (not disconnected, 0 if disconnected else 1)


async def test_held_requests_over_the_limit_are_refused() -> None:
    async with run_forwarding_group(LIMITS._replace(held_max=2)) as group:
        asked = await initialize_remote_partition(group)
        asked.apply_assignment(None)
        held = [asked.send_request(*READ_REMOTE) for _ in range(3)]
        answered_code, seconds = await await_error_code_and_duration(held.pop())
        assert (answered_code, seconds) == (UNAVAILABLE, 0.0)
        asked.apply_assignment(group.make_assignment(0, 1, 2, 0, 1, 2))
        assert [await get_error_code(one) for one in held] == [NONE, NONE]


async def test_requests_in_flight_over_the_limit_are_refused() -> None:
    async with run_forwarding_group(LIMITS._replace(requests_in_flight_max=3)) as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        relay.holding = True
        sent = [asked.send_request(*READ_REMOTE) for _ in range(4)]
        answered_code, seconds = await await_error_code_and_duration(sent.pop())
        assert (answered_code, seconds) == (UNAVAILABLE, 0.0)
        # The limit is per owner: another owner still accepts requests.
        assert await asked.get_error_codes(READ, make_read(partition=partition_of_shard(2))) == [
            ErrorCode.INVALID_REQUEST
        ]
        await asyncio.sleep(1.0)
        relay.resume_responses()
        assert [await get_error_code(one) for one in sent] == [NONE] * 3
        assert asked.forwarder.requests_in_flight == 0


async def test_bytes_in_flight_over_the_limit_are_refused() -> None:
    async with run_forwarding_group(LIMITS._replace(bytes_in_flight_max=1000)) as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        many = make_write(*((n, n, ACKNOWLEDGED, 1 + n % 2) for n in range(100)), partition=REMOTE_PARTITION)
        relay.holding = True
        # A request larger than the limit is sent if no other request is in flight.
        first = asked.send_request(WRITE, many)
        assert await get_error_code(asked.send_request(*READ_REMOTE)) == UNAVAILABLE
        await group.wait_until(lambda: relay.count_requests(85))
        relay.resume_responses()
        assert await get_error_code(first) == NONE
        # After the response to the large request, several small requests are within the limit again.
        more = [asked.send_request(*READ_REMOTE) for _ in range(3)]
        assert [await get_error_code(one) for one in more] == [NONE] * 3


async def test_connections_to_an_owner_are_few_and_reused() -> None:
    async with run_forwarding_group() as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        assert len(relay.tunnels) == 1
        relay.holding = True
        sent = [asked.send_request(*READ_REMOTE) for _ in range(50)]
        await group.wait_until(lambda: relay.count_requests(84) == 50)
        assert len(relay.open_connections) == LIMITS.connections_max
        relay.resume_responses()
        assert {await get_error_code(one) for one in sent} == {NONE}
        # Sequential requests reuse the existing connections.
        for _ in range(10):
            assert await get_error_code(asked.send_request(*READ_REMOTE)) == NONE
        assert len(relay.tunnels) == LIMITS.connections_max


async def test_connections_to_each_owner_shrink_with_the_number_of_owners() -> None:
    assert [LIMITS.connections_to_each(owners) for owners in (0, 1, 125, 126, 500, 5_000)] == [
        8,
        8,
        8,
        7,
        2,
        1,
    ]
    async with run_forwarding_group(LIMITS._replace(connections_total_max=6)) as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        relay.holding = True
        sent = [asked.send_request(*READ_REMOTE) for _ in range(50)]
        await group.wait_until(lambda: relay.count_requests(84) == 50)
        assert len(relay.open_connections) == 2
        relay.resume_responses()
        assert {await get_error_code(one) for one in sent} == {NONE}


async def test_slow_shard_does_not_delay_another_shard_of_the_same_owner() -> None:
    async with run_forwarding_group() as group:
        asked, second, _ = group.nodes
        await initialize_remote_partition(group)
        # The log partition of shard 4, which the second coordinator owns, has no reachable leader.
        group.brokers.elect_another_leader(4)
        second.runtime.resign(4)
        await group.wait_until(lambda: not second.runtime.resigning_shards)
        group.block_brokers(group.brokers.partitions[4].leader)
        second.runtime.elect(4)
        waiting = asked.send_request(READ, make_read(partition=partition_of_shard(4)))
        await asyncio.sleep(0.5)
        answered_code, seconds = await start_request(asked, *READ_REMOTE)
        assert (answered_code, seconds < 0.1, waiting.done()) == (NONE, True, False)
        group.block_brokers()
        await group.wait_until(waiting.done)


async def test_connections_to_a_removed_member_are_closed() -> None:
    async with run_forwarding_group() as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        assert len(relay.open_connections) == 1
        assignment = group.make_assignment(0, 1, 1, 0, 1, 1)
        asked.apply_assignment(
            type(assignment)(9, (group.nodes[0].replica, group.nodes[2].replica), assignment.owners)
        )
        await group.wait_until(lambda: not relay.open_connections, 1.0)


async def test_response_without_results_is_an_unknown_server_error() -> None:
    async with run_forwarding_group() as group:
        asked = await initialize_remote_partition(group)
        group.nodes[1].relay.emptying = True
        assert await get_error_code(asked.send_request(*READ_REMOTE)) == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_requests_are_routed_by_the_frozen_assignment() -> None:
    async with run_forwarding_group() as group:
        asked = await initialize_remote_partition(group)
        asked.forwarder.freeze_assignment()
        group.publish_assignment(1, 1, 2, 1, 1, 2)
        asked.apply_assignment(None)
        assert await get_error_code(asked.send_request(*READ_REMOTE)) == NONE
        assert (
            await get_error_code(
                asked.send_request(INITIALIZE, make_initialize(partition=partition_of_shard(0)))
            )
            == NONE
        )


async def test_close_answers_all_pending_requests_with_not_coordinator() -> None:
    async with run_forwarding_group() as group:
        asked, relay = await initialize_remote_partition(group), group.nodes[1].relay
        relay.silent = True
        sent = asked.send_request(*READ_REMOTE)
        await asyncio.sleep(0.1)
        asked.apply_assignment(group.make_assignment(0, 1, -1, 0, 1, 2))
        held = asked.send_request(READ, make_read(partition=partition_of_shard(2)))
        await asyncio.wait_for(asked.forwarder.close(), 1.0)
        late = asked.send_request(*READ_REMOTE)
        assert [await get_error_code(one) for one in (sent, held, late)] == [ErrorCode.NOT_COORDINATOR] * 3
