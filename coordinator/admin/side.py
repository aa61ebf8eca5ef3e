"""The HTTP side as a whole, from start to stop."""

import asyncio
import logging

from coordinator.admin.access import Access
from coordinator.admin.application import create_app
from coordinator.admin.cluster import Topics
from coordinator.admin.http_server import HttpServer
from coordinator.admin.owners import OwnerBoard
from coordinator.admin.watched import HandOver, nobody_to_hand_over_to
from coordinator.clock import SystemClock
from coordinator.config import Config
from coordinator.expiry import Expiry
from coordinator.metrics import Metrics
from coordinator.security.tls import ServerTls, TlsFiles
from coordinator.signals import SignalMonitor
from coordinator.state_view import StateView

_logger = logging.getLogger(__name__)

# How often the files of certificates and tokens are looked at.
_FILES_LOOKED_AT_EVERY_S = 2.0


class AdminSide:
    """Serves people and probes at `config.http`; `owners` is to be told who owns what.

    It closes `topics`, the way to the cluster that users' topics are in, when it stops.
    """

    def __init__(
        self,
        runtime: StateView,
        metrics: Metrics,
        config: Config,
        topics: Topics | None,
        *,
        hand_over: HandOver = nobody_to_hand_over_to,
        expiry: Expiry | None = None,
        signals: SignalMonitor | None = None,
    ) -> None:
        """Prepare; `hand_over` asks the group. Raises ConfigError for files that are of no use."""
        self.owners = OwnerBoard()
        self._topics = topics
        self._access = Access(config)
        self._tls = tls_of(config)
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
        )
        self._live = app.state.live
        self._server = HttpServer(
            app,
            config.http,
            tls=self._tls,
            before_stop=self._live.end,
            refused=metrics.http_refused,
        )
        self._address = config.http
        self._risk = config.http_risk(config.http)
        self._clock = SystemClock()
        self._watching: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """The port that was bound, once started."""
        return self._server.port

    @property
    def url(self) -> str:
        """Where it is found, once started."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{self._address._replace(port=self.port)}"

    async def start(self) -> None:
        """Listen. Raises ListenError if the address cannot be listened on."""
        if self._risk is not None:
            _logger.warning("%s", self._risk)
        await self._server.start()
        self._watching.append(asyncio.create_task(self._watch_tokens(), name="tokens"))
        if self._tls is not None:
            watching = self._tls.watch(_FILES_LOOKED_AT_EVERY_S)
            self._watching.append(asyncio.create_task(watching, name="certificates of http"))

    async def stop(self) -> None:
        """Finish the answers under way, for a moment, then close everything; harmless if never started."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self._server.stop()
        if self._topics is not None:
            await self._topics.close()

    async def _watch_tokens(self) -> None:
        while True:
            await asyncio.sleep(_FILES_LOOKED_AT_EVERY_S)
            self._server.close_untrusted(self._clock.now_ms())
            if self._access.reload_if_changed():
                # Whoever watches shows again that they may.
                self._live.interrupt()


def tls_of(config: Config) -> ServerTls | None:
    """Return the TLS side of HTTP, None without. Raises ConfigError for files of no use."""
    if not config.http_uses_tls:
        return None
    files = TlsFiles(
        config.http_ssl_certificate_location,
        config.http_ssl_key_location,
        config.http_ssl_key_password,
        config.http_ssl_ca_location,
        config.http_ssl_client_auth,
    )
    return ServerTls(files, "http")
