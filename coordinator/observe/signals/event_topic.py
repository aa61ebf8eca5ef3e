"""Write events of share groups to a Kafka topic.

The key of a record is the group id, and its value is the event as JSON. All events of a group go to the same
partition, so they stay in order. A retry may write an event twice. The topic has to exist; writing to it
requires WRITE and DESCRIBE.
"""

from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from coordinator.cluster.kafka.cluster import NO_NODE
from coordinator.errors import LogRefused, LogUnavailable
from coordinator.observe.signals.monitor import SignalEvent
from protocol.errors import ErrorCode
from protocol.record_batch import encode_batch

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

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
        """Write an event. Raises LogError if it may not be in the topic."""
        partitions = await self._find_partitions()
        key = event.group.encode()
        partition = crc32(key) % partitions
        node = self._cluster.leader(partition)
        if node == NO_NODE:
            self._cluster.refresh_soon()
            raise LogUnavailable(f"partition {partition} of topic {self._topic} has no leader")
        batch = encode_batch(0, event.timestamp_ms, [(key, msgspec.json.encode(event))])
        results = await self._cluster.produce(node, CHANNEL, [(partition, batch)], TIMEOUT_MS)
        code = results[partition].error_code if partition in results else ErrorCode.UNKNOWN_SERVER_ERROR
        if code == ErrorCode.NONE:
            return
        self._cluster.refresh_soon()
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise LogRefused(f"Write is not allowed. Add the ACL: Write on topic {self._topic}.")
        raise LogUnavailable(f"topic {self._topic} refused a record with Kafka's error {code}")

    async def close(self) -> None:
        """Close all connections."""
        await self._cluster.close()

    async def _find_partitions(self) -> int:
        if not self._partitions:
            await self._cluster.connect()
            topic = await self._cluster.describe_topic()
            if topic is None:
                raise LogRefused(f"topic {self._topic} does not exist; create it")
            self._partitions = topic.partitions
        return self._partitions
