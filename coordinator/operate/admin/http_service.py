"""Start and stop the HTTP server with its tokens and certificates."""

import asyncio
import logging

from coordinator.operate.admin.access_control import AccessControl
from coordinator.operate.admin.application import create_app
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.http_server import HttpServer
from coordinator.process.clock import SystemClock
from coordinator.security.tls import ServerTls

_logger = logging.getLogger(__name__)

# Interval of the checks for changed certificate and token files.
_FILE_CHECK_INTERVAL_S = 2.0


class HttpService:
    """Serves the application at `config.http`.

    When it stops, it also closes the connections to the users' cluster.
    """

    def __init__(self, view: CoordinatorView) -> None:
        """Create the server. Raises ConfigError for invalid files."""
        self._view = view
        config = view.config
        self._access = AccessControl(config)
        self._tls = ServerTls(config.http_ssl, "http") if config.http_uses_tls else None
        app = create_app(view, self._access)
        self._server = HttpServer(app, config.http, tls=self._tls, refused=view.metrics.http_refused)
        self._clock = SystemClock()
        self._watching: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """The bound port, after the start."""
        return self._server.port

    @property
    def url(self) -> str:
        """The URL of the server, after the start."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{self._view.config.http._replace(port=self.port)}"

    async def start(self) -> None:
        """Listen. Raises ListenError if the address cannot be bound."""
        if (risk := self._view.config.http_exposure_warning(self._view.config.http)) is not None:
            _logger.warning("%s", risk)
        await self._server.start()
        self._watching.append(asyncio.create_task(self._watch_tokens(), name="tokens"))
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

    async def _watch_tokens(self) -> None:
        while True:
            await asyncio.sleep(_FILE_CHECK_INTERVAL_S)
            self._server.close_untrusted_connections(self._clock.now_ms())
            self._access.reload_if_changed()
