"""Cache the names of user topics by topic id."""

import logging
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from protocol.state_records import topic_id_text

_logger = logging.getLogger(__name__)

_NAMES_MAX = 10_000


class TopicNames(Protocol):
    """The query of the cache; implemented by `coordinator.cluster.kafka.user_topics`."""

    async def names(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]: ...


class TopicNameCache:
    """Names of topics, which never change. `topics` is None without a cluster."""

    def __init__(self, topics: TopicNames | None) -> None:
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
        try:
            names = await self._topics.names(unknown)
        except Exception as error:
            _logger.debug("Names of user topics are unavailable: %s", error)
            return False
        if len(self._names) > _NAMES_MAX:
            self._names.clear()
        self._names.update(names)
        return True
