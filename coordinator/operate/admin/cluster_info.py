"""Cache topic names and end offsets from the Kafka cluster.

A response waits at most one second for the cluster and contains the names and offsets that are cached by
then. Concurrent requests share one query.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from coordinator.config import Config
from coordinator.errors import CoordinatorError
from coordinator.observe.signals.user_topics import TopicPartition, TopicQueries
from coordinator.process.optional_dependencies import KAFKA_EXTRA

if TYPE_CHECKING:
    from coordinator.cluster.kafka.user_topics import UserTopics

_logger = logging.getLogger(__name__)

Key = TypeVar("Key")
Value = TypeVar("Value")

NO_CLUSTER = "bootstrap.servers is not set"

# Maximum wait of a response for the cluster, and the pause after a failed query.
_WAIT_S = 1.0
_FAILURE_PAUSE_S = 2.0
# The name of a topic id never changes, but an unknown name may become known: the coordinator may be granted
# DESCRIBE on the topic later.
_NAME_REFRESH_S = 60.0
_END_REFRESH_S = 2.0
# Maximum age of end offsets while the cluster does not respond. Names are kept without a limit.
_END_KEPT_S = 10.0
_CACHED_MAX = 100_000


class ClusterInfo(NamedTuple):
    """Topic names by id, and end offsets by topic id and partition; unknown ones are missing."""

    names: Mapping[bytes, str]
    end_offsets: Mapping[TopicPartition, int]


class ClusterInfoCache:
    """Cached results of cluster queries. All methods must be called on one event loop.

    Lookups raise no exception. If the cluster does not answer, entries are missing and `failure` has the
    reason.
    """

    def __init__(self, topics: TopicQueries | None) -> None:
        self._topics = topics
        self._names = self._end_offsets = None
        if topics is not None:
            self._names = _RefreshingCache(topics.topic_names, _NAME_REFRESH_S, float("inf"))
            self._end_offsets = _RefreshingCache(topics.end_offsets, _END_REFRESH_S, _END_KEPT_S)

    @property
    def failure(self) -> str | None:
        """The reason why the last query failed, or None."""
        if self._names is None or self._end_offsets is None:
            return NO_CLUSTER
        return self._names.failure or self._end_offsets.failure

    async def topic_names(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]:
        """Return the topic names that are available within a second."""
        return {} if self._names is None else await self._names.get_all(topic_ids)

    async def topic_id(self, name: str) -> bytes | None:
        """Return the id of a topic if the cluster knows it and answers within a second."""
        if self._topics is None:
            return None
        try:
            async with asyncio.timeout(_WAIT_S):
                return await self._topics.topic_id(name)
        except (CoordinatorError, TimeoutError) as error:
            _logger.debug("The id of topic %s is unavailable: %s", name, error)
            return None

    async def close(self) -> None:
        if self._topics is not None:
            await self._topics.close()

    async def look_up_partitions(self, partitions: Collection[TopicPartition]) -> ClusterInfo:
        """Return the names and end offsets of partitions that are available within a second."""
        if self._end_offsets is None:
            return ClusterInfo({}, {})
        names, ends = await asyncio.gather(
            self.topic_names({topic_id for topic_id, _ in partitions}), self._end_offsets.get_all(partitions)
        )
        return ClusterInfo(names, ends)


def make_user_topics(config: Config) -> "UserTopics | None":
    """Return the source of topic names and end offsets, or None if no cluster is configured."""
    if not config.bootstrap_servers:
        return None
    try:
        from coordinator.cluster.kafka.user_topics import UserTopics
        from coordinator.security.client_security import make_client_security
    except ModuleNotFoundError:
        _logger.warning("Topic names and end offsets are unavailable without aiokafka: %s", KAFKA_EXTRA)
        return None
    return UserTopics(config.bootstrap_servers, security=make_client_security(config))


class _RefreshingCache(Generic[Key, Value]):
    """A cache for one kind of query: batched, one query at a time, refreshed when entries are old."""

    def __init__(
        self,
        ask: Callable[[Collection[Key]], Awaitable[Mapping[Key, Value]]],
        refresh_interval_s: float,
        kept_s: float,
    ) -> None:
        self._ask = ask
        self._refresh_interval_s = refresh_interval_s
        self._kept_s = kept_s
        # By key: the event loop's time of the last query in seconds, and the result or None.
        self._answers: dict[Key, tuple[float, Value | None]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_s = float("-inf")
        self.failure: str | None = None

    async def get_all(self, keys: Collection[Key]) -> dict[Key, Value]:
        """Return the entries that are available within a second; a slower query serves later calls."""
        loop = asyncio.get_running_loop()
        if self._outdated_keys(keys, loop.time()):
            task = loop.create_task(self._refresh_entries(keys))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.wait({task}, timeout=_WAIT_S)
        oldest_s = loop.time() - self._kept_s
        found = {}
        for key in keys:
            asked_s, value = self._answers.get(key, (0.0, None))
            if value is not None and asked_s >= oldest_s:
                found[key] = value
        return found

    def _outdated_keys(self, keys: Collection[Key], now_s: float) -> list[Key]:
        if now_s < self._failed_s + _FAILURE_PAUSE_S:
            return []
        since_s = now_s - self._refresh_interval_s
        never = (float("-inf"), None)
        return [key for key in keys if self._answers.get(key, never)[0] < since_s]

    async def _refresh_entries(self, keys: Collection[Key]) -> None:
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            # The previous query may have included the same keys.
            wanted = self._outdated_keys(keys, loop.time())
            if not wanted:
                return
            try:
                answers = await self._ask(wanted)
            except CoordinatorError as error:
                self.failure = str(error)
                self._failed_s = loop.time()
                return
            self.failure = None
            if len(self._answers) > _CACHED_MAX:
                self._answers.clear()
            now_s = loop.time()
            self._answers.update((key, (now_s, answers.get(key))) for key in wanted)
