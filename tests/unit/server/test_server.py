"""The Kafka protocol server on a real socket: responses, their order and closed connections."""

import asyncio
import random
import ssl
from struct import pack
from typing import cast

import pytest

from coordinator.config import HostPort
from coordinator.errors import ListenError
from coordinator.metrics import Metrics
from coordinator.serve.server import Api, Listener, ServerLimits
from protocol.errors import ErrorCode
from protocol.messages import api_versions, find_coordinator
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import write_share_group_state as write_api
from protocol.wire import write_uvarint
from tests.builders import ACKNOWLEDGED, KEY, TOPIC_ID, make_initialize, make_read, make_write
from tests.limits import frames
from tests.unit import clock_skipping
from tests.unit.server.wire import ServedCoordinator, WireClient, request_frame, serve_coordinator

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)

INITIALIZE_FRAME_BODY = initialize_api.encode_request(
    initialize_api.InitializeShareGroupStateRequest(
        "group",
        [initialize_api.InitializeStateData(TOPIC_ID, [make_initialize(), make_initialize(partition=1)])],
    ),
    0,
)


def write_state_body(partition: int = 0, group: str = "group") -> bytes:
    part = make_write((0, 4, ACKNOWLEDGED, 1), partition=partition)
    return write_api.encode_request(
        write_api.WriteShareGroupStateRequest(group, [write_api.WriteStateData(TOPIC_ID, [part])]), 1
    )


def read_state_body(partition: int = 0, group: str = "group") -> bytes:
    return read_api.encode_request(
        read_api.ReadShareGroupStateRequest(
            group, [read_api.ReadStateData(TOPIC_ID, [make_read(partition=partition)])]
        ),
        0,
    )


def find_coordinator_body(*keys: str) -> bytes:
    request = find_coordinator.FindCoordinatorRequest(key_type=2, coordinator_keys=list(keys))
    return find_coordinator.encode_request(request, 6)


async def connect_and_initialize(served: ServedCoordinator, tls: ssl.SSLContext | None = None) -> WireClient:
    client = await served.connect(tls)
    client.send(request_frame(83, 0, 1, INITIALIZE_FRAME_BODY))
    correlation_id, rest = await client.read_frame()
    response = initialize_api.decode_response(rest, 1, 0)
    assert [result.error_code for result in response.results[0].partitions] == [0, 0]
    assert (correlation_id, rest[0]) == (1, 0)
    return client


async def test_readiness_requires_an_open_listener() -> None:
    async with serve_coordinator() as served:
        assert served.listener.health() == []
        await served.listener.drain(0.0)
        assert served.listener.health() == ["The listener for brokers accepts no connections."]
    listener = Listener(cast(Api, None), Metrics(), ServerLimits())
    assert listener.health() == ["The listener for brokers accepts no connections."]


async def test_address_in_use_raises_listen_error() -> None:
    async with serve_coordinator() as served:
        with pytest.raises(ListenError, match=r"^listen=.* cannot be listened on: Address already in use"):
            await served.listener.start(HostPort("127.0.0.1", served.port))


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_lists_exactly_the_served_apis(version: int) -> None:
    async with serve_coordinator() as served:
        client = await served.connect()
        named = api_versions.ApiVersionsRequest("apache-kafka-java", "4.4.0")
        body = api_versions.encode_request(named, version)
        client.send(request_frame(18, version, 5, body, flexible=version >= 3))
        correlation_id, rest = await client.read_frame()
        response = api_versions.decode_response(rest, 0, version)
        ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        assert correlation_id == 5
        assert response.throttle_time_ms == 0
        assert ranges == {
            18: (0, 4),
            10: (0, 6),
            83: (0, 0),
            84: (0, 0),
            85: (0, 1),
            86: (0, 0),
            87: (0, 1),
        }


async def test_newer_api_versions_is_answered_in_version_0() -> None:
    async with serve_coordinator() as served:
        client = await served.connect()
        client.send(request_frame(18, 5, 6, b"whatever a later release puts here"))
        _, rest = await client.read_frame()
        response = api_versions.decode_response(rest, 0, 0)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert response.api_keys == [api_versions.ApiVersion(18, 0, 4)]


@pytest.mark.parametrize(("name", "version"), [("", ""), ("a", ""), ("", "1"), ("a b", "1"), ("a", "1-")])
async def test_api_versions_validates_client_name_and_version_as_kafka(name: str, version: str) -> None:
    async with serve_coordinator() as served:
        client = await served.connect()
        body = api_versions.encode_request(api_versions.ApiVersionsRequest(name, version), 4)
        client.send(request_frame(18, 4, 6, body))
        response = api_versions.decode_response((await client.read_frame())[1], 0, 4)
        assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])


async def test_find_coordinator_returns_own_node_ids_and_advertised_address() -> None:
    async with serve_coordinator() as served:
        client = await served.connect()
        keys = [str(KEY._replace(partition=partition)) for partition in range(40)]
        for _ in range(2):  # the second response comes from the cache
            client.send(request_frame(10, 6, 9, find_coordinator_body(*keys)))
            correlation_id, rest = await client.read_frame()
            response = find_coordinator.decode_response(rest, 1, 6)
            assert correlation_id == 9
            assert [found.key for found in response.coordinators] == keys
            assert {(found.host, found.port) for found in response.coordinators} == {("localhost", 9095)}
            assert {found.node_id for found in response.coordinators} == set(range(1_000_000, 1_000_004))


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_for_other_key_types_returns_invalid_request(version: int) -> None:
    async with serve_coordinator() as served:
        client = await served.connect()
        request = find_coordinator.FindCoordinatorRequest(
            key="group" if version < 4 else "",
            key_type=1 if version >= 1 else 0,
            coordinator_keys=["group"] if version >= 4 else [],
        )
        body = find_coordinator.encode_request(request, version)
        client.send(request_frame(10, version, 2, body, flexible=version >= 3))
        _, rest = await client.read_frame()
        response = find_coordinator.decode_response(rest, 1 if version >= 3 else 0, version)
        error = response.coordinators[0].error_code if version >= 4 else response.error_code
        assert error == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("group", "topics", "answered"),
    [
        ("", {TOPIC_ID: [0]}, {}),
        ("group", {}, {}),
        ("group", {TOPIC_ID: []}, {}),
        # For a topic without partitions, Initialize returns only the other topics, and all other RPCs return
        # no topic.
        ("group", {TOPIC_ID: [], bytes(16): [0, 1]}, {bytes(16): [0, 1]}),
    ],
)
async def test_request_without_share_partitions_gets_an_empty_response(
    group: str, topics: dict[bytes, list[int]], answered: dict[bytes, list[int]]
) -> None:
    async with serve_coordinator() as served:
        client = await served.connect()
        for api_key in (frames.INITIALIZE, frames.READ):
            body = write_uvarint(len(group) + 1) + group.encode() + write_uvarint(len(topics) + 1)
            for topic_id, partitions in topics.items():
                parts = [frames.partition_fields(api_key, partition) for partition in partitions]
                body += topic_id + write_uvarint(len(parts) + 1) + b"".join(parts) + b"\0"
            client.send(request_frame(api_key, 0, 1, body + b"\0"))
        results = initialize_api.decode_response((await client.read_frame())[1], 1, 0).results
        found = {topic.topic_id: [part.partition for part in topic.partitions] for topic in results}
        assert found == answered
        assert read_api.decode_response((await client.read_frame())[1], 1, 0).results == []


async def test_responses_are_sent_in_request_order() -> None:
    async with serve_coordinator() as served:
        client = await connect_and_initialize(served)
        served.log.blocking = True
        client.send(request_frame(85, 1, 10, write_state_body(0)))
        client.send(request_frame(84, 0, 11, read_state_body(1)))
        client.send(request_frame(18, 0, 12, b"", flexible=False))
        await served.wait_until(lambda: served.log.held)
        served.log.blocking = False
        served.log.release_appends()
        assert [(await client.read_frame())[0] for _ in range(3)] == [10, 11, 12]


async def test_frames_are_assembled_from_pieces_of_any_size() -> None:
    async with serve_coordinator() as served:
        client = await connect_and_initialize(served)
        stream = b"".join(request_frame(84, 0, n, read_state_body()) for n in range(20))
        at = 0
        dice = random.Random(7)
        while at < len(stream):
            size = dice.randint(1, 30)
            client.send(stream[at : at + size])
            await client.writer.drain()
            await asyncio.sleep(0)
            at += size
        assert [(await client.read_frame())[0] for _ in range(20)] == list(range(20))


def frame_with_client_id(client_id: str) -> bytes:
    """Return a read request; `client_id` has the rest of its header in hexadecimal."""
    frame = pack(">hhi", 84, 0, 7) + bytes.fromhex(client_id) + read_state_body()
    return pack(">i", len(frame)) + frame


@pytest.mark.parametrize(
    "client_id", ["ffff 00", "0000 00", "0001 63 00", "0002 c3a9 00", "ffff 01 05 01 aa", "0001 63 01 05 00"]
)
async def test_request_with_any_client_id_and_tagged_header_fields_is_answered(client_id: str) -> None:
    async with serve_coordinator() as served:
        client = await connect_and_initialize(served)
        client.send(frame_with_client_id(client_id))
        correlation_id, rest = await client.read_frame()
        (topic,) = read_api.decode_response(rest, 1, 0).results
        assert (correlation_id, topic.partitions[0].error_code) == (7, ErrorCode.NONE)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(pack(">i", -1), id="negative size"),
        pytest.param(pack(">i", 2**31 - 1) + b"x" * 100, id="oversized"),
        pytest.param(pack(">i", 3) + b"abc", id="shorter than a header"),
        pytest.param(request_frame(0, 9, 1, b"\0"), id="API that only brokers serve"),
        pytest.param(request_frame(85, 2, 1, b"\0"), id="unknown version"),
        pytest.param(request_frame(85, -1, 1, b"\0"), id="negative version"),
        pytest.param(request_frame(85, 1, 1, write_state_body()[:-3]), id="truncated body"),
        pytest.param(request_frame(85, 1, 1, write_state_body() + b"\0"), id="trailing bytes"),
        pytest.param(request_frame(84, 0, 1, read_state_body(group="x" * 32768)), id="group id too long"),
        pytest.param(
            request_frame(85, 1, 1, write_state_body(group="x" * 32768)),
            id="group id too long, fast-path write",
        ),
        pytest.param(request_frame(10, 6, 1, find_coordinator_body("x" * 32768)), id="key too long"),
        pytest.param(request_frame(10, 6, 1, b"\xff" * 40), id="random body"),
        pytest.param(request_frame(10, 7, 1, b"\0"), id="unknown version of FindCoordinator"),
        pytest.param(frame_with_client_id("fffe 00"), id="negative length of the client id"),
        pytest.param(frame_with_client_id("7fff 00"), id="client id beyond the frame"),
        pytest.param(pack(">ihhih", 10, 84, 0, 7, -1), id="header without its tagged fields"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: coordinator\r\n\r\n", id="HTTP"),
        pytest.param(bytes.fromhex("1603010200010001fc0303") + bytes(600), id="TLS"),
    ],
)
async def test_invalid_frame_closes_only_its_connection(frame: bytes) -> None:
    async with serve_coordinator() as served:
        other = await connect_and_initialize(served)
        client = await served.connect()
        client.send(frame)
        assert await client.wait_until_closed()
        other.send(request_frame(84, 0, 3, read_state_body()))
        assert (await other.read_frame())[0] == 3


async def test_connection_at_its_in_flight_limit_is_not_read() -> None:
    async with serve_coordinator(ServerLimits(requests_in_flight_max=3)) as served:
        client = await connect_and_initialize(served)
        served.log.blocking = True
        for n in range(50):
            client.send(request_frame(85, 1, n, write_state_body()))
        await served.wait_until(lambda: served.log.held)
        await client.writer.drain()
        # At most three operations are in progress or queued; later frames are not parsed.
        assert len(served.log.held[0][1]) <= 3
        served.log.blocking = False
        served.log.release_appends()
        assert [(await client.read_frame())[0] for _ in range(50)] == list(range(50))


async def test_many_immediate_responses_are_all_sent() -> None:
    async with serve_coordinator(ServerLimits(requests_in_flight_max=7)) as served:
        client = await connect_and_initialize(served)
        client.send(b"".join(request_frame(84, 0, n, read_state_body()) for n in range(3)))
        request = find_coordinator.FindCoordinatorRequest(key_type=2, coordinator_keys=[str(KEY)])
        body = find_coordinator.encode_request(request, 6)
        client.send(b"".join(request_frame(10, 6, n, body) for n in range(3, 200)))
        assert [(await client.read_frame())[0] for _ in range(200)] == list(range(200))


async def send_half_frames(served: ServedCoordinator) -> list[WireClient]:
    """Return clients that sent half of a frame each; together they exceed the request memory."""
    await connect_and_initialize(served)
    clients = [await served.connect() for _ in range(20)]
    for client in clients:
        client.send(pack(">i", 60_000) + b"x" * 30_000)
    return clients


async def test_incomplete_frames_are_closed_when_request_memory_is_full() -> None:
    async with serve_coordinator(ServerLimits(queued_bytes_max=100000, frame_s=0.2, sweep_s=0.02)) as served:
        for client in await send_half_frames(served):
            assert await client.wait_until_closed()
        await served.wait_until(lambda: served.listener.held_bytes == 0)


async def test_incomplete_frames_of_others_do_not_block_a_client() -> None:
    async with serve_coordinator(ServerLimits(queued_bytes_max=100000, frame_s=60.0, sweep_s=0.02)) as served:
        client = await connect_and_initialize(served)
        small = await served.connect()
        small.send(request_frame(84, 0, 5, read_state_body())[:-1])
        hogs = [await served.connect() for _ in range(4)]
        for hog in hogs:
            hog.send(pack(">i", 60_000) + b"x" * 50_000)
        # Wait until the request memory is full. If the sweeper ran first, it has already closed a connection.
        await served.wait_until(
            lambda: (
                served.listener.held_bytes >= 100_000
                or served.metrics.counter_value("connections_closed", "no_room")
            )
        )
        for n in range(3):
            client.send(request_frame(84, 0, n, read_state_body()))
            assert (await client.read_frame())[0] == n
        # The server does not close a connection whose incomplete frame has few bytes.
        small.send(request_frame(84, 0, 5, read_state_body())[-1:])
        assert (await small.read_frame())[0] == 5


async def test_incomplete_frame_times_out() -> None:
    async with serve_coordinator(ServerLimits(frame_s=0.02, sweep_s=0.005)) as served:
        client = await served.connect()
        client.send(request_frame(84, 0, 3, read_state_body())[:-1])
        assert await client.wait_until_closed()


async def test_idle_connection_is_closed_unless_it_awaits_a_response() -> None:
    async with serve_coordinator(ServerLimits(connection_idle_s=3.0)) as served:
        idle = await served.connect()
        busy = await connect_and_initialize(served)
        served.log.blocking = True
        busy.send(request_frame(85, 1, 4, write_state_body()))
        await served.wait_until(lambda: served.log.held)
        clock_skipping.skip_time(4.0)
        assert await idle.wait_until_closed()
        served.log.blocking = False
        served.log.release_appends()
        assert (await busy.read_frame())[0] == 4


async def test_connection_over_the_limit_is_closed_at_once() -> None:
    async with serve_coordinator(ServerLimits(connections_max=2)) as served:
        first, second = await connect_and_initialize(served), await served.connect()
        third = await served.connect()
        assert await third.wait_until_closed()
        second.writer.close()
        await served.wait_until(lambda: served.listener.connection_count == 1)
        fourth = await served.connect()
        fourth.send(request_frame(84, 0, 5, read_state_body()))
        assert (await fourth.read_frame())[0] == 5
        first.send(request_frame(84, 0, 6, read_state_body()))
        assert (await first.read_frame())[0] == 6


async def test_draining_answers_accepted_requests_and_accepts_nothing_else() -> None:
    async with serve_coordinator() as served:
        client = await connect_and_initialize(served)
        served.log.blocking = True
        client.send(request_frame(85, 1, 7, write_state_body()))
        await served.wait_until(lambda: served.log.held)
        draining = asyncio.create_task(served.listener.drain(10))
        await asyncio.sleep(0.01)
        assert not draining.done()
        with pytest.raises(ConnectionError):
            await served.connect()
        served.log.blocking = False
        served.log.release_appends()
        assert (await client.read_frame())[0] == 7
        await draining
        client.send(request_frame(84, 0, 2, read_state_body()))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.05)


async def test_draining_does_not_wait_for_idle_connections() -> None:
    async with serve_coordinator() as served:
        await connect_and_initialize(served)
        async with asyncio.timeout(60):
            await served.listener.drain(3_600.0)


async def test_draining_ends_at_its_timeout() -> None:
    async with serve_coordinator() as served:
        client = await connect_and_initialize(served)
        served.log.blocking = True
        client.send(request_frame(85, 1, 7, write_state_body()))
        await served.wait_until(lambda: served.log.held)
        async with asyncio.timeout(60):
            await served.listener.drain(0.02)
