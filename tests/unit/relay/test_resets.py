"""After a TCP reset of one connection, the relay delivers the received bytes and ends the forwarding."""

import asyncio
import socket
from struct import pack

import pytest
import uvloop

from coordinator.serve.relay import forwarding
from coordinator.serve.relay.forwarding import forward_both_ways
from coordinator.serve.relay.streams import PlainStream
from tests.unit.relay.fake_peers import HERE, wait_until

pytestmark = pytest.mark.run_with(function=uvloop.run)

SAID = bytes(range(256)) * 512


def connect_sockets(buffer_bytes: int) -> tuple[socket.socket, socket.socket]:
    """Return two ends of a TCP connection with buffers of about the given size."""
    with socket.create_server((HERE, 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        near = socket.socket()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        near.connect(listening.getsockname())
        far, _ = listening.accept()
    near.setblocking(False)
    far.setblocking(False)
    return near, far


def reset_connection(broken: socket.socket) -> None:
    broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
    broken.close()


@pytest.mark.parametrize("piece_bytes", [100, 256 << 10], ids=["in pieces", "at once"])
@pytest.mark.parametrize("reads_slowly", [False, True], ids=["quick", "slow"])
async def test_bytes_before_a_reset_are_delivered(
    reads_slowly: bool, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "_shared", memoryview(bytearray(piece_bytes)))
    loop = asyncio.get_running_loop()
    peer, from_peer = connect_sockets(2 * len(SAID))
    to_broker, broker = connect_sockets(4 << 10 if reads_slowly else 2 * len(SAID))
    assert peer.send(SAID) == len(SAID)
    reset_connection(peer)
    moved = 0

    def count_bytes(there: int, back: int) -> None:
        nonlocal moved
        moved += there

    joined = asyncio.ensure_future(
        forward_both_ways(PlainStream(from_peer), PlainStream(to_broker), count_bytes, 30.0)
    )
    with from_peer, to_broker, broker:
        if reads_slowly:
            await wait_until(lambda: moved)
        arrived = b""
        async with asyncio.timeout(20):
            while len(arrived) < len(SAID):
                arrived += await loop.sock_recv(broker, len(SAID))
            with pytest.raises(ConnectionResetError):
                await joined
    assert arrived == SAID
