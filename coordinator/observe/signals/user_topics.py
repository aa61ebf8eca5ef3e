"""Query the cluster of the user topics: topic names, offsets, and the age of the oldest incomplete record.

If a query fails, the signals that depend on it are unknown.

The age is found from record timestamps. A broker returns the first offset at or after a time (ListOffsets),
which requires DESCRIBE only. The record at a start offset was written before a time if the first offset at or
after that time is larger. A binary search over fixed ages finds the age to within 30 %, with at most six
rounds of requests for all share-partitions.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol, TypeVar

from protocol.state_records import topic_id_text

_logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
TopicPartition = tuple[bytes, int]

_NAMES_MAX = 10_000


class MaxLag(NamedTuple):
    """The share-partition of a group that has the largest lag."""

    records: int
    partition: TopicPartition
    start_offset: int


class TopicQueries(Protocol):
    """Queries about user topics; implemented by `coordinator.cluster.kafka.user_topics.UserTopics`.

    Results omit topics and partitions that are unknown. All queries raise CoordinatorError.
    """

    async def topic_names(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]: ...
    async def topic_id(self, name: str) -> bytes | None: ...
    async def start_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]: ...
    async def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]: ...
    async def offsets_at_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]: ...
    async def close(self) -> None: ...


async def result_or_none(what: str, query: Awaitable[Answer]) -> Answer | None:
    """Return the result of a query, None if it fails for any reason."""
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
    def known_ids(self) -> AbstractSet[bytes]:
        return self._names.keys()

    def name_or_id(self, topic_id: bytes) -> str:
        return self._names.get(topic_id) or topic_id_text(topic_id)

    async def request_unknown(self, topic_ids: AbstractSet[bytes]) -> bool:
        """Request the names that are not known; return False if the cluster does not answer."""
        unknown = topic_ids - self._names.keys()
        if not unknown or self._topics is None:
            return True
        names = await result_or_none("Names of user topics", self._topics.topic_names(unknown))
        if names is None:
            return False
        if len(self._names) > _NAMES_MAX:
            self._names.clear()
        self._names.update(names)
        return True


# The ages that the binary search distinguishes: 1 s, 1.3 s, ... 173 days.
AGES_S = tuple(1.3**step for step in range(63))
# Maximum number of groups with different start offsets whose ages are found for one partition, because a
# request can have only one time for each partition. The ages of further groups stay unknown.
GROUPS_OF_PARTITION_MAX = 4


# Returns for each partition the offset of the first record at or after its time, else -1.
OffsetsAtTimes = Callable[[Mapping[TopicPartition, int]], Awaitable[Mapping[TopicPartition, int]]]


async def find_group_ages(
    offsets_at_times: OffsetsAtTimes, starts: Mapping[str, tuple[TopicPartition, int]], now_ms: int
) -> dict[str, float]:
    """Return the age of the record at one start offset of each group; omit unknown ages."""
    ages: dict[str, float] = {}
    for _ in range(GROUPS_OF_PARTITION_MAX):
        waiting = {group: start for group, start in starts.items() if group not in ages}
        offsets = dict(reversed(waiting.values()))
        if not offsets:
            break
        found = await find_record_ages(offsets_at_times, offsets, now_ms)
        for group, (partition, offset) in waiting.items():
            if offset == offsets[partition] and partition in found:
                ages[group] = found[partition]
        starts = {group: start for group, start in waiting.items() if start[0] in found}
    return ages


async def find_record_ages(
    offsets_at_times: OffsetsAtTimes, start_offsets: Mapping[TopicPartition, int], now_ms: int
) -> dict[TopicPartition, float]:
    """Return the minimum age in whole seconds of each record at these offsets; omit records of unknown age.

    The age of a record that is younger than a second is 0.
    """
    # The binary search: the first `older` ages are at most the age of the record. The ages from `bound` on
    # are higher than the age of the record.
    older = dict.fromkeys(start_offsets, 0)
    bound = dict.fromkeys(start_offsets, len(AGES_S))
    while searched := {each: (older[each] + bound[each]) // 2 for each in older if older[each] < bound[each]}:
        times_ms = {each: now_ms - round(AGES_S[step] * 1000) for each, step in searched.items()}
        found = await offsets_at_times(times_ms)
        for each, step in searched.items():
            offset = found.get(each)
            if offset is None:
                del older[each], bound[each]
            elif offset < 0 or offset > start_offsets[each]:
                older[each] = step + 1
            else:
                bound[each] = step
    return {each: AGES_S[count - 1] if count else 0.0 for each, count in older.items()}
