"""Resolve topic ids to names. An id is missing only if all brokers answer that they do not know it."""

from collections.abc import Sequence

from coordinator.cluster.kafka.cluster import NoResponse
from coordinator.cluster.kafka.connections import METADATA_CHANNEL, ClusterReader
from coordinator.cluster.kafka.metadata_requests import metadata_request, read_metadata
from coordinator.cluster.kafka.share_group_types import ResolvedTopicIds
from protocol.errors import ErrorCode

# Topic ids per request.
_TOPICS_MAX = 1_000


class TopicIdResolver(ClusterReader):
    """Resolves topic ids of a cluster. Made and used on one event loop."""

    async def resolve(self, topic_ids: Sequence[bytes]) -> ResolvedTopicIds:
        """Ask one broker after the other until all topic ids are found.

        Raises LogUnavailable if no broker answers, and UnsupportedApi below Kafka 3.1.
        """
        await self._connections.refresh()
        cluster_id = ""
        names: dict[bytes, str] = {}
        missing = set(topic_ids)
        is_anyone_silent = False
        for node in self._connections.nodes():
            # If no topic ids are left, one request is still sent, because its response has the cluster id.
            wanted = sorted(missing)
            for at in range(0, max(len(wanted), 1), _TOPICS_MAX):
                request = metadata_request(topic_ids=wanted[at : at + _TOPICS_MAX])
                try:
                    response = await self._connections.send(node, METADATA_CHANNEL, request)
                except NoResponse:
                    is_anyone_silent = True
                    break
                metadata = read_metadata(response)
                cluster_id = metadata.cluster_id or cluster_id
                for topic in metadata.topics:
                    if topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID:
                        missing.discard(topic.topic_id)
                    if topic.error_code == ErrorCode.NONE and topic.name is not None:
                        names[topic.topic_id] = topic.name
            if cluster_id and not missing:
                break
        return ResolvedTopicIds(cluster_id, names, frozenset() if is_anyone_silent else frozenset(missing))
