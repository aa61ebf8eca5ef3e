"""Cluster metadata in plain values, and the choice between brokers that report different metadata."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from protocol.errors import ErrorCode

NO_NODE = -1
NO_LEADER_EPOCH = -1
NO_TOPIC_ID = bytes(16)

# The topic id is decided by this many brokers: those that answered last.
_REPORTS_MAX = 3


class PartitionMetadata(NamedTuple):
    """A partition as a broker reports it. A broker below Kafka 3.1 reports no leader epoch here."""

    partition: int
    leader: int
    leader_epoch: int = NO_LEADER_EPOCH
    replicas: tuple[int, ...] = ()


class TopicMetadata(NamedTuple):
    """A topic as a broker reports it. A broker below Kafka 3.1 reports no topic id here."""

    error_code: int
    name: str | None
    topic_id: bytes = NO_TOPIC_ID
    partitions: Sequence[PartitionMetadata] = ()


class ClusterMetadata(NamedTuple):
    """The response of one broker: the addresses of all brokers, and the topics that were asked for."""

    cluster_id: str
    brokers: Mapping[int, tuple[str, int]]
    topics: Sequence[TopicMetadata]


class NewestTopic:
    """One topic as several brokers report it.

    A broker that is cut off from the controller goes on to report old metadata.  Of each partition the newest
    leader epoch counts, whichever broker reported it (KIP-320).  Topic ids have no order (KIP-516): the id
    that most of the last few brokers report counts, until `pin` decides for one.
    """

    def __init__(self) -> None:
        self._partitions: dict[bytes, dict[int, PartitionMetadata]] = {}
        self._reported_ids: dict[int, bytes] = {}
        self._pinned_id: bytes | None = None

    @property
    def topic_id(self) -> bytes:
        """Return the topic id that counts, NO_TOPIC_ID if no broker reported one."""
        return self._most_reported_id() if self._pinned_id is None else self._pinned_id

    @property
    def pinned_id(self) -> bytes | None:
        """Return the topic id that was pinned, None if none was."""
        return self._pinned_id

    @property
    def partitions(self) -> Mapping[int, PartitionMetadata]:
        """Return the partitions of the topic with this id, by number."""
        return self._partitions.get(self.topic_id, {})

    def pin(self) -> bytes:
        """Decide for the topic id that counts now, and return it. Another topic of the name is not used."""
        if self.topic_id != NO_TOPIC_ID:
            self._pinned_id = self.topic_id
        return self.topic_id

    def new_topic_id(self) -> bytes | None:
        """Return the id that most brokers report instead of the pinned one, None if they do not."""
        reported = self._most_reported_id()
        return reported if self._pinned_id not in (None, reported) and reported != NO_TOPIC_ID else None

    def update(self, node: int, topic: TopicMetadata) -> bool:
        """Take what a broker reports; return False if another broker has reported something newer."""
        for answered in (node, NO_NODE):
            # The report of a bootstrap server counts until a broker is asked by its node id.
            self._reported_ids.pop(answered, None)
        self._reported_ids[node] = topic.topic_id
        while len(self._reported_ids) > _REPORTS_MAX:
            del self._reported_ids[next(iter(self._reported_ids))]
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
        """Return the topic id that most brokers report; of several the pinned one, or that reported last."""
        counts = Counter(topic_id for topic_id in self._reported_ids.values() if topic_id != NO_TOPIC_ID)
        if not counts:
            return NO_TOPIC_ID
        candidates = [topic_id for topic_id, count in counts.items() if count == max(counts.values())]
        return self._pinned_id if self._pinned_id in candidates else candidates[-1]


def topic_error_code(reported: Sequence[ClusterMetadata], name: str) -> int:
    """Return NONE if a broker knows the topic, else UNKNOWN_TOPIC_OR_PARTITION or what a broker answered."""
    codes = [topic.error_code for metadata in reported for topic in metadata.topics if topic.name == name]
    if ErrorCode.NONE in codes:
        return ErrorCode.NONE
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return next((code for code in codes if code != unknown), unknown)
