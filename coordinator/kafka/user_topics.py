"""The topics that share groups consume, as the cluster knows them: names and end offsets.

Only for people who watch: the coordinator itself never needs a user's topic. It asks with DESCRIBE on the
topics; what it may not see is left out of its answers.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping

from aiokafka.protocol.offset import OffsetRequest

from coordinator.client import ClientSecurity
from coordinator.errors import LogUnavailable
from coordinator.kafka.cluster import NO_NODE, NoResponse
from coordinator.kafka.cluster_reader import ClusterReader
from coordinator.kafka.connections import METADATA_CHANNEL
from coordinator.kafka.generated_requests import GeneratedRequest
from coordinator.kafka.metadata_requests import metadata_request, read_metadata
from protocol.errors import ErrorCode

_LATEST, _EARLIEST = -1, -2
_READ_UNCOMMITTED = 0

# What is remembered of leaders; beyond it, as after a long life with many topics, all is asked anew.
_PARTITIONS_MAX = 100_000

TopicPartition = tuple[bytes, int]


class UserTopics(ClusterReader):
    """Reads names and offsets of topics."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        security: ClientSecurity | None = None,
        client_id: str = "share-coordinator-view",
        request_timeout_s: float = 5.0,
    ) -> None:
        """Prepare; nothing is connected. Raises ConfigError for TLS files that cannot be used."""
        super().__init__(
            bootstrap_servers,
            security=security,
            client_id=client_id,
            request_timeout_s=request_timeout_s,
        )
        self._leaders: dict[TopicPartition, int] = {}
        self._names: dict[bytes, str] = {}

    async def names(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]:
        """Return the names of these topics, without those that are gone or that we may not see.

        Raises LogUnavailable if no broker answers, and Unsupported below Kafka 3.1.
        """
        return await self._describe(metadata_request(topic_ids=topic_ids))

    async def topic_id(self, name: str) -> bytes | None:
        """Return the id of a topic, None if there is none or we may not see it. Raises as `names`."""
        found = await self._describe(metadata_request([name]))
        return next(iter(found), None)

    async def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the high watermarks of these partitions, without those that nobody can tell.

        Raises as `names`.
        """
        return await self._offsets(partitions, _LATEST)

    async def start_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offsets of the first records of these partitions, as `end_offsets` does the last."""
        return await self._offsets(partitions, _EARLIEST)

    async def offsets_at(
        self, partitions: Collection[TopicPartition], time_ms: int
    ) -> Mapping[TopicPartition, int]:
        """Return the offsets of the first records of this time or a later one; -1 where there is none."""
        return await self._offsets(partitions, time_ms)

    async def partitions(self, topic_id: bytes) -> list[int]:
        """Return the partitions of a topic, none if there is no such topic. Raises as `names`."""
        await self.names([topic_id])
        return sorted(partition for known, partition in self._leaders if known == topic_id)

    async def _offsets(self, partitions: Collection[TopicPartition], which: int) -> dict[TopicPartition, int]:
        unknown = {
            topic_id for topic_id, partition in partitions if (topic_id, partition) not in self._leaders
        }
        if unknown:
            await self.names(unknown)
        by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for topic_partition in partitions:
            leader = self._leaders.get(topic_partition, NO_NODE)
            if leader != NO_NODE:
                by_leader[leader].append(topic_partition)
        answers = await asyncio.gather(*(self._list(node, asked, which) for node, asked in by_leader.items()))
        return {topic_partition: offset for answer in answers for topic_partition, offset in answer.items()}

    async def _describe(self, request: GeneratedRequest) -> dict[bytes, str]:
        if not self._connections.nodes():
            await self._connections.refresh()
        try:
            metadata = read_metadata(await self._connections.send_to_any(request))
        except LogUnavailable:
            await self._connections.refresh()
            metadata = read_metadata(await self._connections.send_to_any(request))
        if len(self._leaders) > _PARTITIONS_MAX:
            self._leaders.clear()
        found = {}
        for node, (host, port) in metadata.brokers.items():
            self._connections.learn(node, host, port)
        for topic in metadata.topics:
            if topic.error_code == ErrorCode.NONE and topic.name is not None:
                found[topic.topic_id] = topic.name
                for partition in topic.partitions:
                    self._leaders[topic.topic_id, partition.partition] = partition.leader
        self._names.update(found)
        return found

    async def _list(self, node: int, asked: list[TopicPartition], which: int) -> dict[TopicPartition, int]:
        by_topic: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        ids = {}
        for topic_id, partition in asked:
            name = self._names[topic_id]
            ids[name] = topic_id
            by_topic[name].append((partition, which))
        request = OffsetRequest(-1, _READ_UNCOMMITTED, list(by_topic.items()))
        found = {}
        try:
            response = await self._connections.send(node, METADATA_CHANNEL, request)
        except NoResponse:
            # Whoever leads now is asked for the next time.
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
