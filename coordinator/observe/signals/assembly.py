"""Connect the signal monitor to a cluster, the metrics and the log, and run it."""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping

from coordinator.cluster.kafka.configured_brokers import make_brokers
from coordinator.config import Config
from coordinator.metrics import Metrics, signal_families
from coordinator.observe.signals.append_sample import AppendSampler
from coordinator.observe.signals.detectors import SignalEvent, SignalLimits
from coordinator.observe.signals.event_delivery import EventDestination, EventQueue, EventTopic, Webhook
from coordinator.observe.signals.losses import ReadSkips
from coordinator.observe.signals.monitor import SignalMonitor
from coordinator.observe.signals.user_topics import TopicQueries
from coordinator.process.clock import SystemClock
from coordinator.security.client_security import make_client_security
from coordinator.serve.state_view import StateView
from protocol.errors import ErrorCode

_logger = logging.getLogger(__name__)


class SignalService:
    """A `SignalMonitor` and its connections. Without bootstrap.servers, lag and members are unknown."""

    def __init__(
        self,
        config: Config,
        view: StateView,
        metrics: Metrics,
        topics: TopicQueries | None,
        *,
        sample: AppendSampler | None = None,
        read_skips: ReadSkips | None = None,
    ) -> None:
        """Create the monitor without connecting; `topics` are the queries to the cluster, if there is one.

        For `sample` and `read_skips`, see `SignalMonitor`.
        """
        self._share_groups = None
        if topics is not None:
            from coordinator.cluster.kafka.share_groups import ShareGroups

            self._share_groups = ShareGroups(config.bootstrap_servers, security=make_client_security(config))
        self._queues = [EventQueue(each) for each in _make_destinations(config)]
        self.monitor = SignalMonitor(
            view,
            topics=topics,
            members=None if self._share_groups is None else self._count_members,
            now_ms=SystemClock().now_ms,
            limits=SignalLimits(
                delivery_count_limit=config.delivery_count_limit,
                window_records=config.window_records,
                stuck_s=config.stuck_seconds,
            ),
            on_event=self._publish_event,
            sample=sample,
            read_skips=read_skips,
        )
        metrics.add_families(lambda: signal_families(self.monitor.groups.values()))
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._running = [asyncio.create_task(self.monitor.run(), name="signals")]
        self._running += [asyncio.create_task(queue.run(), name="events") for queue in self._queues]

    async def stop(self) -> None:
        """Stop the monitor and close the connections; harmless if the service was never started."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.monitor.close()
        for connection in (self._share_groups, *self._queues):
            if connection is not None:
                await connection.close()

    def _publish_event(self, event: SignalEvent) -> None:
        _log_event(event)
        for queue in self._queues:
            queue.put(event)

    async def _count_members(self, groups: Collection[str]) -> Mapping[str, int]:
        assert self._share_groups is not None
        described = await self._share_groups.describe_groups(groups)
        denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
        self.monitor.missing_access.set_groups(
            {group for group, each in described.items() if each.error_code == denied}
        )
        return {group: each.members for group, each in described.items() if each.error_code == 0}


def _make_destinations(config: Config) -> Iterator[EventDestination]:
    if config.signals_webhook_url:
        yield Webhook(config.signals_webhook_url)
    if config.signals_events_topic:
        topic = config.signals_events_topic
        yield EventTopic(make_brokers(config, topic, setting="signals.events.topic", value=topic), topic)


def _log_event(event: SignalEvent) -> None:
    level = logging.WARNING if event.began else logging.INFO
    _logger.log(level, "%s", event.message, extra={"group": event.group, "problem": event.problem})
