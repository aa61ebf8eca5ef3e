"""Cluster metadata in plain values, and the choice between brokers that report different metadata."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from protocol.errors import ErrorCode

NO_NODE = -1
NO_LEADER_EPOCH = -1
NO_TOPIC_ID = bytes(16)

# Number of brokers whose latest reports determine the topic id.
_REPORTS_MAX = 3


class PartitionMetadata(NamedTuple):
    """A partition as a broker reports it."""

    partition: int
    leader: int
    leader_epoch: int = NO_LEADER_EPOCH
    replicas: tuple[int, ...] = ()


class TopicMetadata(NamedTuple):
    """A topic as a broker reports it."""

    error_code: int
    name: str | None
    topic_id: bytes = NO_TOPIC_ID
    partitions: Sequence[PartitionMetadata] = ()


class ClusterMetadata(NamedTuple):
    """The response of one broker: the addresses of all brokers, and the requested topics."""

    cluster_id: str
    brokers: Mapping[int, tuple[str, int]]
    topics: Sequence[TopicMetadata]


class MergedTopicMetadata:
    """One topic as several brokers report it.

    A broker that is disconnected from the controller continues to report old metadata. For each partition,
    the report with the newest leader epoch is used (KIP-320). Topic ids have no order (KIP-516). Therefore,
    the id that most of the last few brokers report is used, until `pin_id` fixes it.
    """

    def __init__(self) -> None:
        self._partitions: dict[bytes, dict[int, PartitionMetadata]] = {}
        self._reported_ids: dict[int, bytes] = {}
        self._pinned_id: bytes | None = None
        self._reported_id = NO_TOPIC_ID

    @property
    def topic_id(self) -> bytes:
        """Return the current topic id, NO_TOPIC_ID if no broker reported one."""
        return self._reported_id if self._pinned_id is None else self._pinned_id

    @property
    def partitions(self) -> Mapping[int, PartitionMetadata]:
        """Return the partitions of the topic with the current id, by number."""
        return self._partitions.get(self.topic_id, {})

    def pin_id(self) -> bytes:
        """Pin the current topic id and return it. Another topic with the same name is not used."""
        if self.topic_id != NO_TOPIC_ID:
            self._pinned_id = self.topic_id
            self._reported_id = self._most_reported_id()
        return self.topic_id

    def new_topic_id(self) -> bytes | None:
        """Return the id that most brokers report if it differs from the pinned one, else None."""
        # Called for each append, so the id is computed only when a report or the pinned id changes.
        reported = self._reported_id
        return reported if self._pinned_id not in (None, reported) and reported != NO_TOPIC_ID else None

    def update(self, node: int, topic: TopicMetadata) -> bool:
        """Store a broker's report; return False if another broker has reported newer metadata."""
        for answered in (node, NO_NODE):
            # The report of a bootstrap server is used only until a broker is asked by its node id.
            self._reported_ids.pop(answered, None)
        self._reported_ids[node] = topic.topic_id
        while len(self._reported_ids) > _REPORTS_MAX:
            del self._reported_ids[next(iter(self._reported_ids))]
        self._reported_id = self._most_reported_id()
        known = self._partitions.setdefault(topic.topic_id, {})
        is_newest = topic.topic_id == self.topic_id
        for reported in topic.partitions:
            before = known.get(reported.partition)
            if before is not None and NO_LEADER_EPOCH < reported.leader_epoch < before.leader_epoch:
                is_newest = False
            else:
                known[reported.partition] = reported
        for topic_id in self._partitions.keys() - {*self._reported_ids.values(), self.topic_id}:
            del self._partitions[topic_id]
        return is_newest

    def _most_reported_id(self) -> bytes:
        """Return the id in most reports; of equally frequent ids, the pinned or the latest one."""
        counts = Counter(topic_id for topic_id in self._reported_ids.values() if topic_id != NO_TOPIC_ID)
        if not counts:
            return NO_TOPIC_ID
        candidates = [topic_id for topic_id, count in counts.items() if count == max(counts.values())]
        return self._pinned_id if self._pinned_id in candidates else candidates[-1]


def topic_error_code(reported: Sequence[ClusterMetadata], name: str) -> int:
    """Return NONE if a broker has the topic, else a broker's error or UNKNOWN_TOPIC_OR_PARTITION."""
    codes = [topic.error_code for metadata in reported for topic in metadata.topics if topic.name == name]
    if ErrorCode.NONE in codes:
        return ErrorCode.NONE
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return next((code for code in codes if code != unknown), unknown)
