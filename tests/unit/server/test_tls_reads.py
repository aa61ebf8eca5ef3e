"""TLS connections: when a handshake begins, which one is evicted, and the order of large requests."""

import asyncio
import socket
import ssl
from collections.abc import Callable

import pytest

from coordinator.security.receive_buffer import UNTRUSTED_BYTES
from coordinator.security.tls import ServerTls
from coordinator.serve.server import ServerLimits
from protocol.messages.find_coordinator import FindCoordinatorRequest, encode_request
from tests.unit.server.sasl_clients import FIND_BODY, receive_buffer_bytes
from tests.unit.server.test_tls_port import TlsListener, tls_listener
from tests.unit.server.wire import request_frame

__all__ = ["tls_listener"]


@pytest.mark.run_with(fixture="tls_listener")
async def test_handshake_begins_when_the_client_hello_is_complete(
    tls_listener: TlsListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[ServerTls] = []
    make_context: Callable[[ServerTls], ssl.SSLContext] = vars(ServerTls)["context"].fget

    def count_handshakes(tls: ServerTls) -> ssl.SSLContext:
        begun.append(tls)
        return make_context(tls)

    monkeypatch.setattr(ServerTls, "context", property(count_handshakes))
    broker = tls_listener.authority.issue_certificate("broker-1")
    async with tls_listener.serve() as served:
        _, incomplete = await served.connect(), await served.connect()
        incomplete.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        await incomplete.writer.drain()
        assert await tls_listener.request_error_code(served, broker) == 0
        assert len(begun) == 1
        incomplete.send(bytes(0x200))
        await incomplete.wait_until_closed()
        assert len(begun) == 2


@pytest.mark.run_with(fixture="tls_listener")
async def test_requests_larger_than_the_read_buffer_keep_their_order(tls_listener: TlsListener) -> None:
    broker = tls_listener.authority.issue_certificate("broker-1")
    large = encode_request(FindCoordinatorRequest(key_type=2, coordinator_keys=["abcdefghij"] * 4_000), 6)
    async with tls_listener.serve() as served:
        client = await served.connect(tls_listener.make_client_context(broker))
        for number in range(200):
            client.send(request_frame(10, 6, number, FIND_BODY))
        client.send(request_frame(10, 6, 200, large))
        client.send(request_frame(10, 6, 201, FIND_BODY))
        answers = [await client.read_frame() for _ in range(202)]
        assert [number for number, _ in answers] == list(range(202))
        assert len(answers[200][1]) > len(large)


@pytest.mark.run_with(fixture="tls_listener")
async def test_first_of_several_connections_accepted_at_the_same_time_is_closed(
    tls_listener: TlsListener,
) -> None:
    """The clock of uvloop does not advance while several connections are accepted."""
    async with tls_listener.serve(limits=ServerLimits(connections_max=12)) as one:
        address = ("127.0.0.1", one.port)
        for _ in range(10):
            clients = [socket.create_connection(address) for _ in range(13)]
            clients[0].settimeout(5)
            assert await asyncio.to_thread(clients[0].recv, 1) == b""
            for client in clients:
                client.close()
            await one.wait_until(lambda: not one.listener._acceptor.pending)


@pytest.mark.run_with(fixture="tls_listener")
async def test_connections_keep_the_order_of_acceptance(tls_listener: TlsListener) -> None:
    """The order decides which of several equally old connections is closed at the connection limit."""
    context = tls_listener.make_client_context(tls_listener.authority.issue_certificate("broker-1"))
    async with tls_listener.serve() as served:
        clients = [await served.connect(context) for _ in range(20)]
        await served.wait_until(lambda: len(served.listener._connections) == len(clients))
        ports = [client.writer.get_extra_info("sockname")[1] for client in clients]
        assert [int(each.peer.rpartition(":")[2]) for each in served.listener._connections] == ports
        assert all(receive_buffer_bytes(each) > 2 * UNTRUSTED_BYTES for each in served.listener._connections)
