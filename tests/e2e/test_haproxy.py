"""Test that deploy/haproxy/haproxy.cfg routes connections to the share coordinator or to the broker.

Plain sockets imitate the coordinator and the broker. HAProxy decides by the first frame of a connection, so
the tests send exact bytes.
"""

import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from protocol.messages import request_header
from tests.kafka import HAProxy, free_ports, wait_until
from tests.kafka.coordinator import CoordinatorProcess

pytestmark = pytest.mark.broker

API_VERSIONS = 18
FETCH = 1


class HAProxyWithSockets:
    """An HAProxy in front of sockets that imitate a broker and a coordinator."""

    def __init__(
        self, haproxy: HAProxy, broker: socket.socket, coordinator_port: int, other_port: int
    ) -> None:
        self.haproxy = haproxy
        self.broker = broker
        self.coordinator_port = coordinator_port
        self.other_port = other_port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.haproxy.port), timeout=120)


@pytest.fixture
def routing_haproxy(tmp_path: Path) -> Iterator[HAProxyWithSockets]:
    with start_haproxy(tmp_path, with_another=False) as split:
        yield split


@pytest.fixture
def routing_haproxy_with_other_coordinators(tmp_path: Path) -> Iterator[HAProxyWithSockets]:
    """An HAProxy whose configuration has two further coordinators, of which the first never runs."""
    with start_haproxy(tmp_path, with_another=True) as split:
        yield split


@contextmanager
def start_haproxy(directory: Path, *, with_another: bool) -> Iterator[HAProxyWithSockets]:
    port, broker_port, coordinator_port, other_port, nobody = free_ports(5)
    haproxy = HAProxy(
        directory,
        port=port,
        broker_port=broker_port,
        coordinator_port=coordinator_port,
        other_coordinator_ports=(nobody, other_port) if with_another else (),
    )
    with ExitStack() as stack:
        broker = stack.enter_context(open_listener(broker_port))
        stack.callback(haproxy.kill)
        haproxy.start()
        yield HAProxyWithSockets(haproxy, broker, coordinator_port, other_port)


def open_listener(port: int) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port))
    listener.settimeout(60)
    return listener


def make_frame(client_id: str, api_key: int = API_VERSIONS) -> bytes:
    """Return a request frame, by default ApiVersions, which a broker sends first on a connection."""
    header = request_header.RequestHeader(api_key, 4, 0, client_id)
    body = request_header.encode(header, 2) + b"\x0dapache-kafka\x064.4.0\x00"
    return struct.pack(">i", len(body)) + body


def receive_first_bytes(listener: socket.socket, size: int) -> bytes:
    """Return the first `size` bytes of the first connection that sends data.

    Connections without data are the readiness probe of the test and the health checks of HAProxy.
    """
    content = b""
    while not content:
        connection, _ = listener.accept()
        with closing(connection):
            connection.settimeout(60)
            with connection.makefile("rb") as stream:
                content = stream.read(size)
    return content


@pytest.mark.parametrize("cuts", [(), (4, 20, 30)], ids=["whole", "fragmented"])
def test_persister_is_routed_to_coordinator(
    routing_haproxy: HAProxyWithSockets, cuts: tuple[int, ...]
) -> None:
    first_frame = make_frame("Persister-client-1")
    with (
        open_listener(routing_haproxy.coordinator_port) as coordinator,
        routing_haproxy.connect() as persister,
    ):
        persister.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin, end in pairwise((0, *cuts, len(first_frame))):
            persister.sendall(first_frame[begin:end])
        assert receive_first_bytes(coordinator, len(first_frame)) == first_frame


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
def test_other_connections_are_routed_to_broker(
    routing_haproxy: HAProxyWithSockets, client_id: str, api_key: int
) -> None:
    first_frame = make_frame(client_id, api_key)
    with open_listener(routing_haproxy.coordinator_port), routing_haproxy.connect() as connection:
        connection.sendall(first_frame)
        assert receive_first_bytes(routing_haproxy.broker, len(first_frame)) == first_frame


def test_connection_without_a_whole_first_frame_is_closed_and_not_routed(
    routing_haproxy: HAProxyWithSockets,
) -> None:
    """A slow persister's connection must not reach the broker, whose own coordinator would store writes."""
    with open_listener(routing_haproxy.coordinator_port), routing_haproxy.connect() as slow:
        slow.sendall(make_frame("Persister-client-1")[:30])
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""
    first_frame = make_frame("broker-1-fetcher-0", FETCH)
    with routing_haproxy.connect() as other:
        other.sendall(first_frame)
        assert receive_first_bytes(routing_haproxy.broker, len(first_frame)) == first_frame, (
            "the broker received the slow frame"
        )


def test_persister_waits_for_restarting_coordinator(routing_haproxy: HAProxyWithSockets) -> None:
    """No process listens when the persister connects; the started coordinator receives its first bytes."""
    first_frame = make_frame("Persister-client-1")
    with routing_haproxy.connect() as persister:
        persister.sendall(first_frame)
        with open_listener(routing_haproxy.coordinator_port) as coordinator:
            assert receive_first_bytes(coordinator, len(first_frame)) == first_frame


# The log line of a connection to another coordinator, with its number of retries. A retry takes a second, and
# a connection to a single coordinator is retried 25 times.
LED_ELSEWHERE = re.compile(r" any_coordinator/other-2 .* \d+/\d+/\d+/\d+/\+?(\d+) \d+/\d+$", re.M)
TRIED_AGAIN_MAX = 2


def test_other_coordinator_is_used_while_own_coordinator_is_down(
    routing_haproxy_with_other_coordinators: HAProxyWithSockets,
) -> None:
    split, first_frame = routing_haproxy_with_other_coordinators, make_frame("Persister-client-1")
    with open_listener(split.other_port) as other:
        for _ in range(3):
            with split.connect() as persister:
                persister.sendall(first_frame)
                assert receive_first_bytes(other, len(first_frame)) == first_frame
        # Other connections between brokers are not affected.
        with split.connect() as connection:
            fetch = make_frame("broker-1-fetcher-0", FETCH)
            connection.sendall(fetch)
            assert receive_first_bytes(split.broker, len(fetch)) == fetch

    def count_retries() -> list[str] | None:
        """Return the number of retries of each of the three connections when all have ended."""
        tries = LED_ELSEWHERE.findall(split.haproxy.process.log.read_text())
        return tries if len(tries) == 3 else None

    tries = wait_until(count_retries, seconds=120, what="HAProxy logs the connections")
    assert max(map(int, tries)) <= TRIED_AGAIN_MAX


def test_own_coordinator_is_preferred_after_its_restart(
    routing_haproxy_with_other_coordinators: HAProxyWithSockets,
) -> None:
    split, first_frame = routing_haproxy_with_other_coordinators, make_frame("Persister-client-1")
    with open_listener(split.other_port) as other, split.connect() as persister:
        persister.sendall(first_frame)
        assert receive_first_bytes(other, len(first_frame)) == first_frame
        with open_listener(split.coordinator_port) as own:
            own.settimeout(0.2)

            def is_routed_to_own_coordinator() -> bool:
                with split.connect() as another:
                    another.sendall(first_frame)
                    try:
                        return receive_first_bytes(own, len(first_frame)) == first_frame
                    except TimeoutError:
                        return False

            wait_until(
                is_routed_to_own_coordinator, seconds=120, what="HAProxy marks the own coordinator as UP"
            )


def test_persister_waits_for_own_coordinator_if_no_other_runs(
    routing_haproxy_with_other_coordinators: HAProxyWithSockets,
) -> None:
    split, first_frame = routing_haproxy_with_other_coordinators, make_frame("Persister-client-1")

    def has_marked_all_coordinators_down() -> bool:
        return "backend any_coordinator has no server available" in split.haproxy.process.log_tail()

    wait_until(has_marked_all_coordinators_down, seconds=120, what="HAProxy has checked all coordinators")
    with split.connect() as persister:
        persister.sendall(first_frame)
        with open_listener(split.coordinator_port) as coordinator:
            assert receive_first_bytes(coordinator, len(first_frame)) == first_frame


def test_health_checks_cause_no_warnings_in_coordinator(
    routing_haproxy_with_other_coordinators: HAProxyWithSockets, tmp_path: Path
) -> None:
    split = routing_haproxy_with_other_coordinators
    (http_port,) = free_ports(1)
    other = CoordinatorProcess(tmp_path, port=split.other_port, http_port=http_port, log="memory")
    # HAProxy logs UP only for a server that it has marked DOWN before.
    wait_until(
        lambda: "any_coordinator/other-2 is DOWN" in split.haproxy.process.log_tail(),
        seconds=120,
        what="HAProxy marks the other coordinator as DOWN",
    )
    other.start()
    try:
        wait_until(
            lambda: "any_coordinator/other-2 is UP" in split.haproxy.process.log_tail(),
            seconds=120,
            what="HAProxy marks the other coordinator as UP",
        )
        with split.connect() as persister:
            persister.sendall(make_frame("Persister-client-1"))
            # The size and correlation id of the ApiVersions response.
            with persister.makefile("rb") as answer:
                assert answer.read(8)[4:] == bytes(4)
    finally:
        other.stop()
    log = other.process.log.read_text()
    assert not any(level in log for level in ("WARNING", "ERROR")), log
