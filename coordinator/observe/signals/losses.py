"""Count user records that retention deleted before their delivery.

A start offset that passes incomplete records skips them. If the log of the user topic begins at the new start
offset or later, retention deleted the skipped records, so they are lost.

An observer reports each skip, because it follows all records of the state log. A coordinator compares start
offsets between two passes, and reports each jump that the completed records do not explain. If retention
deleted records that the start offset passed, `ReadSkips` reads the skips from the log. These reads of the log
are rare.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from coordinator.errors import CoordinatorError
from coordinator.observe.signals.detectors import GroupSignals
from coordinator.observe.signals.user_topics import TopicPartition, TopicQueries, result_or_none
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

_logger = logging.getLogger(__name__)

# Maximum number of partitions in a request for log start offsets.
REQUEST_PARTITIONS_MAX = 1_000
# The pause after reading logs is at least this many times its duration.
PAUSE_PER_READ = 10.0


class StartOffsetHistory(NamedTuple):
    """The start offset of a share-partition at the last pass.

    The start offset has not moved since `since_s`. `complete` is the number of completed records above the
    start offset.
    """

    start_offset: int
    since_s: float
    complete: int


class LoggedSkips(NamedTuple):
    """The skips of a share-partition, and its last start offset in the log (None if it was deleted).

    A skip is a pair: the number of user records that were not completed when the start offset moved past
    them, and this start offset.
    """

    start_offset: int | None
    skips: list[tuple[int, int]]


# Reads the log of one state partition; returns the skips of each share-partition whose start offset before
# the skip was at least the given one. Raises CoordinatorError.
ReadSkips = Callable[
    [int, Mapping[SharePartitionKey, int]], Awaitable[Mapping[SharePartitionKey, LoggedSkips]]
]


class _StartOffsetJump(NamedTuple):
    """A start offset moved from `from_offset` to `end_offset`; `is_repeated` if the log was read before."""

    from_offset: int
    end_offset: int
    is_repeated: bool = False


class LossCounter:
    """Counts lost records by group. Without a cluster, `topics` is None and no losses are counted."""

    def __init__(
        self, topics: TopicQueries | None, now_ms: Callable[[], int], read_skips: ReadSkips | None = None
    ) -> None:
        self._topics = topics
        self._now_ms = now_ms
        self._read_skips = read_skips
        self._skips: list[tuple[SharePartitionKey, int, int]] = []
        self._jumps: dict[SharePartitionKey, _StartOffsetJump] = {}
        self._reading: asyncio.Task[None] | None = None
        self._read_after_s = 0.0
        # Number of lost records and the time of the last loss, by group.
        self._lost: dict[str, tuple[int, int]] = {}

    def record_skip(self, key: SharePartitionKey, records: int, skipped_to: int) -> None:
        self._skips.append((key, records, skipped_to))

    def record_jump(self, key: SharePartitionKey, from_offset: int, end_offset: int) -> None:
        """Record that a start offset moved. The log shows whether it passed incomplete records."""
        if self._read_skips is not None:
            known = self._jumps.get(key, _StartOffsetJump(from_offset, end_offset))
            self._jumps[key] = known._replace(end_offset=end_offset)

    def add_losses_to(self, signals: GroupSignals) -> None:
        """Set the number of lost records of a group, and the age of the last loss."""
        lost = self._lost.get(signals.group)
        if lost is not None:
            signals.lost_records = lost[0]
            signals.lost_age_s = max(0.0, (self._now_ms() - lost[1]) / 1000)

    async def count_losses(self, state_partitions: int) -> None:
        """Count the reported skips that retention caused; start to read the log if jumps were reported."""
        loop = asyncio.get_running_loop()
        is_reading = self._reading is not None and not self._reading.done()
        if self._jumps and not is_reading and loop.time() >= self._read_after_s:
            self._reading = asyncio.create_task(self._read_skips_of_jumps(state_partitions), name="losses")
        skips, self._skips = self._skips, []
        log_starts = await self._request_log_starts(key for key, _, _ in skips)
        for key, records, skipped_to in skips:
            if log_starts.get((key.topic_id, key.partition), -1) >= skipped_to:
                lost, _ = self._lost.get(key.group_id, (0, 0))
                self._lost[key.group_id] = lost + records, self._now_ms()

    async def close(self) -> None:
        """Stop reading the log."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read_skips_of_jumps(self, state_partitions: int) -> None:
        jumps, self._jumps = self._jumps, {}
        log_starts = await self._request_log_starts(jumps)
        offsets: defaultdict[int, dict[SharePartitionKey, int]] = defaultdict(dict)
        for key, jump in jumps.items():
            if log_starts.get((key.topic_id, key.partition), -1) > jump.from_offset:
                offsets[state_partition(key, state_partitions)][key] = jump.from_offset
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for number, from_offsets in offsets.items():
            try:
                assert self._read_skips is not None
                found = await self._read_skips(number, from_offsets)
            except (CoordinatorError, OSError) as error:
                _logger.warning(
                    "State partition %d cannot be read, so lost records are not counted: %s", number, error
                )
                continue
            for key, logged in found.items():
                # Skips beyond the end of this jump belong to the next jump.
                end = jumps[key].end_offset
                self._skips += [(key, records, to) for records, to in logged.skips if to <= end]
                self._retry_jump(key, jumps[key], logged.start_offset)
        self._read_after_s = loop.time() + PAUSE_PER_READ * (loop.time() - began_s)

    def _retry_jump(self, key: SharePartitionKey, jump: _StartOffsetJump, logged_offset: int | None) -> None:
        """Read the log once more if the append with the end of the jump was still in flight."""
        if logged_offset is not None and logged_offset < jump.end_offset and not jump.is_repeated:
            end_offset = self._jumps[key].end_offset if key in self._jumps else jump.end_offset
            from_offset = max(jump.from_offset, logged_offset)
            self._jumps[key] = _StartOffsetJump(from_offset, end_offset, is_repeated=True)

    async def _request_log_starts(self, keys: Iterable[SharePartitionKey]) -> Mapping[TopicPartition, int]:
        partitions = list({(key.topic_id, key.partition) for key in keys})
        starts: dict[TopicPartition, int] = {}
        if self._topics is None:
            return starts
        for at in range(0, len(partitions), REQUEST_PARTITIONS_MAX):
            query = self._topics.start_offsets(partitions[at : at + REQUEST_PARTITIONS_MAX])
            found = await result_or_none("Log start offsets of user topics", query)
            if found is None:
                break
            starts |= found
        return starts
