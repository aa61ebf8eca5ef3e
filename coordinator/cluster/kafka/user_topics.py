"""Query names and offsets of the topics that share groups consume, for display.

The coordinator itself never needs these topics. Requests need DESCRIBE on the topics; topics without this
permission are omitted from the results.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping

from aiokafka.protocol.offset import OffsetRequest

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.broker_results import NO_NODE, NoResponse
from coordinator.cluster.kafka.connections import METADATA_CHANNEL, Connections
from coordinator.cluster.kafka.generated_requests import GeneratedRequest
from coordinator.cluster.kafka.topic_requests import metadata_request, read_metadata
from protocol.errors import ErrorCode

_LATEST, _EARLIEST = -1, -2
_READ_UNCOMMITTED = 0

# Maximum number of cached leaders. If the cache has more leaders, it is cleared.
_PARTITIONS_MAX = 100_000

TopicPartition = tuple[bytes, int]


class UserTopics:
    """Queries the topics of a cluster. Created and used on one event loop."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        security: ClientSecurity | None = None,
        request_timeout_s: float = 5.0,
    ) -> None:
        """Create the object without connecting. Raises ConfigError for TLS files that cannot be used."""
        self._connections = Connections(
            bootstrap_servers,
            None,
            security=security,
            client_id="share-coordinator-view",
            request_timeout_s=request_timeout_s,
        )
        self._leaders: dict[TopicPartition, int] = {}
        self._names: dict[bytes, str] = {}

    async def close(self) -> None:
        await self._connections.close()

    async def topic_names(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]:
        """Return the names of these topics, without those that do not exist or may not be described.

        Raises LogUnavailable if no broker answers.
        """
        return await self._describe_topics(metadata_request(topic_ids=topic_ids))

    async def topic_id(self, name: str) -> bytes | None:
        """Return the id of a topic.

        Returns None if the topic does not exist or may not be described. Raises like `topic_names`.
        """
        found = await self._describe_topics(metadata_request([name]))
        return next(iter(found), None)

    async def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the known high watermarks of these partitions. Raises like `topic_names`."""
        return await self._list_offsets(dict.fromkeys(partitions, _LATEST))

    async def start_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the known log start offsets of these partitions. Raises LogUnavailable."""
        return await self._list_offsets(dict.fromkeys(partitions, _EARLIEST))

    async def offsets_at_times(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return for each partition the offset of the first record at or after its time, else -1."""
        return await self._list_offsets(times_ms)

    async def _list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        unknown = {topic_id for topic_id, partition in times if (topic_id, partition) not in self._leaders}
        if unknown:
            await self.topic_names(unknown)
        by_leader: defaultdict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for topic_partition, time in times.items():
            if topic_partition in self._leaders:
                by_leader[self._leaders[topic_partition]][topic_partition] = time
        answers = await asyncio.gather(
            *(self._list_offsets_of_leader(node, asked) for node, asked in by_leader.items())
        )
        return {topic_partition: offset for answer in answers for topic_partition, offset in answer.items()}

    async def _describe_topics(self, request: GeneratedRequest) -> dict[bytes, str]:
        # The addresses of brokers may have changed.
        await self._connections.refresh()
        metadata = read_metadata(await self._connections.send_to_any_broker(request))
        if len(self._leaders) > _PARTITIONS_MAX:
            self._leaders.clear()
        found = {}
        for topic in metadata.topics:
            if topic.error_code == ErrorCode.NONE and topic.name is not None:
                found[topic.topic_id] = topic.name
                for partition in topic.partitions:
                    if partition.leader != NO_NODE:
                        self._leaders[topic.topic_id, partition.partition] = partition.leader
        self._names.update(found)
        return found

    async def _list_offsets_of_leader(
        self, node: int, asked: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        by_topic: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        ids = {}
        for (topic_id, partition), time in asked.items():
            name = self._names[topic_id]
            ids[name] = topic_id
            by_topic[name].append((partition, time))
        request = OffsetRequest(-1, _READ_UNCOMMITTED, list(by_topic.items()))
        found = {}
        try:
            response = await self._connections.send(node, METADATA_CHANNEL, request)
        except NoResponse:
            # The leader may have changed, so the next call looks it up again.
            for topic_partition in asked:
                self._leaders.pop(topic_partition, None)
            return {}
        for name, partitions in response.topics:
            for partition, code, _, offset, *_ in partitions:
                if code == ErrorCode.NONE:
                    found[ids[name], partition] = offset
                else:
                    self._leaders.pop((ids[name], partition), None)
        return found
