"""Compute the lag of a share-partition, and define how to check whether a topic exists in the cluster.

Kafka's own coordinator receives every metadata change. A coordinator outside the cluster does not, so by
default it accepts every topic id in a request.
"""

from typing import Protocol


def compute_lag(start_offset: int, delivery_complete_count: int, end_offset: int | None) -> int | None:
    """Return the lag of a share-partition as Kafka's group coordinator computes it (KIP-1226).

    The lag is None if an argument is unknown, as in Kafka. The end offset may be older than the state, so a
    negative lag is returned as 0.
    """
    if end_offset is None or start_offset < 0 or delivery_complete_count < 0:
        return None
    return max(0, end_offset - start_offset - delivery_complete_count)


class TopicDirectory(Protocol):
    """Returns from memory whether a topic id and partition exist."""

    def contains(self, topic_id: bytes, partition: int) -> bool:
        """Return whether the cluster has this partition of this topic."""


class EveryTopicExists:
    """Treats every topic as existing, for a coordinator without metadata."""

    def contains(self, topic_id: bytes, partition: int) -> bool:
        return True
