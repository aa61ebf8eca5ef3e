"""Which topics and partitions the cluster knows, as a fact that is handed in.

Kafka's own coordinator sees every metadata change.  One beside the cluster does not: unless somebody
tells it, it takes each topic id that a broker names as known.
"""

from collections.abc import Mapping
from typing import Protocol


def lag_of(start_offset: int, delivery_complete_count: int, end_offset: int | None) -> int | None:
    """Return the lag of a share-partition as Kafka's group coordinator computes it (KIP-1226).

    None where Kafka does not: if one of the three is not known. The end offset may be older than the state:
    what would be below 0 is 0.
    """
    if end_offset is None or start_offset < 0 or delivery_complete_count < 0:
        return None
    return max(0, end_offset - start_offset - delivery_complete_count)


class TopicDirectory(Protocol):
    """Answers from memory whether a topic id and partition exist."""

    def contains(self, topic_id: bytes, partition: int) -> bool:
        """Tell whether the cluster has this partition of this topic."""
        ...


class AllTopics:
    """Takes every topic for known: what a coordinator without a view of the cluster must do."""

    def contains(self, topic_id: bytes, partition: int) -> bool:
        """Return True."""
        return True


class StaticTopics:
    """Knows the topics it was given, as topic id to number of partitions."""

    def __init__(self, partitions_of: Mapping[bytes, int]) -> None:
        self._partitions_of = dict(partitions_of)

    def contains(self, topic_id: bytes, partition: int) -> bool:
        """Tell whether the topic is listed and has this partition."""
        return partition < self._partitions_of.get(topic_id, 0)
