"""A topic directory with a fixed content. The coordinator uses `EveryTopicExists` instead."""

from collections.abc import Mapping


class StaticTopics:
    """A directory of the given topics and their numbers of partitions."""

    def __init__(self, partitions_of: Mapping[bytes, int]) -> None:
        self._partitions_of = dict(partitions_of)

    def contains(self, topic_id: bytes, partition: int) -> bool:
        return partition < self._partitions_of.get(topic_id, 0)
