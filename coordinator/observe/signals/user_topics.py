"""Query the cluster of the user topics, whose failures leave figures unknown, and cache topic names."""

import logging
from collections.abc import Awaitable, Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol, TypeVar

from protocol.state_records import topic_id_text

_logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
TopicPartition = tuple[bytes, int]

_NAMES_MAX = 10_000


class TopicQueries(Protocol):
    """The queries of the signals; `coordinator.cluster.kafka.user_topics.UserTopics` implements them."""

    async def names(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]: ...
    async def start_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]: ...
    async def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]: ...
    async def offsets_at_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]: ...


async def answer_or_none(what: str, query: Awaitable[Answer]) -> Answer | None:
    """Return the answer of the cluster, None if the query fails for any reason."""
    try:
        return await query
    except Exception as error:
        _logger.debug("%s are unavailable: %s", what, error)
        return None


class TopicNameCache:
    """Names of topics, which never change. `topics` is None without a cluster."""

    def __init__(self, topics: TopicQueries | None) -> None:
        self._topics = topics
        self._names: dict[bytes, str] = {}

    @property
    def known(self) -> AbstractSet[bytes]:
        """The topic ids whose names are known."""
        return self._names.keys()

    def get(self, topic_id: bytes) -> str:
        """Return the name of a topic, or its id as text."""
        return self._names.get(topic_id) or topic_id_text(topic_id)

    async def add(self, topic_ids: AbstractSet[bytes]) -> bool:
        """Request the names that are not known; return False if the cluster does not answer."""
        unknown = topic_ids - self._names.keys()
        if not unknown or self._topics is None:
            return True
        names = await answer_or_none("Names of user topics", self._topics.names(unknown))
        if names is None:
            return False
        if len(self._names) > _NAMES_MAX:
            self._names.clear()
        self._names.update(names)
        return True
