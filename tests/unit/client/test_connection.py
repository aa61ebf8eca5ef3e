"""One connection of the client: API versions, pipelining, timeouts, cancellation and close."""

import asyncio

import pytest

from coordinator.client import (
    ONCE,
    ClientClosed,
    Connection,
    ConnectionLimits,
    Disconnected,
    ShareCoordinatorClient,
    StateBatch,
    TimedOut,
    UnsupportedVersion,
)
from protocol.errors import EncodeError
from protocol.messages import write_share_group_state as write_api
from protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.builders import ACKNOWLEDGED, KEY
from tests.unit import clock_skipping
from tests.unit.client.fake_coordinator import (
    DELETE,
    FIND,
    READ,
    SERVED,
    SUMMARY,
    VERSIONS,
    WRITE,
    FakeCoordinator,
    close_connection,
    delayed_answer,
    error_answer,
    never_answer,
)
from tests.unit.clock_skipping import skip_time
from tests.unit.coroutine_tests import FakeSleep

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)

LIMITS = ConnectionLimits(request_s=30)


def make_client(fake: FakeCoordinator, *, limits: ConnectionLimits | None = None) -> ShareCoordinatorClient:
    return ShareCoordinatorClient(
        fake.address, client_id="me", direct=True, retry=ONCE, limits=limits, sleep=FakeSleep()
    )


# API versions.


async def test_newest_common_version_of_each_api_is_used() -> None:
    async with FakeCoordinator() as fake:
        async with ShareCoordinatorClient(fake.address, client_id="me", sleep=FakeSleep()) as client:
            await client.initialize(KEY, 0, 0)
            await client.write(KEY, state_epoch=0, leader_epoch=0, start_offset=0)
        asked = [(request.connection, request.api_key, request.version) for request in fake.requests]
        assert asked == [(0, VERSIONS, 4), (0, FIND, 6), (1, VERSIONS, 4), (1, 83, 0), (1, WRITE, 1)]
        assert {request.client_id for request in fake.requests} == {"me"}


@pytest.mark.parametrize("newest", [0, 1, 2, 3])
async def test_older_version_of_api_versions_is_requested_after_unsupported_version(newest: int) -> None:
    async with FakeCoordinator(served={**SERVED, VERSIONS: (0, newest)}) as fake, make_client(fake) as client:
        await client.summary(KEY)
        asked = [request.version for request in fake.requests if request.api_key == VERSIONS]
        assert asked == [4, newest]


async def test_request_to_an_old_server_has_a_version_that_the_server_supports() -> None:
    served = {**SERVED, WRITE: (0, 0), SUMMARY: (0, 0)}
    async with FakeCoordinator(served=served) as fake, make_client(fake) as client:
        await client.initialize(KEY, 0, 0)
        await client.write(KEY, state_epoch=0, leader_epoch=0, start_offset=0, delivery_complete_count=1)
        assert fake.requests[-1].version == 0
        assert (await client.summary(KEY)).delivery_complete_count == -1


@pytest.mark.parametrize(
    ("served", "says"),
    [
        ({VERSIONS: (0, 4), READ: (0, 0)}, "does not serve WriteShareGroupState"),
        ({**SERVED, WRITE: (2, 3)}, "in versions 2 to 3, this client in 0 to 1"),
    ],
)
async def test_api_without_a_common_version_is_refused_by_the_client(
    served: dict[int, tuple[int, int]], says: str
) -> None:
    async with FakeCoordinator(served=served) as fake:
        waits = FakeSleep()
        async with ShareCoordinatorClient(fake.address, direct=True, sleep=waits) as client:
            with pytest.raises(UnsupportedVersion, match=says) as caught:
                await client.write(KEY, state_epoch=0, leader_epoch=0, start_offset=0)
        assert caught.value.key == KEY
        assert waits == []
        assert fake.count_requests(WRITE) == 0


async def test_server_without_share_coordinators_is_refused() -> None:
    async with FakeCoordinator(served={**SERVED, FIND: (0, 5)}) as fake:
        async with ShareCoordinatorClient(fake.address, sleep=FakeSleep()) as client:
            with pytest.raises(UnsupportedVersion, match="does not know of share coordinators"):
                await client.summary(KEY)
        assert fake.count_requests(FIND) == 0


# Pipelining.


async def test_requests_are_pipelined_on_one_connection() -> None:
    released = asyncio.Event()
    async with FakeCoordinator() as fake, make_client(fake) as client:
        fake.plan_answers(READ, delayed_answer(released))
        await client.initialize(KEY, 0, 9)
        reading = asyncio.ensure_future(client.read(KEY, 1))
        summaries = [asyncio.ensure_future(client.summary(KEY)) for _ in range(20)]
        await fake.wait_for_requests(SUMMARY, 20)
        released.set()
        assert (await reading).start_offset == 9
        # The server executed the read first: the summaries have its leader epoch.
        assert {summary.leader_epoch for summary in await asyncio.gather(*summaries)} == {1}
        assert fake.connections == 1


async def test_requests_in_flight_are_bounded() -> None:
    limits = ConnectionLimits(requests_in_flight_max=2)
    async with FakeCoordinator() as fake, make_client(fake, limits=limits) as client:
        await asyncio.gather(*(client.summary(KEY) for _ in range(20)))
        assert fake.unanswered_max == 2


async def test_response_to_a_cancelled_call_is_not_given_to_the_next_call() -> None:
    released = asyncio.Event()
    async with FakeCoordinator() as fake, make_client(fake) as client:
        await client.initialize(KEY, 3, 0)
        fake.plan_answers(READ, delayed_answer(released))
        given_up = asyncio.ensure_future(client.read(KEY, 1))
        await fake.wait_for_requests(READ, 1)
        given_up.cancel()
        summary = asyncio.ensure_future(client.summary(KEY))
        await fake.wait_for_requests(SUMMARY, 1)
        released.set()
        assert (await summary).state_epoch == 3
        assert given_up.cancelled()
        assert fake.connections == 1


async def test_call_cancelled_while_connecting_does_not_affect_others() -> None:
    released = asyncio.Event()
    async with FakeCoordinator() as fake, make_client(fake) as client:
        fake.plan_answers(VERSIONS, delayed_answer(released))
        given_up, other = (asyncio.ensure_future(client.summary(KEY)) for _ in range(2))
        await fake.wait_for_requests(VERSIONS, 1)
        given_up.cancel()
        released.set()
        await other
        assert given_up.cancelled()
        assert fake.connections == 1


@pytest.mark.parametrize("is_reset", [False, True])
async def test_each_failed_call_gets_its_own_exception(
    is_reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCoordinator() as fake:
        fake.plan_answers(FIND, close_connection)
        connection = await Connection.open("127.0.0.1", fake.port, client_id="me")
        if is_reset:
            fake.reset_connections()
        request = FindCoordinatorRequest(key_type=2, coordinator_keys=[str(KEY)])
        calls = [connection.request(request) for _ in range(10)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Disconnected] * 10
        assert len({id(outcome) for outcome in outcomes}) == 10
        assert not connection.is_usable
        await connection.close()
    assert caplog.text == ""


# Timeouts.


async def test_request_timeout_closes_the_connection() -> None:
    async with FakeCoordinator() as fake, make_client(fake, limits=LIMITS) as client:
        fake.plan_answers(READ, never_answer)
        reading = asyncio.ensure_future(client.read(KEY, 0))
        await fake.wait_for_requests(READ, 1)
        skip_time(31)
        with pytest.raises(TimedOut, match="within 30 s"):
            await reading
        assert (await client.summary(KEY)).start_offset == -1
        assert fake.connections == 2


async def test_timed_out_request_is_retried() -> None:
    waits = FakeSleep()
    async with FakeCoordinator() as fake:
        fake.plan_answers(SUMMARY, never_answer)
        async with ShareCoordinatorClient(fake.address, limits=LIMITS, sleep=waits) as client:
            asking = asyncio.ensure_future(client.summary(KEY))
            await fake.wait_for_requests(SUMMARY, 1)
            skip_time(31)
            await asking
        assert len(waits) == 1
        assert fake.count_requests(FIND) == 2


async def test_silent_server_times_out() -> None:
    async with FakeCoordinator() as fake, make_client(fake, limits=LIMITS) as client:
        fake.plan_answers(VERSIONS, never_answer)
        asking = asyncio.ensure_future(client.summary(KEY))
        await fake.wait_for_requests(VERSIONS, 1)
        skip_time(31)
        with pytest.raises(TimedOut):
            await asking
        await client.summary(KEY)


# Closing.


async def test_close_fails_calls_in_flight() -> None:
    async with FakeCoordinator() as fake:
        client = make_client(fake)
        fake.plan_answers(READ, never_answer)
        reading = asyncio.ensure_future(client.read(KEY, 0))
        await fake.wait_for_requests(READ, 1)
        await client.close()
        with pytest.raises(ClientClosed):
            await reading
        await client.close()


async def test_close_fails_a_pending_connect() -> None:
    async with FakeCoordinator() as fake:
        client = make_client(fake)
        fake.plan_answers(VERSIONS, never_answer)
        summary = asyncio.ensure_future(client.summary(KEY))
        await fake.wait_for_requests(VERSIONS, 1)
        await client.close()
        with pytest.raises(ClientClosed):
            await summary


async def test_close_ends_a_retry_backoff() -> None:
    waiting = asyncio.Event()

    async def wait_forever(wait_s: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with FakeCoordinator() as fake:
        client = ShareCoordinatorClient(fake.address, sleep=wait_forever)
        fake.plan_answers(DELETE, error_answer(15))
        deleting = asyncio.ensure_future(client.delete(KEY))
        await waiting.wait()
        await client.close()
        with pytest.raises(ClientClosed):
            await deleting


async def test_call_on_a_closed_client_raises_client_closed() -> None:
    async with FakeCoordinator() as fake:
        async with make_client(fake) as client:
            await client.summary(KEY)
        with pytest.raises(ClientClosed):
            await client.summary(KEY)


async def test_close_does_not_wait_for_a_server_that_does_not_read() -> None:
    # The request is much larger than the socket buffers of the client and the server.
    part = write_api.PartitionData(KEY.partition, 0, 0, 0, state_batches=bytes(20_000_000))
    request = write_api.WriteShareGroupStateRequest(
        KEY.group_id, [write_api.WriteStateData(KEY.topic_id, [part])]
    )
    async with FakeCoordinator() as fake:
        fake.reads_max = 1
        client = make_client(fake)
        writing = asyncio.ensure_future(client.send(request))
        await fake.stalled.wait()
        async with asyncio.timeout(60):
            await client.close()
        with pytest.raises(ClientClosed):
            await writing


async def test_lost_connection_is_not_reused() -> None:
    async with FakeCoordinator() as fake, make_client(fake) as client:
        fake.plan_answers(READ, close_connection)
        with pytest.raises(Disconnected):
            await client.read(KEY, 0)
        await client.summary(KEY)
        assert fake.connections == 2


# Invalid requests that the client refuses to send.


async def test_invalid_arguments_are_refused_before_sending() -> None:
    async with FakeCoordinator() as fake, make_client(fake) as client:
        for wrong in (KEY._replace(group_id=""), KEY._replace(topic_id=b"short"), KEY._replace(partition=-1)):
            with pytest.raises(ValueError, match=r"share-partition|partition is -1"):
                await client.delete(wrong)
        with pytest.raises(ValueError, match="state_epoch is -1"):
            await client.initialize(KEY, -1, 0)
        with pytest.raises(ValueError, match="leader_epoch is -2"):
            await client.read(KEY, -2)
        for batch, why in (
            (StateBatch(2, 1, ACKNOWLEDGED, 1), "ends before it begins"),
            (StateBatch(0, 2**63, ACKNOWLEDGED, 1), "does not fit"),
        ):
            with pytest.raises(ValueError, match=why):
                await client.write(KEY, state_epoch=0, leader_epoch=0, start_offset=0, batches=[batch])
        assert fake.requests == []
        with pytest.raises(EncodeError):
            await client.initialize(KEY, 2**31, 0)
        assert fake.count_requests(83) == 0
        # The connection is still usable.
        await client.summary(KEY)
        assert fake.connections == 1


@pytest.mark.parametrize(
    "bootstrap", ["", "host", "host:", ":9095", "host:0", "host:65536", "::1:9095", "a:1,,"]
)
def test_invalid_bootstrap_address_is_refused(bootstrap: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        ShareCoordinatorClient(bootstrap)


def test_direct_client_requires_one_address() -> None:
    with pytest.raises(ValueError, match="one address"):
        ShareCoordinatorClient("a:1,b:2", direct=True)
