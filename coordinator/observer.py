"""The process of an observer: the follower, the signals and the HTTP server, from start to stop."""

import asyncio
import logging
import signal

from coordinator.config import Config
from coordinator.errors import ConfigError, CoordinatorError
from coordinator.log.other_process import locate_log
from coordinator.metrics import Metrics
from coordinator.observe.follower import LogFollower, RecordFollowed
from coordinator.observe.signals.assembly import SignalService
from coordinator.operate.admin import (
    ClusterInfoCache,
    CoordinatorView,
    HttpService,
    OwnerDirectory,
    make_user_topics,
)
from coordinator.operate.history import HistoryProcess
from coordinator.process import event_loop
from coordinator.process.optional_dependencies import KAFKA_EXTRA
from coordinator.security.client_security import make_client_security
from coordinator.shard import ShareState
from protocol.state_records import SharePartitionKey, StateRecord

_logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1


def serve_observer(config: Config) -> int:
    """Run an observer of `config.state_topic` until SIGTERM or SIGINT; return the exit code of the process.

    Raises ConfigError.
    """
    if not config.bootstrap_servers:
        raise ConfigError("bootstrap.servers", "", "the cluster to observe, HOST:PORT[,HOST:PORT...]")
    if config.http_allows_writes:
        raise ConfigError("http.writes", "true", "false, because an observer is read-only")
    return event_loop.run(_Observer(config).run())


class _Observer:
    """One observer process, from start to stop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._metrics = Metrics()
        self._stop_asked = asyncio.Event()
        self._signals: SignalService | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_asked.set)
        config = self._config
        follower = _make_follower(config, self._record_followed)
        self._metrics.attach_runtime(follower, "kafka", lambda: 0)
        topics = make_user_topics(config)
        signals = self._signals = SignalService(config, follower, self._metrics, topics)
        view = CoordinatorView(
            follower,
            self._metrics,
            config,
            OwnerDirectory(),
            ClusterInfoCache(topics),
            signals=signals.monitor,
            history=HistoryProcess(lambda state_partition: locate_log(config, None, state_partition)),
        )
        http = HttpService(view)
        try:
            await http.start()
        except CoordinatorError as error:
            _logger.error("The observer cannot start: %s", error)
            await http.stop()
            return EXIT_FAILED
        following = asyncio.create_task(follower.run(), name="follower")
        signals.start()
        _logger.info(
            f"observing topic {config.state_topic} of {config.bootstrap_servers}, HTTP on {http.url}"
        )
        await self._stop_asked.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await signals.stop()
        await http.stop()
        await follower.close()
        _logger.info("stopped")
        return EXIT_OK

    def _record_followed(
        self, key: SharePartitionKey, before: ShareState | None, record: StateRecord
    ) -> None:
        if self._signals is not None:
            self._signals.monitor.record_followed(key, before, record)


def _make_follower(config: Config, record_followed: RecordFollowed) -> LogFollower:
    try:
        from coordinator.cluster.kafka.brokers import Brokers
    except ModuleNotFoundError:
        raise ConfigError("observe", "", f"used with aiokafka: {KAFKA_EXTRA}") from None
    brokers = Brokers(
        config.bootstrap_servers,
        config.state_topic,
        security=make_client_security(config),
        client_id="share-coordinator-observer",
        request_timeout_s=config.request_timeout_ms / 1000,
    )
    return LogFollower(brokers, config.state_topic, record_followed=record_followed)
