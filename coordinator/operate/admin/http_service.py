"""Start and stop the HTTP server with its tokens, certificates and event stream."""

import asyncio
import logging

from coordinator.config import Config
from coordinator.metrics import Metrics
from coordinator.observe.signals import SignalMonitor
from coordinator.operate.admin.access_control import AccessControl
from coordinator.operate.admin.application import create_app
from coordinator.operate.admin.cluster_info import TopicQueries
from coordinator.operate.admin.coordinator_view import HandOver, hand_over_unavailable
from coordinator.operate.admin.http_server import HttpServer
from coordinator.operate.admin.owner_directory import OwnerDirectory
from coordinator.operate.expiry import Expiry
from coordinator.operate.history import HistoryProcess
from coordinator.process.clock import SystemClock
from coordinator.security.tls import make_server_tls
from coordinator.serve.state_view import StateView

_logger = logging.getLogger(__name__)

# Interval of the checks for changed certificate and token files.
_FILE_CHECK_INTERVAL_S = 2.0


class HttpService:
    """Serves the application at `config.http`. Pass assignments to `owners`.

    When it stops, it also closes `topics`, the connections to the users' cluster.
    """

    def __init__(
        self,
        runtime: StateView,
        metrics: Metrics,
        config: Config,
        topics: TopicQueries | None,
        *,
        hand_over: HandOver = hand_over_unavailable,
        expiry: Expiry | None = None,
        signals: SignalMonitor | None = None,
        history: HistoryProcess | None = None,
    ) -> None:
        """Create the server; `hand_over` requests a hand-over. Raises ConfigError for invalid files."""
        self.owners = OwnerDirectory()
        self._topics = topics
        self._history = history
        self._access = AccessControl(config)
        self._tls = make_server_tls(config, "http") if config.http_uses_tls else None
        app = create_app(
            runtime,
            metrics,
            config,
            owners=self.owners,
            topics=topics,
            access=self._access,
            hand_over=hand_over,
            expiry=expiry,
            signals=signals,
            history=history,
        )
        self._event_stream = app.state.event_stream
        self._server = HttpServer(
            app,
            config.http,
            tls=self._tls,
            before_stop=self._event_stream.end,
            refused=metrics.http_refused,
        )
        self._address = config.http
        self._exposure_warning = config.http_exposure_warning(config.http)
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
        return f"{scheme}://{self._address._replace(port=self.port)}"

    async def start(self) -> None:
        """Listen. Raises ListenError if the address cannot be bound."""
        if self._exposure_warning is not None:
            _logger.warning("%s", self._exposure_warning)
        await self._server.start()
        self._watching.append(asyncio.create_task(self._watch_tokens(), name="tokens"))
        if self._tls is not None:
            watching = self._tls.watch(_FILE_CHECK_INTERVAL_S)
            self._watching.append(asyncio.create_task(watching, name="certificates of http"))

    async def stop(self) -> None:
        """Wait briefly for responses in progress, then close all connections. Harmless before `start`."""
        for task in self._watching:
            task.cancel()
        if self._history is not None:
            self._history.close()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self._server.stop()
        if self._topics is not None:
            await self._topics.close()

    async def _watch_tokens(self) -> None:
        while True:
            await asyncio.sleep(_FILE_CHECK_INTERVAL_S)
            self._server.close_untrusted_connections(self._clock.now_ms())
            if self._access.reload_if_changed():
                # Subscribers reconnect and authenticate again.
                self._event_stream.restart_streams()
