"""The embedded HTTP server on real sockets: start, stop, timeouts, limits and pipelining."""

import asyncio
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from coordinator.config import HostPort
from coordinator.errors import ListenError
from coordinator.operate.admin import HttpServer
from tests.unit.admin.admin_server import run_admin


async def send_get(port: int, path: str) -> bytes:
    """Send a GET request on a new connection; return all bytes of the response."""
    return await send_bytes(
        port, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    )


async def send_bytes(port: int, said: bytes) -> bytes:
    """Send the bytes on a new connection; return all received bytes until the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    async with asyncio.timeout(60):
        answers = await reader.read()
    writer.close()
    return answers


@asynccontextmanager
async def run_server(
    refused: Callable[[int], None] = lambda status: None,
) -> AsyncIterator[HttpServer]:
    """Serve the admin application on a free port."""
    async with run_admin() as coordinator:
        server = HttpServer(coordinator.app, HostPort("127.0.0.1", 0), refused=refused)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


async def test_server_serves_from_start_to_stop() -> None:
    async with run_server() as server:
        assert server.port != 0
        assert (await send_get(server.port, "/readyz")).startswith(b"HTTP/1.1 200 OK\r\n")
    with pytest.raises(ConnectionRefusedError):
        await send_get(server.port, "/readyz")


async def test_http_server_does_not_replace_signal_handlers() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with run_server():
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert during == before


async def test_idle_connection_does_not_delay_stop() -> None:
    async with run_server() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(60):
            await server.stop()
        writer.close()


async def test_head_request_returns_headers_without_body() -> None:
    async with run_server() as server:
        for path in ("/readyz", "/", "/metrics"):
            answer = await send_bytes(
                server.port,
                b"HEAD %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode(),
            )
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.endswith(b"\r\n\r\n")
            assert answer.count(b"\r\n\r\n") == 1


@pytest.mark.slow
async def test_incomplete_request_head_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.operate.admin.http_protocol._HEAD_TIMEOUT_S", 1.0)
    monkeypatch.setattr("coordinator.operate.admin.http_server._HANDSHAKE_S", 1.0)
    whole, part = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /livez HTTP/1.1\r\nHo"
    async with run_server() as server:
        answers = await asyncio.gather(
            *(send_bytes(server.port, begun) for begun in (b"", part, whole + part))
        )
        assert [each.count(b"HTTP/1.1 200 OK") for each in answers] == [0, 0, 1]


@pytest.mark.slow
async def test_probe_is_answered_when_silent_clients_hold_all_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("coordinator.process.open_files.HTTP_CONNECTIONS_MAX", 3)
    refused: list[int] = []
    begun = (
        b"",
        b"GET /livez HTTP/1.1\r\nHo",
        # The server answers this GET request, although the request body is incomplete.
        b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
    )
    async with run_server(refused.append) as server:
        crowd = []
        for said in begun:
            crowd.append(await asyncio.open_connection("127.0.0.1", server.port))
            crowd[-1][1].write(said)
        assert await crowd[-1][0].readuntil(b"\r\n\r\n")
        for _ in range(3):
            assert (await send_get(server.port, "/readyz")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert refused[:1] == [503]
        assert caplog.messages[0].startswith("The HTTP server has reached its connection limit")
        # The server closed the oldest connection for the probe.
        assert await crowd[0][0].read() == b""
        for _, writer in crowd:
            writer.close()


@pytest.mark.slow
async def test_long_pipeline_is_refused_with_429_and_leaves_no_objects() -> None:
    refused: list[int] = []
    async with run_server(refused.append) as server:
        gc.collect()
        gc.disable()
        try:
            with suppress(ConnectionError):
                await send_bytes(server.port, 5_000 * b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert refused == [429]
            # Reference counting frees the requests of the connection; no garbage collection is needed.
            await asyncio.sleep(0)
            left = [each for each in gc.get_objects() if isinstance(each, RequestResponseCycle)]
            assert len(left) <= 1
        finally:
            gc.enable()


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with run_server() as server:
        asked = b"".join(
            b"GET /%b HTTP/1.1\r\nHost: localhost\r\n%b\r\n"
            % (path, b"" if more else b"Connection: close\r\n")
            for path, more in ((b"livez", True), (b"nowhere", True), (b"livez", False))
        )
        answers = await send_bytes(server.port, asked)
        assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


async def test_incomplete_request_body_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.operate.admin.http_protocol._BODY_WITHIN_S", 0.2)
    async with run_server() as server:
        for request in (
            b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
            b"POST /api/v1/hand-overs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request)
            async with asyncio.timeout(60):
                try:
                    while await reader.read(1 << 16):
                        pass
                except ConnectionError:
                    pass
            writer.close()


async def test_unread_response_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.operate.admin.http_protocol._UNREAD_WITHIN_S", 0.2)

    async def send_large_response(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(16 << 20)})

    server = HttpServer(send_large_response, HostPort("127.0.0.1", 0))
    await server.start()
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    connections = server._server.server_state.connections
    async with asyncio.timeout(60):
        while not connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    client.close()
    await server.stop()


async def test_non_http_requests_are_counted_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    refused: list[int] = []
    async with run_server(refused.append) as server:
        for _ in range(3):
            answer = await send_bytes(server.port, b"\x00\x01 nothing\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert refused == [400] * 3
    assert caplog.messages == []


async def test_address_in_use_raises_listen_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with run_admin() as coordinator:
            server = HttpServer(coordinator.app, HostPort("127.0.0.1", taken.getsockname()[1]))
            with pytest.raises(ListenError, match=r"http=.* cannot be listened on: Address already in use"):
                await server.start()
            await server.stop()
