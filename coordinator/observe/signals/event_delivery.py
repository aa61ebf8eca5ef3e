"""Deliver events of share groups to a webhook or a Kafka topic, in order and without blocking the event loop.

In a topic, the key of a record is the group id, and its value is the event as JSON. All events of a group go
to the same partition, so they stay in order. A retry may write an event twice. The topic has to exist;
writing to it requires WRITE and DESCRIBE.
"""

import asyncio
import logging
import ssl
from collections import deque
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import msgspec

from coordinator.cluster.kafka.broker_results import NO_NODE
from coordinator.errors import CoordinatorError, LogRefused, LogUnavailable
from coordinator.observe.signals.detectors import SignalEvent
from protocol.errors import ErrorCode, kafka_error
from protocol.record_batch import encode_batch

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

_logger = logging.getLogger(__name__)

# Delays in seconds before the retries; after the last retry, the event is dropped.
RETRY_AFTER_S = (1.0, 5.0, 30.0)
# Maximum number of queued events; the oldest are dropped first, as in /api/v1/events.
WAITING_MAX = 1_000


class EventDestination(Protocol):
    """A destination of events. Log messages about a destination begin with its `name`."""

    name: str

    async def deliver(self, event: SignalEvent) -> None:
        """Deliver an event. Raises OSError or CoordinatorError if the event has to be delivered again."""

    async def close(self) -> None:
        """Close all connections."""


class EventQueue:
    """Queues events for one destination; `run` delivers them one after another."""

    def __init__(
        self, destination: EventDestination, *, retry_after_s: tuple[float, ...] = RETRY_AFTER_S
    ) -> None:
        self._destination = destination
        self._retry_after_s = retry_after_s
        self._waiting: deque[SignalEvent] = deque(maxlen=WAITING_MAX)
        self._arrived = asyncio.Event()

    def put(self, event: SignalEvent) -> None:
        if len(self._waiting) == WAITING_MAX:
            _logger.warning("%s is too slow; the oldest event was dropped.", self._destination.name)
        self._waiting.append(event)
        self._arrived.set()

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                await self._deliver_event(self._waiting.popleft())

    async def close(self) -> None:
        await self._destination.close()

    async def _deliver_event(self, event: SignalEvent) -> None:
        name = self._destination.name
        for pause_s in (*self._retry_after_s, None):
            try:
                await self._destination.deliver(event)
            except (OSError, CoordinatorError) as error:
                if pause_s is None:
                    _logger.warning("%s did not accept an event, which was dropped: %s", name, error)
                    return
                _logger.info("%s did not accept an event; retrying in %g s: %s", name, pause_s, error)
                await asyncio.sleep(pause_s)
            except Exception:
                _logger.exception("%s failed with an unexpected error; an event was dropped.", name)
                return
            else:
                return


CHANNEL = "events"
TIMEOUT_MS = 10_000


class EventTopic:
    """An existing topic that receives each event as a record."""

    name = "The topic of events"

    def __init__(self, cluster: "Brokers", topic: str) -> None:
        """Create the object without connecting. `cluster` is a client for the topic of this name."""
        self._cluster = cluster
        self._topic = topic
        self._partitions = 0

    async def deliver(self, event: SignalEvent) -> None:
        """Write an event. Raises LogError if the event may not be in the topic."""
        partitions = await self._find_partitions()
        key = event.group.encode()
        partition = crc32(key) % partitions
        node = self._cluster.leader(partition)
        if node == NO_NODE:
            # The topic may have been created again with fewer partitions.
            self._partitions = 0
            raise LogUnavailable(f"partition {partition} of topic {self._topic} has no leader")
        batch = encode_batch(0, event.timestamp_ms, [(key, msgspec.json.encode(event))])
        results = await self._cluster.produce(node, CHANNEL, [(partition, batch)], TIMEOUT_MS)
        code = results[partition].error_code if partition in results else ErrorCode.UNKNOWN_SERVER_ERROR
        if code == ErrorCode.NONE:
            return
        self._cluster.refresh_soon()
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise LogRefused(f"Write is not allowed. Add the ACL: Write on topic {self._topic}.")
        raise LogUnavailable(f"topic {self._topic} refused a record with {kafka_error(code)}")

    async def close(self) -> None:
        await self._cluster.close()

    async def _find_partitions(self) -> int:
        if not self._partitions:
            await self._cluster.connect()
            topic = await self._cluster.describe_topic()
            if topic is None:
                raise LogRefused(f"topic {self._topic} does not exist; create it")
            self._partitions = topic.partitions
        return self._partitions


TIMEOUT_S = 10.0
_RESPONSE_BYTES_MAX = 1_000


class Webhook:
    """An endpoint that receives each event as a JSON object with POST. Any 2xx status is a success."""

    name = "The webhook"

    def __init__(self, url: str) -> None:
        """Prepare for an http or https URL without connecting."""
        from coordinator.process.http_request import send_request

        self._send_request = send_request
        self._url = url
        self._tls = ssl.create_default_context()

    async def deliver(self, event: SignalEvent) -> None:
        """Send an event. Raises OSError if the response status is not 2xx."""
        try:
            await self._send_request(
                "POST",
                self._url,
                tls=self._tls,
                timeout_s=TIMEOUT_S,
                bytes_max=_RESPONSE_BYTES_MAX,
                body=msgspec.json.encode(event),
                headers={"Content-Type": "application/json"},
            )
        except OSError:
            # The trusted authorities may have changed. Reading the trusted authorities takes 15 ms, too long
            # for each request.
            self._tls = ssl.create_default_context()
            raise

    async def close(self) -> None:
        """Do nothing, because each event has a connection of its own."""
