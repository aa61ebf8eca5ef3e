"""Request memory is bounded: while it is full, connections are not read."""

import asyncio
from struct import pack
from typing import Any, cast

from coordinator.metrics import Metrics
from coordinator.serve.server import ServerLimits
from coordinator.serve.server.connection import Connection
from coordinator.serve.server.request_memory import RequestMemory

LIMITS = ServerLimits()


class SilentHandler:
    """A request handler that never responds."""

    is_authorized = True

    def handle(self, frame: bytes, origin: Any, respond: Any) -> None:
        pass


class FakeTransport(asyncio.Transport):
    """A transport that records only whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return False


class SharedMemoryConnections:
    """Connections that share one request memory."""

    def __init__(self, bytes_max: int) -> None:
        self.request_memory = RequestMemory(bytes_max)

    def open_connection(self, limits: ServerLimits = LIMITS) -> tuple[Connection, FakeTransport]:
        connection = Connection(SilentHandler(), cast(Any, self), Metrics(), limits)
        transport = FakeTransport()
        connection.connection_made(transport)
        return connection, transport

    def connection_opened(self, connection: Connection) -> bool:
        return True

    def connection_closed(self, connection: Connection) -> None:
        pass


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
