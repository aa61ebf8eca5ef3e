"""The HTTP server inside our own process: real sockets, no signals, an end when it is told to."""

import asyncio
import signal
import socket

import pytest

from coordinator.admin import HttpServer
from coordinator.config import HostPort
from coordinator.errors import ListenError
from tests.unit.admin.serving import admin, looped


async def ask(port: int, path: str) -> bytes:
    """Return the whole answer to a GET, with a connection of its own."""
    return await answers_to(
        port, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    )


async def answers_to(port: int, said: bytes) -> bytes:
    """Return all that is answered on a connection of its own, until the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    async with asyncio.timeout(60):
        answers = await reader.read()
    writer.close()
    return answers


@looped
async def test_it_serves_from_start_to_stop() -> None:
    async with admin() as coordinator:
        server = HttpServer(coordinator.app, HostPort("127.0.0.1", 0))
        await server.start()
        assert server.port != 0
        assert (await ask(server.port, "/readyz")).startswith(b"HTTP/1.1 200 OK\r\n")
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await ask(server.port, "/readyz")


@looped
async def test_an_encoded_slash_arrives_as_one_part() -> None:
    async with admin() as coordinator:
        server = HttpServer(coordinator.app, HostPort("127.0.0.1", 0))
        await server.start()
        answer = await ask(server.port, "/api/v1/groups/a%2Fb")
        await server.stop()
    assert b"group 'a/b' has no state here" in answer


@looped
async def test_it_leaves_signals_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with admin() as coordinator:
        server = HttpServer(coordinator.app, HostPort("127.0.0.1", 0))
        await server.start()
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        await server.stop()
    assert during == before


@looped
async def test_an_idle_client_does_not_keep_it_from_stopping() -> None:
    async with admin() as coordinator:
        server = HttpServer(coordinator.app, HostPort("127.0.0.1", 0))
        await server.start()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(60):
            await server.stop()
        writer.close()


@looped
async def test_the_head_of_an_answer_is_given_without_the_rest() -> None:
    async with admin() as coordinator:
        server = HttpServer(coordinator.app, HostPort("127.0.0.1", 0))
        await server.start()
        for path in ("/readyz", "/", "/metrics"):
            answer = await answers_to(
                server.port,
                b"HEAD %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode(),
            )
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.endswith(b"\r\n\r\n")
            assert answer.count(b"\r\n\r\n") == 1
        await server.stop()


@looped
async def test_the_head_of_an_answer_without_end_ends() -> None:
    """It is nobody who watches."""
    async with admin() as coordinator:
        live = coordinator.app.state.live
        server = HttpServer(coordinator.app, HostPort("127.0.0.1", 0), before_stop=live.end)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(60):
            writer.write(b"HEAD /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            after = await reader.read()
        writer.close()
        await server.stop()
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-type: text/event-stream" in head
    assert after.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"alive"' in after


@looped
async def test_who_takes_too_long_to_ask_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.admin.http_protocol._HEAD_WITHIN_S", 1.0)
    async with admin() as coordinator:
        server = HttpServer(coordinator.app, HostPort("127.0.0.1", 0))
        await server.start()
        whole = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
        for begun in (b"", b"GET /livez HTTP/1.1\r\nHo", whole + b"GET /livez HTTP/1.1\r\nHo"):
            answers = await answers_to(server.port, begun)
            assert answers.count(b"HTTP/1.1 200 OK") == begun.count(whole)
        await server.stop()


@looped
async def test_of_a_crowd_only_so_many_are_let_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("coordinator.open_files.HTTP_CONNECTIONS_MAX", 3)
    refused: list[int] = []
    async with admin() as coordinator:
        server = HttpServer(coordinator.app, HostPort("127.0.0.1", 0), refused=refused.append)
        await server.start()
        crowd = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        assert (await ask(server.port, "/readyz")).startswith(b"HTTP/1.1 200 OK\r\n")
        crowd.append(await asyncio.open_connection("127.0.0.1", server.port))
        for _ in range(2):
            answer = await answers_to(server.port, b"")
            assert answer == b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n"
        assert refused == [503, 503]
        (said,) = caplog.messages
        assert said == "http: there are as many connections as there may be"
        # Those that are in are served, and who leaves makes room.
        reader, writer = crowd.pop()
        writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()
        async with asyncio.timeout(60):
            answer = b""
            while not answer.startswith(b"HTTP/1.1 200 OK\r\n"):
                answer = await ask(server.port, "/livez")
        for _, writer in crowd:
            writer.close()
        await server.stop()


@looped
async def test_an_address_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with admin() as coordinator:
            server = HttpServer(coordinator.app, HostPort("127.0.0.1", taken.getsockname()[1]))
            with pytest.raises(ListenError, match=r"http=.* cannot be listened on: Address already in use"):
                await server.start()
            await server.stop()
