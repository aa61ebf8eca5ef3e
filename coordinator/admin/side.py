"""The HTTP side as a whole, from start to stop."""

from coordinator.admin.application import create_app
from coordinator.admin.cluster import Topics
from coordinator.admin.http_server import HttpServer
from coordinator.admin.owners import OwnerBoard
from coordinator.config import Config
from coordinator.metrics import Metrics
from coordinator.runtime import Runtime


class AdminSide:
    """Serves people and probes at `config.http`; `owners` is to be told who owns what.

    It closes `topics`, the way to the cluster that users' topics are in, when it stops.
    """

    def __init__(self, runtime: Runtime, metrics: Metrics, config: Config, topics: Topics | None) -> None:
        self.owners = OwnerBoard()
        self._topics = topics
        app = create_app(runtime, metrics, config, owners=self.owners, topics=topics)
        self._server = HttpServer(app, config.http, before_stop=app.state.live.end)

    @property
    def port(self) -> int:
        """The port that was bound, once started."""
        return self._server.port

    async def start(self) -> None:
        """Listen. Raises ListenError if the address cannot be listened on."""
        await self._server.start()

    async def stop(self) -> None:
        """Finish the answers under way, for a moment, then close everything; harmless if never started."""
        await self._server.stop()
        if self._topics is not None:
            await self._topics.close()
