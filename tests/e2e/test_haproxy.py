"""deploy/haproxy/haproxy.cfg: what goes to the share coordinator, and what to the broker.

Both are played by plain sockets here: what HAProxy decides on is the first frame of a connection, and these
tests say it byte by byte.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from protocol.messages import request_header
from tests.kafka import HAProxy, free_ports

pytestmark = pytest.mark.broker

API_VERSIONS = 18
FETCH = 1


class Split:
    """An HAProxy between a broker and a coordinator that only listen."""

    def __init__(self, haproxy: HAProxy, broker: socket.socket, coordinator_port: int) -> None:
        self.haproxy = haproxy
        self.broker = broker
        self.coordinator_port = coordinator_port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.haproxy.port), timeout=10)


@pytest.fixture
def split(tmp_path: Path) -> Iterator[Split]:
    port, broker_port, coordinator_port = free_ports(3)
    haproxy = HAProxy(tmp_path, port=port, broker_port=broker_port, coordinator_port=coordinator_port)
    with ExitStack() as stack:
        broker = stack.enter_context(listening(broker_port))
        stack.callback(haproxy.kill)
        haproxy.start()
        yield Split(haproxy, broker, coordinator_port)


def listening(port: int) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port))
    listener.settimeout(10)
    return listener


def frame(client_id: str, api_key: int = API_VERSIONS) -> bytes:
    """A request with a body of a few bytes, as a broker opens a connection with."""
    header = request_header.RequestHeader(api_key, 4, 0, client_id)
    body = request_header.encode(header, 2) + b"\x0dapache-kafka\x064.4.0\x00"
    return struct.pack(">i", len(body)) + body


def received(listener: socket.socket, size: int) -> bytes:
    """Return the first `size` bytes of the first connection that says something.

    The one that says nothing is how we noticed that HAProxy listens.
    """
    content = b""
    while not content:
        connection, _ = listener.accept()
        with closing(connection):
            connection.settimeout(10)
            with connection.makefile("rb") as stream:
                content = stream.read(size)
    return content


def test_the_persister_is_led_to_the_coordinator(split: Split) -> None:
    first_frame = frame("Persister-client-1")
    with listening(split.coordinator_port) as coordinator, split.connect() as persister:
        persister.sendall(first_frame)
        assert received(coordinator, len(first_frame)) == first_frame


@pytest.mark.parametrize(
    ("client_id", "api_key"),
    [
        ("broker-1-fetcher-0", FETCH),
        ("broker-1-txn-marker-sender", API_VERSIONS),
        ("AddPartitionsManager-client-1", API_VERSIONS),
        ("NetworkPartitionMetadataClient-client-1", API_VERSIONS),
        ("ShareGroupDLQManager-client-1", API_VERSIONS),
        ("a-persister: Persister-client-1", API_VERSIONS),
    ],
)
def test_every_other_connection_is_led_to_the_broker(split: Split, client_id: str, api_key: int) -> None:
    first_frame = frame(client_id, api_key)
    with listening(split.coordinator_port), split.connect() as connection:
        connection.sendall(first_frame)
        assert received(split.broker, len(first_frame)) == first_frame


def test_a_first_frame_in_pieces_is_led_like_a_whole_one(split: Split) -> None:
    first_frame = frame("Persister-client-1")
    with listening(split.coordinator_port) as coordinator, split.connect() as persister:
        persister.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in (first_frame[:4], first_frame[4:20], first_frame[20:30], first_frame[30:]):
            persister.sendall(piece)
        assert received(coordinator, len(first_frame)) == first_frame


def test_the_persister_waits_for_a_coordinator_that_restarts(split: Split) -> None:
    """Nobody listens when the persister connects; what it said then reaches the one who comes."""
    first_frame = frame("Persister-client-1")
    with split.connect() as persister:
        persister.sendall(first_frame)
        with listening(split.coordinator_port) as coordinator:
            assert received(coordinator, len(first_frame)) == first_frame
