"""Serve health and metrics over a minimal HTTP/1.1 server.

Importing uvicorn and FastAPI would take longer than the rest of the relay's start.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

from coordinator.config import HostPort
from coordinator.errors import ListenError
from coordinator.process.fair_queue import client_network
from coordinator.security.connection_eviction import evict_oldest

_REQUEST_BYTES_MAX = 8 << 10
_REQUEST_S = 5.0
CONNECTIONS_MAX = 32

Answer = tuple[HTTPStatus, str]


class _Connection(NamedTuple):
    """A connection whose response has not been sent; `evict` closes it."""

    network: str
    last_active_s: float
    evict: Callable[[], None]


class HealthServer:
    """Answers GET and HEAD for a few paths, one request per connection.

    At the limit of connections, the connections that have waited longest for a request are closed.
    """

    def __init__(self, answers: dict[str, Callable[[], Answer]]) -> None:
        """`answers` maps each path to a function that returns status and text."""
        self._answers = answers
        self._server: asyncio.Server | None = None
        # Open connections by task, oldest first.
        self._connections: dict[asyncio.Task[None] | None, _Connection] = {}

    async def start(self, address: HostPort) -> None:
        """Bind and serve. Raises ListenError."""
        try:
            self._server = await asyncio.start_server(
                self._serve_request, address.host, address.port, limit=_REQUEST_BYTES_MAX
            )
        except (OSError, OverflowError) as error:
            raise ListenError("relay.http", str(address), error) from None

    @property
    def port(self) -> int:
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stop serving. Has no effect if the server was not started."""
        if self._server is not None:
            self._server.close()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()

        def evict() -> None:
            self._connections.pop(task)
            writer.transport.abort()

        if len(self._connections) >= CONNECTIONS_MAX:
            evict_oldest(self._connections.values())
        now_s = asyncio.get_running_loop().time()
        self._connections[task] = _Connection(client_network(writer.transport), now_s, evict)
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._build_response(head))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # The request is not HTTP, too long, or too slow.
            pass
        finally:
            self._connections.pop(task, None)
            writer.close()

    def _build_response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
        if method not in (b"GET", b"HEAD"):
            status, text = HTTPStatus.METHOD_NOT_ALLOWED, "only GET\n"
        elif (answer := self._answers.get(path)) is None:
            status, text = HTTPStatus.NOT_FOUND, "no such path\n"
        else:
            status, text = answer()
        body = text.encode()
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Content-Type: text/plain; version=0.0.4; charset=utf-8",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if method == b"HEAD" else body)
