"""Run uvicorn on the coordinator's event loop, and reload token and certificate files when they change."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from coordinator.config import HostPort
from coordinator.errors import ListenError
from coordinator.operate.admin.access_control import AccessControl
from coordinator.operate.admin.application import create_app
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.http_protocol import Connection
from coordinator.process.clock import SystemClock
from coordinator.process.fair_queue import FairQueue
from coordinator.process.open_files import http_connection_limit
from coordinator.security.rate_limited_log import RateLimitedLog
from coordinator.security.tls import ServerTls
from coordinator.security.tls_acceptor import TOO_MANY_CONNECTIONS, FairAcceptor

_logger = logging.getLogger(__name__)

# Interval of the checks for changed certificate and token files.
_FILE_CHECK_INTERVAL_S = 2.0


class HttpService:
    """Serves the application at `config.http`.

    When the service stops, it also closes the connections to the Kafka cluster.
    """

    def __init__(self, view: CoordinatorView) -> None:
        """Create the server. Raises ConfigError for invalid files."""
        self._view = view
        config = view.config
        self._access = AccessControl(config)
        self._tls = ServerTls(config.http_ssl, "http") if config.http_uses_tls else None
        app = create_app(view, self._access)
        self._server = HttpServer(app, config.http, tls=self._tls, refused=view.metrics.count_http_refusal)
        self._clock = SystemClock()
        self._watching: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{self._view.config.http._replace(port=self.port)}"

    async def start(self) -> None:
        """Listen. Raises ListenError if the address cannot be bound."""
        if (risk := self._view.config.http_exposure_warning(self._view.config.http)) is not None:
            _logger.warning("%s", risk)
        await self._server.start()
        self._watching.append(asyncio.create_task(self._run_periodic_checks(), name="http checks"))
        if self._tls is not None:
            watching = self._tls.watch(_FILE_CHECK_INTERVAL_S)
            self._watching.append(asyncio.create_task(watching, name="certificates of http"))

    async def stop(self) -> None:
        """Wait briefly for responses in progress, then close all connections. Harmless before `start`."""
        for task in self._watching:
            task.cancel()
        if self._view.history is not None:
            self._view.history.close()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self._server.stop()
        await self._view.cluster.close()

    async def _run_periodic_checks(self) -> None:
        while True:
            await asyncio.sleep(_FILE_CHECK_INTERVAL_S)
            self._server.close_untrusted_connections(self._clock.now_ms())
            self._access.reload_if_changed()


_BACKLOG = 1_024
_HANDSHAKE_S = 10.0
_IDLE_CONNECTION_S = 10
_STOP_TIMEOUT_S = 2


class HttpServer:
    """Serves an application on an address, between `start` and `stop`, on the event loop of `start`."""

    def __init__(
        self,
        app: ASGIApp,
        address: HostPort,
        *,
        tls: ServerTls | None = None,
        refused: Callable[[int], None] = lambda status: None,
    ) -> None:
        """Create a server; if `tls` is None, it uses plaintext.

        `refused` is called with the HTTP status of each connection or request that is refused before the
        application handles it.
        """
        self._refused = refused
        self._address = address
        self._server = _EmbeddedServer(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                # uvicorn accepts any callable here, but its type annotation requires a class.
                http=self._make_connection,  # type: ignore[arg-type]
                server_header=False,
                # Any client can send these headers, so they must not determine the client's address.
                proxy_headers=False,
                timeout_keep_alive=_IDLE_CONNECTION_S,
                timeout_graceful_shutdown=_STOP_TIMEOUT_S,
            )
        )
        self._tls = tls
        self._turns = FairQueue()
        self._acceptor: FairAcceptor | None = None
        self._rate_limited_log = RateLimitedLog()
        self._task: asyncio.Task[None] | None = None
        self.port = address.port

    async def start(self) -> None:
        """Listen; return when connections are accepted. After the start, `port` is the bound port.

        Raises ListenError if the address cannot be bound.
        """
        tls = self._tls
        acceptor = FairAcceptor(
            (lambda: tls.context) if tls is not None else None,
            _HANDSHAKE_S,
            lambda: http_connection_limit() - len(self._list_open_connections()),
            lambda: (each for each in self._list_open_connections() if each.is_waiting_for_client),
            self._server.make_protocol,
            self._record_refused_connection,
            self._turns,
        )
        # Bind before uvicorn starts, because uvicorn ends the process if binding fails.
        try:
            await acceptor.start(self._address.host, self._address.port, _BACKLOG)
        except (OSError, OverflowError) as error:
            raise ListenError("http", str(self._address), error) from None
        self._acceptor, self.port = acceptor, acceptor.port
        self._task = asyncio.create_task(self._server.serve(sockets=[]), name="http")
        await self._server.up.wait()

    def _list_open_connections(self) -> list[Connection]:
        connections = cast(set[Connection], self._server.server_state.connections)
        return [each for each in connections if not each.transport.is_closing()]

    def _make_connection(self, *uvicorn_arguments: Any, **more: Any) -> Connection:
        return Connection(
            *uvicorn_arguments,
            on_rejected=self._record_refused_request,
            turns=self._turns,
            tls=self._tls,
            **more,
        )

    def close_untrusted_connections(self, now_ms: int) -> None:
        for connection in list(self._server.server_state.connections):
            trust = cast(Connection, connection).trust
            if trust is not None and not trust.is_valid(now_ms):
                connection.transport.abort()

    def _record_refused_request(self, status: HTTPStatus) -> None:
        self._refused(status)
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            self._rate_limited_log.warn(
                "The HTTP server has reached its connection limit. It closes the oldest idle connections."
            )

    def _record_refused_connection(self, reason: str, sentence: str, peer: str) -> None:
        _logger.debug("An HTTP connection was rejected", extra={"reason": reason, "peer": peer})
        if reason == TOO_MANY_CONNECTIONS:
            self._record_refused_request(HTTPStatus.SERVICE_UNAVAILABLE)
        if sentence:
            self._rate_limited_log.warn(f"http: {sentence}", peer=peer)

    async def stop(self) -> None:
        """Wait briefly for responses in progress, then close all connections. Harmless before `start`."""
        if self._task is None:
            return
        if self._acceptor is not None:
            self._acceptor.stop()
        self._server.should_exit = True
        await self._task
        self._task = None


class _EmbeddedServer(uvicorn.Server):
    """A uvicorn server without signal handlers. The event `up` is set after startup."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    def make_protocol(self, _: asyncio.Transport) -> asyncio.Protocol | None:
        """Return the protocol of an accepted connection, or None before startup is complete."""
        if not self.up.is_set():
            return None
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(self.config, self.server_state, self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.up.set()
