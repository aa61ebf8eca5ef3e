"""uvicorn inside our own event loop and our own life: it takes no signals and ends when it is told to."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from coordinator.admin.http_protocol import Connection
from coordinator.config import HostPort
from coordinator.errors import ListenError

_IDLE_CONNECTION_S = 10
_STOP_TIMEOUT_S = 2


class HttpServer:
    """Serves an application on an address, from `start` to `stop`, on the event loop that `start` runs on."""

    def __init__(
        self,
        app: ASGIApp,
        address: HostPort,
        *,
        tls: ssl.SSLContext | None = None,
        before_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; `before_stop` is told to end the answers that would not end by themselves."""
        self._before_stop = before_stop
        self._address = address
        self._server = _EmbeddedServer(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                http=Connection,
                server_header=False,
                # A header that anybody can send would tell who asks.
                proxy_headers=False,
                ssl_context_factory=None if tls is None else (lambda *_: tls),
                timeout_keep_alive=_IDLE_CONNECTION_S,
                timeout_graceful_shutdown=_STOP_TIMEOUT_S,
            )
        )
        self._task: asyncio.Task[None] | None = None
        self.port = address.port

    async def start(self) -> None:
        """Listen; return when connections are accepted. `port` is then the one that was bound.

        Raises ListenError if the address cannot be listened on.
        """
        # Bound by us, because uvicorn ends the process when it cannot bind.
        family = socket.AF_INET6 if ":" in self._address.host else socket.AF_INET
        try:
            listening = socket.create_server(tuple(self._address), family=family, backlog=128)
        except (OSError, OverflowError) as error:
            raise ListenError("http", str(self._address), error) from None
        self.port = listening.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]), name="http")
        await self._server.up.wait()

    async def stop(self) -> None:
        """Finish the answers under way, for a moment, then close everything; harmless if never started."""
        if self._task is None:
            return
        self._before_stop()
        self._server.should_exit = True
        await self._task
        self._task = None


class _EmbeddedServer(uvicorn.Server):
    """uvicorn that leaves signals to whoever runs the process, and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.up.set()
