"""A connection without a socket: request memory, frames, back-pressure and timeouts."""

import asyncio
from collections.abc import Callable
from struct import pack
from typing import Any, cast

import pytest

from coordinator.metrics import Metrics
from coordinator.process.fair_queue import FairQueue
from coordinator.serve.server import ServerLimits
from coordinator.serve.server.connection import Connection
from coordinator.serve.server.request_memory import RequestMemory

LIMITS = ServerLimits()


class SilentHandler:
    """A request handler that records the requests, and responds only when a test does."""

    is_authorized = True

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.respond: list[Callable[[bytes], None]] = []

    def handle(self, frame: bytes, origin: Any, respond: Any) -> None:
        self.frames.append(frame)
        self.respond.append(respond)


class FakeTransport(asyncio.Transport):
    """A transport that records whether it is read, what was written, and how it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True
        self.written: list[Any] = []
        self.closed: list[str] = []

    def write(self, data: Any) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed.append("close")

    def abort(self) -> None:
        self.closed.append("abort")

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def is_closing(self) -> bool:
        return False


class SharedMemoryConnections:
    """Connections that share one request memory."""

    def __init__(self, bytes_max: int) -> None:
        self.request_memory = RequestMemory(bytes_max)
        self.handler = SilentHandler()
        self.pipelined_work = FairQueue()
        self.idle = 0

    def open_connection(self, limits: ServerLimits = LIMITS) -> tuple[Connection, FakeTransport]:
        connection = Connection(self.handler, cast(Any, self), Metrics(), limits)
        transport = FakeTransport()
        connection.connection_made(transport)
        return connection, transport

    def connection_opened(self, connection: Connection) -> bool:
        return True

    def connection_closed(self, connection: Connection) -> None:
        pass

    def connection_idle(self) -> None:
        self.idle += 1


async def test_connections_are_not_read_while_request_memory_is_full() -> None:
    clients = SharedMemoryConnections(bytes_max=50_000)
    (first, first_transport), (second, second_transport) = (
        clients.open_connection(),
        clients.open_connection(),
    )
    begun = pack(">i", 60_000) + bytes(29_996)
    first.data_received(begun)
    assert (clients.request_memory.is_full, first_transport.is_read) == (False, True)
    second.data_received(begun)
    assert (clients.request_memory.is_full, second_transport.is_read) == (True, False)
    # A connection that was still read is paused when its next bytes arrive.
    first.data_received(bytes(10_000))
    assert not first_transport.is_read
    assert clients.request_memory.held_bytes == 70_000
    first.connection_lost(None)
    assert clients.request_memory.held_bytes == 30_000
    await asyncio.sleep(0)
    assert second_transport.is_read


async def test_closed_connection_releases_its_request_memory() -> None:
    clients = SharedMemoryConnections(bytes_max=50_000)
    client, _ = clients.open_connection(LIMITS._replace(requests_in_flight_max=1))
    # One request in progress, two that wait for it, and the beginning of a fourth.
    client.data_received(3 * (pack(">i", 100) + bytes(100)) + pack(">i", 100) + bytes(46))
    assert clients.request_memory.held_bytes == 350
    client.connection_lost(None)
    assert client.disconnected
    client.data_received(pack(">i", 100) + bytes(46))
    # The request in progress is in memory until its operations are dropped.
    assert clients.request_memory.held_bytes == 100
    clients.handler.respond.clear()
    assert clients.request_memory.held_bytes == 0


async def test_frame_timeout_counts_from_its_first_byte() -> None:
    client, _ = SharedMemoryConnections(bytes_max=50_000).open_connection()
    client.data_received(pack(">i", 100) + bytes(1))
    begun_s = client.last_active_s
    while client.last_active_s == begun_s:
        await asyncio.sleep(0)
        if asyncio.get_running_loop().time() > begun_s:
            client.data_received(bytes(1))
    between_s = (begun_s + client.last_active_s) / 2
    assert client.timeout_reason(begun_s + LIMITS.frame_s, 0) is None
    assert client.timeout_reason(between_s + LIMITS.frame_s, 0) == "slow_frame"


def frame(number: int, size: int = 100) -> bytes:
    return pack(">i", size) + bytes([number]) * size


async def test_bytes_that_look_like_a_frame_continue_an_incomplete_frame() -> None:
    clients = SharedMemoryConnections(bytes_max=50_000)
    client, _ = clients.open_connection()
    client.data_received(pack(">i", 2 * 104))
    client.data_received(frame(1))
    client.data_received(frame(2))
    assert clients.handler.frames == [frame(1) + frame(2)]


@pytest.mark.parametrize("in_flight_max", [1, 2])
async def test_requests_in_flight_are_limited(in_flight_max: int) -> None:
    """The bytes of each frame arrive in a separate read.

    Responses are written in request order, and release the memory.
    """
    clients = SharedMemoryConnections(bytes_max=50_000)
    client, transport = clients.open_connection(LIMITS._replace(requests_in_flight_max=in_flight_max))
    for number in range(3):
        assert transport.is_read == (number < in_flight_max)
        client.data_received(frame(number))
    assert [each[0] for each in clients.handler.frames] == list(range(in_flight_max))
    assert clients.request_memory.held_bytes == 300
    # The last request in progress is answered first.
    answered = 0
    while in_progress := clients.handler.respond[answered:]:
        for respond in reversed(in_progress):
            respond(b"%d" % clients.handler.respond.index(respond))
        answered += len(in_progress)
    assert b"".join(transport.written) == b"012"
    assert clients.request_memory.held_bytes == 0
    assert (transport.is_read, client.busy) == (True, False)


async def test_client_is_not_read_when_its_frame_fills_the_request_memory() -> None:
    client, transport = SharedMemoryConnections(bytes_max=100).open_connection()
    client.data_received(frame(1))
    assert not transport.is_read


async def test_client_is_read_after_its_response_although_memory_is_nearly_full() -> None:
    clients = SharedMemoryConnections(bytes_max=1_000)
    other, _ = clients.open_connection()
    other.data_received(frame(1, 850)[:-1])
    client, transport = clients.open_connection()
    client.data_received(frame(2, 200))
    assert not transport.is_read
    clients.handler.respond[-1](b"2")
    assert transport.is_read


async def test_client_that_does_not_read_responses_is_not_read() -> None:
    clients = SharedMemoryConnections(bytes_max=50_000)
    client, transport = clients.open_connection()
    client.pause_writing()
    client.data_received(frame(1))
    assert (clients.handler.frames, transport.is_read) == ([], False)
    since_s = client._unwritable_since_s
    assert client.timeout_reason(since_s + LIMITS.reading_s, 0) is None
    assert client.timeout_reason(since_s + LIMITS.reading_s + 0.01, 0) == "slow_reader"
    client.resume_writing()
    assert (len(clients.handler.frames), transport.is_read) == (1, True)
    assert client.timeout_reason(since_s + LIMITS.reading_s + 0.01, 0) is None


async def test_idle_client_and_stalled_close_time_out() -> None:
    client, transport = SharedMemoryConnections(bytes_max=50_000).open_connection()
    idle_s = client.last_active_s + LIMITS.connection_idle_s
    assert client.timeout_reason(idle_s, 0) is None
    assert client.timeout_reason(idle_s + 0.01, 0) == "idle"
    client.abort_if_stalled(idle_s)
    assert transport.closed == []
    client.close("idle")
    closed_s = client._closing_since_s
    client.close("another reason")
    client.abort_if_stalled(closed_s + LIMITS.close_s)
    assert transport.closed == ["close", "close"]
    client.abort_if_stalled(closed_s + LIMITS.close_s + 0.01)
    assert transport.closed == ["close", "close", "abort"]
    client.data_received(frame(1))
    assert not client.busy
    client, transport = SharedMemoryConnections(bytes_max=50_000).open_connection()
    client.evict()
    assert transport.closed == ["close", "abort"]


async def test_last_response_of_a_draining_client_is_reported() -> None:
    clients = SharedMemoryConnections(bytes_max=50_000)
    client, _ = clients.open_connection()
    client.data_received(frame(1) + frame(2))
    clients.request_memory.draining = True
    client.stop_reading()
    for idle, respond in enumerate(clients.handler.respond):
        respond(b"")
        assert clients.idle == idle


@pytest.mark.parametrize("shift", [8, 16, 24])
async def test_all_four_bytes_of_a_frame_size_are_decoded(shift: int) -> None:
    size = 1 << shift
    for arrived in (0, 4):
        clients = SharedMemoryConnections(bytes_max=1 << 30)
        client, _ = clients.open_connection()
        client.data_received(pack(">i", size + 4) + bytes(arrived))
        assert clients.handler.frames == []
    clients = SharedMemoryConnections(bytes_max=1 << 30)
    client, _ = clients.open_connection(LIMITS._replace(frame_bytes_max=1 << 30))
    client.data_received(frame(1, size) + frame(2, size - 8))
    # A large frame takes a whole iteration of the event loop.
    await asyncio.sleep(0)
    assert [len(each) for each in clients.handler.frames] == [size, size - 8]
