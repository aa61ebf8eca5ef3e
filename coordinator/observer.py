"""The process of an observer: the follower, the signals and the HTTP server, from start to stop."""

import asyncio
import logging
import signal

from coordinator.cluster.kafka.configured_brokers import make_brokers
from coordinator.config import Config
from coordinator.errors import ConfigError, CoordinatorError
from coordinator.log.other_process import locate_log
from coordinator.metrics import Metrics
from coordinator.observe.follower import LogFollower
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
    return event_loop.run(_run(config))


async def _run(config: Config) -> int:
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)
    metrics = Metrics()
    topic, client_id = config.state_topic, "share-coordinator-observer"
    brokers = make_brokers(config, topic, client_id=client_id, setting="observe", value=topic)
    follower = LogFollower(brokers, topic)
    metrics.attach_runtime(follower, "kafka", lambda: 0)
    topics = make_user_topics(config)
    signals = SignalService(config, follower, metrics, topics)
    follower.on_record_followed = signals.monitor.on_record_followed
    view = CoordinatorView(
        follower,
        metrics,
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
    _logger.info(f"observing topic {config.state_topic} of {config.bootstrap_servers}, HTTP on {http.url}")
    await stop_requested.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await signals.stop()
    await http.stop()
    await follower.close()
    _logger.info("stopped")
    return EXIT_OK
