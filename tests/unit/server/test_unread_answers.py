"""A client that reads slowly gets every response, complete and in order."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvloop

from protocol.frames import FrameReader
from tests.unit.server.test_server import (
    INITIALIZE_FRAME_BODY,
    connect_and_initialize,
    read_state_body,
    write_state_body,
)
from tests.unit.server.wire import ServedCoordinator, request_frame, serve_coordinator

# The responses to fewer than this number of requests fill the socket buffers.
REQUESTS_MAX = 3_000
# The number of requests sent after the socket is full. Then the client sends one request for each piece that
# it reads.
MORE = 200
PIECES = 40
PIECE_BYTES = 200
# Each seventh request is a read, which does not use the fast path.
A_READ_EVERY = 7


def make_request(number: int) -> bytes:
    if number == 0:
        return request_frame(83, 0, number, INITIALIZE_FRAME_BODY)
    if number % A_READ_EVERY == 0:
        return request_frame(84, 0, number, read_state_body(0))
    return request_frame(85, 1, number, write_state_body(0))


class SlowClient:
    """A client that reads only on demand."""

    def __init__(self, served: ServedCoordinator, own: socket.socket) -> None:
        self.served = served
        self.own = own
        self.sent = 0
        self.read: list[bytes] = []
        self._frames = FrameReader(1_000_000)

    async def send_next_request(self) -> None:
        """Send the next request, and wait until the server has executed it."""
        await asyncio.get_running_loop().sock_sendall(self.own, make_request(self.sent))
        self.sent += 1
        async with asyncio.timeout(60):
            while sum(self.served.metrics._requests.values()) < self.sent:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def read_bytes(self, size: int) -> None:
        """Read up to `size` bytes."""
        async with asyncio.timeout(60):
            self.read += self._frames.receive_data(await asyncio.get_running_loop().sock_recv(self.own, size))


async def read_slowly() -> None:
    own, served_socket = socket.socketpair()
    own.setblocking(False)
    with own:
        await read_slowly_from_socket(own, served_socket)


async def read_slowly_from_socket(own: socket.socket, served_socket: socket.socket) -> None:
    async with serve_coordinator() as served:
        served_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        make_connection = cast(Any, served.listener)._create_connection
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(make_connection, served_socket)
        client = SlowClient(served, own)
        while not transport.get_write_buffer_size():
            await client.send_next_request()
            assert client.sent < REQUESTS_MAX, "the socket never became full"
        for _ in range(MORE):
            await client.send_next_request()
        for _ in range(PIECES):
            await client.read_bytes(PIECE_BYTES)
            await client.send_next_request()
        assert transport.get_write_buffer_size(), "the server sent all responses before the last request"
        while len(client.read) < client.sent:
            await client.read_bytes(PIECE_BYTES)
        assert [int.from_bytes(frame[:4], "big") for frame in client.read] == list(range(client.sent))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_slowly_read_responses_keep_their_order(run: Callable[[Any], None]) -> None:
    run(read_slowly())


async def test_requests_of_disconnected_clients_take_memory_until_they_are_dropped() -> None:
    async with serve_coordinator() as served:
        client = await connect_and_initialize(served)
        served.log.blocking = True
        request = request_frame(85, 1, 1, write_state_body())
        client.send(request)
        await served.wait_until(lambda: served.log.held)
        for count in range(2, 5):
            leaving = await served.connect()
            leaving.send(request)
            await served.wait_until(
                lambda count=count: served.listener.held_bytes == count * (len(request) - 4)
            )
            leaving.writer.close()
            await served.wait_until(lambda: served.listener.connection_count == 1)
        assert served.listener.held_bytes == 4 * (len(request) - 4)
        served.log.blocking = False
        served.log.release_appends()
        await client.read_frame()
        await served.wait_until(lambda: served.listener.held_bytes == 0)
