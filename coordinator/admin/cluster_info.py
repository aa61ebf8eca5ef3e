"""What the cluster says of the topics that share groups consume: names, and where partitions end.

Nobody waits long for it: an answer over HTTP has what is known by then, the rest comes with the next one. All
who look share one question and its answer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from coordinator.config import Config
from coordinator.errors import CoordinatorError
from coordinator.optional_dependencies import KAFKA_EXTRA

_logger = logging.getLogger(__name__)

TopicPartition = tuple[bytes, int]
Key = TypeVar("Key")
Value = TypeVar("Value")

NO_CLUSTER = "bootstrap.servers is not set"

# How long an answer over HTTP waits for the cluster, and how long a cluster that failed is left in peace.
_WAIT_S = 1.0
_FAILURE_PAUSE_S = 2.0
# A name never changes, but a topic may come to be visible.
_NAME_REFRESH_S = 60.0
_END_REFRESH_S = 2.0
# While the cluster does not answer, names stay, and end offsets are soon not known any more.
_END_KEPT_S = 10.0
_CACHED_MAX = 100_000


class Topics(Protocol):
    """The cluster, as `coordinator.kafka.user_topics` asks it."""

    async def names(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]:
        """Return the names of these topics as far as they can be had. Raises CoordinatorError."""
        ...

    async def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offsets of these partitions as far as they can be had. Raises CoordinatorError."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class ClusterInfo(NamedTuple):
    """Names by topic id, end offsets by topic id and partition. What is not known is not in it."""

    names: Mapping[bytes, str]
    end_offsets: Mapping[TopicPartition, int]


class ClusterInfoCache:
    """The cluster's answers, each kept for a moment. Used on one event loop; never raises."""

    def __init__(self, topics: Topics | None) -> None:
        self._names = self._end_offsets = None
        if topics is not None:
            self._names = _RefreshingCache(topics.names, _NAME_REFRESH_S, float("inf"))
            self._end_offsets = _RefreshingCache(topics.end_offsets, _END_REFRESH_S, _END_KEPT_S)

    @property
    def failure(self) -> str | None:
        """Why nothing new is known of the cluster, or None."""
        if self._names is None or self._end_offsets is None:
            return NO_CLUSTER
        return self._names.failure or self._end_offsets.failure

    async def names(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]:
        """Return the names of topics that are known within a moment."""
        return {} if self._names is None else await self._names.get_all(topic_ids)

    async def lookup(self, partitions: Collection[TopicPartition]) -> ClusterInfo:
        """Return names and end offsets of partitions that are known within a moment."""
        if self._end_offsets is None:
            return ClusterInfo({}, {})
        names, ends = await asyncio.gather(
            self.names({topic_id for topic_id, _ in partitions}), self._end_offsets.get_all(partitions)
        )
        return ClusterInfo(names, ends)


def make_user_topics(config: Config) -> Topics | None:
    """Make the way to the names and end offsets of users' topics, which only people who watch need."""
    if not config.bootstrap_servers:
        return None
    try:
        from coordinator.kafka.user_topics import UserTopics
        from coordinator.security.client_security import make_client_security
    except ModuleNotFoundError:
        _logger.warning("no names of topics without aiokafka: %s", KAFKA_EXTRA)
        return None
    return UserTopics(config.bootstrap_servers, security=make_client_security(config))


class _RefreshingCache(Generic[Key, Value]):
    """Answers to questions of one kind: asked together, one at a time, and again when they are old."""

    def __init__(
        self,
        ask: Callable[[Collection[Key]], Awaitable[Mapping[Key, Value]]],
        refresh_interval_s: float,
        kept_s: float,
    ) -> None:
        self._ask = ask
        self._refresh_interval_s = refresh_interval_s
        self._kept_s = kept_s
        # When each was asked, and the answer; None is an answer too.
        self._answers: dict[Key, tuple[float, Value | None]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_s = float("-inf")
        self.failure: str | None = None

    async def get_all(self, keys: Collection[Key]) -> dict[Key, Value]:
        """Return what is known of these within a moment; what takes longer is there for who asks next."""
        loop = asyncio.get_running_loop()
        if self._outdated(keys, loop.time()):
            task = loop.create_task(self._refresh(keys))
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

    def _outdated(self, keys: Collection[Key], now_s: float) -> list[Key]:
        if now_s < self._failed_s + _FAILURE_PAUSE_S:
            return []
        since_s = now_s - self._refresh_interval_s
        never = (float("-inf"), None)
        return [key for key in keys if self._answers.get(key, never)[0] < since_s]

    async def _refresh(self, keys: Collection[Key]) -> None:
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            # Who waited here finds most of it answered.
            wanted = self._outdated(keys, loop.time())
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
