"""Compute the signals of all share groups periodically, with data from earlier passes.

A pass reads the whole state in slices, between which the event loop serves brokers. Passes take at most 10 %
of the CPU time of a processor. A pass waits for offsets and members for at most `QUERIES_S`.
The stored data per share-partition (when its start offset last moved) is limited by `REMEMBERED_MAX`.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from copy import copy
from heapq import nlargest
from itertools import islice
from typing import Any

from coordinator.cluster.topics import compute_lag
from coordinator.observe.signals.append_sample import AppendSampler
from coordinator.observe.signals.changes import COMPLETE, COUNTED, RecordCounts, compute_change
from coordinator.observe.signals.detectors import (
    GroupSignals,
    Problem,
    SignalEvent,
    SignalLimits,
    find_problem,
)
from coordinator.observe.signals.group_shards import GroupShards
from coordinator.observe.signals.losses import LossCounter, ReadSkips, StartOffsetHistory
from coordinator.observe.signals.missing_access import MissingAccess
from coordinator.observe.signals.user_topics import (
    Answer,
    MaxLag,
    TopicNameCache,
    TopicPartition,
    TopicQueries,
    find_group_ages,
    result_or_none,
)
from coordinator.process.clock import cpu_seconds
from coordinator.serve.state_view import StateView
from coordinator.shard import Shard, ShareState
from protocol.routing import state_partition
from protocol.state_batches import unpack
from protocol.state_records import SharePartitionKey, StateRecord

_logger = logging.getLogger(__name__)

PASS_INTERVAL_S = 5.0
# The pause after a pass is at least this many times its CPU time.
PAUSE_PER_PASS = 10.0
# How long a pass waits for offsets and members. Signals that need further responses are unknown.
QUERIES_S = 30.0
REMEMBERED_MAX = 200_000
# Number of share-partitions whose end offsets are requested together.
SLICE = 1_000
# Maximum number of groups whose oldest record is searched in one pass; those with the largest lag come first.
AGES_MAX = 100
# Maximum number of groups whose members are requested in one pass; those with the largest lag come first.
MEMBERS_ASKED_MAX = 1_000
EVENTS_MAX = 1_000
# Rates are means over the time between two passes, smoothed so that one pass without failures hides no
# problem.
_SMOOTHING = 0.5


class SignalMonitor:
    """Reads a `StateView` every `PASS_INTERVAL_S` seconds; `groups` has the result of the last pass."""

    def __init__(
        self,
        view: StateView,
        *,
        topics: TopicQueries | None,
        members: Callable[[Collection[str]], Awaitable[Mapping[str, int]]] | None,
        now_ms: Callable[[], int],
        limits: SignalLimits | None = None,
        on_event: Callable[[SignalEvent], None] = lambda event: None,
        sample: AppendSampler | None = None,
        read_skips: ReadSkips | None = None,
    ) -> None:
        """Create a monitor.

        An observer calls `on_record_followed`. A coordinator passes the appends to `sample`, calls
        `on_shard_loaded`, and reads skips of start offsets from its log with `read_skips`.
        """
        self.groups: dict[str, GroupSignals] = {}
        self.events: deque[SignalEvent] = deque(maxlen=EVENTS_MAX)
        self.missing_access = MissingAccess()
        self._view = view
        self._topics = topics
        self._members = members
        self._now_ms = now_ms
        self._limits = limits or SignalLimits()
        self._on_event = on_event
        self._sample = sample
        self._losses = LossCounter(topics, now_ms, read_skips)
        self._moved: dict[SharePartitionKey, StartOffsetHistory] = {}
        self._counts: defaultdict[str, RecordCounts] = defaultdict(RecordCounts)
        # Shards that were loaded since the last pass began.
        self._loaded: dict[SharePartitionKey, StartOffsetHistory] = {}
        self._most_lag: dict[str, MaxLag] = {}
        self._rates: dict[str, list[float]] = {}
        self._last_pass_s: float | None = None
        self._outdated: Collection[int] = ()
        self._queries_left_s = QUERIES_S
        self._shards = GroupShards()
        # Groups without the end offsets of some share-partitions in this pass.
        self._groups_without_ends: set[str] = set()
        self._stuck: dict[str, TopicPartition] = {}
        self._names = TopicNameCache(topics)
        # Topics without any end offset in this pass.
        self._hidden_topics: set[bytes] = set()

    async def run(self) -> None:
        while True:
            loop = asyncio.get_running_loop()
            began_cpu_s, began_s = cpu_seconds(), loop.time()
            try:
                await self.compute_signals()
            except Exception:
                _logger.exception("The signals of share groups could not be computed; retrying.")
            # The process serves brokers while a pass waits for responses.
            waited_s = QUERIES_S - self._queries_left_s
            busy_s = min(cpu_seconds() - began_cpu_s, loop.time() - began_s - waited_s)
            await asyncio.sleep(max(PASS_INTERVAL_S, PAUSE_PER_PASS * busy_s))

    def on_record_followed(
        self, key: SharePartitionKey, before: ShareState | None, record: StateRecord
    ) -> None:
        """Count the user records that a log record changed."""
        change = compute_change(before, record)
        if change.counts:
            self._counts[key.group_id].add(change.counts)
        if change.skipped:
            self._losses.record_skip(key, change.skipped, change.skipped_to)
        if change.is_reset:
            self._moved.pop(key, None)

    def on_shard_loaded(self, shard: Shard) -> None:
        """Remember the start offsets of a shard before its first write, which may skip records."""
        if self._topics is None:
            return
        now_s = asyncio.get_running_loop().time()
        left = max(0, REMEMBERED_MAX - len(self._loaded))
        self._loaded.update(
            # Counting the completed records would take too long here.
            (key, StartOffsetHistory(state.start_offset, now_s, complete=0))
            for key, state in islice(shard.items(), left)
        )

    async def close(self) -> None:
        """Stop reading the log."""
        await self._losses.close()

    async def compute_signals(self) -> None:
        """Compute the signals of all groups once; keep the last ones if the whole state is outdated."""
        self._outdated = self._view.outdated_partitions()
        if len(self._outdated) == self._view.state_partitions:
            return
        began_s = asyncio.get_running_loop().time()
        self._queries_left_s = QUERIES_S
        self._shards.begin_pass(self._view.owned_shards())
        # A pass that failed has left its values.
        self._groups_without_ends.clear()
        self._most_lag.clear()
        self._stuck.clear()
        groups: dict[str, GroupSignals] = {}
        moved: dict[SharePartitionKey, StartOffsetHistory] = {}
        self._add_loaded_shards()
        part: list[tuple[SharePartitionKey, ShareState]] = []
        async for entry in self._view.share_partitions():
            part.append(entry)
            if len(part) == SLICE:
                await self._add_share_partitions(part, groups, moved, began_s)
                part.clear()
        await self._add_share_partitions(part, groups, moved, began_s)
        for group in self._groups_without_ends:
            groups[group].lag = -1
            self._most_lag.pop(group, None)
        # A shard that is loaded again has no states meanwhile.
        reloading = self._shards.keep_reloading(self._outdated)
        for group in reloading & self.groups.keys():
            groups.setdefault(group, copy(self.groups[group]))
        if self._outdated:
            moved = {key: each for key, each in self._moved.items() if self._is_state_outdated(key)} | moved
        self._moved = moved
        hidden, self._hidden_topics = self._hidden_topics, set()
        if await self._names.request_unknown(hidden):
            self.missing_access.set_topics(hidden - self._names.known_ids)
        if self._sample is not None:
            for group, counts in (await self._sample.take_counts()).items():
                self._counts[group].add(counts)
        await self._losses.count_losses(self._view.state_partitions)
        self._add_rates(groups, began_s)
        await self._add_record_ages(groups)
        await self._add_member_counts(groups)
        await self._add_stuck_topics(groups)
        for signals in groups.values():
            self._losses.add_losses_to(signals)
            signals.problem, signals.message = find_problem(signals, self._limits)
            self._keep_unverified_problem(signals, is_reloading=signals.group in reloading)
        self._emit_problem_events(groups, self._shards.moving(self._view.owned_shards()))
        self.groups = groups

    def _add_loaded_shards(self) -> None:
        loaded, self._loaded = self._loaded, {}
        for key, entry in loaded.items():
            known = self._moved.get(key)
            # After a failed append, a shard is loaded again, although the monitor knows its share-partitions.
            if known is None or entry.start_offset < known.start_offset:
                self._moved[key] = entry

    async def _add_share_partitions(
        self,
        part: list[tuple[SharePartitionKey, ShareState]],
        groups: dict[str, GroupSignals],
        moved: dict[SharePartitionKey, StartOffsetHistory],
        now_s: float,
    ) -> None:
        ends = await self._request_end_offsets([(key.topic_id, key.partition) for key, _ in part])
        if ends is not None:
            self._hidden_topics |= {key.topic_id for key, _ in part} - {topic_id for topic_id, _ in ends}
        for key, state in part:
            signals = groups.get(key.group_id)
            if signals is None:
                signals = groups[key.group_id] = GroupSignals(group=key.group_id)
            if ends is None:
                self._groups_without_ends.add(key.group_id)
            end = None if ends is None else ends.get((key.topic_id, key.partition))
            self._shards.add(key, self._view.state_partitions)
            self._add_share_partition(signals, key, state, end, now_s, moved)

    async def _request_end_offsets(
        self, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, int] | None:
        if self._topics is None or not partitions:
            return None
        return await self._request("End offsets of user topics", self._topics.end_offsets, set(partitions))

    async def _request(
        self, what: str, query: Callable[..., Awaitable[Answer]], *arguments: Any
    ) -> Answer | None:
        """Return the result of a query, None if it fails or the time of this pass for queries is used up."""
        if self._queries_left_s <= 0:
            return None
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(self._queries_left_s):
                return await result_or_none(what, query(*arguments))
        except TimeoutError:
            return None
        finally:
            self._queries_left_s -= loop.time() - began_s

    def _add_share_partition(
        self,
        signals: GroupSignals,
        key: SharePartitionKey,
        state: ShareState,
        end_offset: int | None,
        now_s: float,
        moved: dict[SharePartitionKey, StartOffsetHistory],
    ) -> None:
        limit = self._limits.delivery_count_limit
        in_flight = last_in_flight = complete = 0
        for first, last, delivery_state, delivery_count in unpack(state.batches):
            records = last - first + 1
            in_flight += records
            last_in_flight = last
            if delivery_state in COMPLETE:
                complete += records
            signals.delivery_count_max = max(signals.delivery_count_max, delivery_count)
            if delivery_count > 1:
                signals.redelivered += records
            # A completed record is not delivered again, whatever its delivery count is.
            if delivery_count >= limit - 1 and delivery_state == 0:
                signals.near_delivery_limit += records
        signals.share_partitions += 1
        signals.in_flight += in_flight
        # The window begins at the start offset, even if its first records have no state.
        window = last_in_flight - state.start_offset + 1 if in_flight else 0
        signals.window_usage = max(signals.window_usage, window / self._limits.window_records)
        # Brokers before 4.2 send no delivery complete count (KIP-1226); the batches yield the same number.
        known_complete = state.delivery_complete_count if state.delivery_complete_count >= 0 else complete
        lag = compute_lag(state.start_offset, known_complete, end_offset)
        if lag is not None:
            signals.lag = max(0, signals.lag) + lag
            if lag > self._most_lag.get(key.group_id, MaxLag(0, (b"", 0), 0)).records:
                self._most_lag[key.group_id] = MaxLag(lag, (key.topic_id, key.partition), state.start_offset)
        waits = lag > 0 if lag is not None else in_flight > 0
        before = self._moved.get(key)
        if before is not None and state.start_offset > before.start_offset + before.complete:
            self._losses.record_jump(key, before.start_offset, state.start_offset)
        if waits:
            since_s = now_s
            if before is not None and before.start_offset == state.start_offset:
                since_s = before.since_s
                if self._last_pass_s is not None and self._is_state_outdated(key):
                    # The start offset may have moved while the state was outdated.
                    since_s += now_s - self._last_pass_s
            before = StartOffsetHistory(state.start_offset, since_s, complete)
            if len(moved) < REMEMBERED_MAX:
                moved[key] = before
            # Without in-flight records, no record prevents the start offset from moving: there is no
            # consumer.
            if in_flight and now_s - before.since_s > signals.stuck_s:
                signals.stuck_s = now_s - before.since_s
                self._stuck[key.group_id] = key.topic_id, key.partition

    def _is_state_outdated(self, key: SharePartitionKey) -> bool:
        return bool(self._outdated) and state_partition(key, self._view.state_partitions) in self._outdated

    def _add_rates(self, groups: dict[str, GroupSignals], now_s: float) -> None:
        counts, self._counts = self._counts, defaultdict(RecordCounts)
        last_pass_s, self._last_pass_s = self._last_pass_s, now_s
        if last_pass_s is None:
            return
        seconds = max(now_s - last_pass_s, 0.001)
        rates: dict[str, list[float]] = {}
        for group, signals in groups.items():
            fresh = [counts[group][state] / seconds if group in counts else 0.0 for state in COUNTED]
            old = self._rates.get(group, fresh)
            rates[group] = [
                _SMOOTHING * new + (1 - _SMOOTHING) * last for new, last in zip(fresh, old, strict=True)
            ]
            signals.acknowledged_rate, signals.released_rate, signals.rejected_rate = rates[group]
        self._rates = rates

    async def _add_record_ages(self, groups: dict[str, GroupSignals]) -> None:
        lags, self._most_lag = self._most_lag, {}
        for signals in groups.values():
            if signals.lag == 0:
                signals.oldest_record_age_s = 0.0
        asked = nlargest(AGES_MAX, lags.items(), key=lambda each: groups[each[0]].lag)
        if self._topics is None or not asked:
            return
        starts = {group: (lag.partition, lag.start_offset) for group, lag in asked}
        ages = await self._request(
            "Ages of records", find_group_ages, self._topics.offsets_at_times, starts, self._now_ms()
        )
        for group, age_s in (ages or {}).items():
            groups[group].oldest_record_age_s = age_s

    async def _add_stuck_topics(self, groups: dict[str, GroupSignals]) -> None:
        stuck, self._stuck = self._stuck, {}
        waited_s = self._limits.stuck_s
        await self._names.request_unknown(
            {stuck[group][0] for group in stuck if groups[group].stuck_s >= waited_s}
        )
        for group, (topic_id, partition) in stuck.items():
            groups[group].stuck_at = f"{self._names.name_or_id(topic_id)}-{partition}"

    async def _add_member_counts(self, groups: dict[str, GroupSignals]) -> None:
        if self._members is None:
            return
        asked = nlargest(MEMBERS_ASKED_MAX, groups.values(), key=lambda each: each.lag)
        if not asked:
            return
        groups_asked = [each.group for each in asked]
        members = await self._request("Members of share groups", self._members, groups_asked) or {}
        for signals in asked:
            signals.members = members.get(signals.group, -1)

    def _keep_unverified_problem(self, signals: GroupSignals, *, is_reloading: bool) -> None:
        """Keep a problem while a shard is loaded again, `no consumers` while lag or members are unknown."""
        before = self.groups.get(signals.group)
        if before is None or signals.problem is not Problem.NONE:
            return
        is_unknown = signals.lag < 0 or (signals.lag > 0 and signals.members < 0)
        if is_reloading or (is_unknown and before.problem is Problem.NO_CONSUMERS):
            signals.problem, signals.message = before.problem, before.message

    def _emit_problem_events(self, groups: dict[str, GroupSignals], moving: set[str]) -> None:
        now_ms = self._now_ms()
        # The problem of a deleted group has ended, too, but not that of a group with shards of a new owner.
        for group in self.groups | groups:
            before = self.groups[group].problem if group in self.groups else Problem.NONE
            after = groups[group].problem if group in groups else Problem.NONE
            if before is after:
                continue
            if before is not Problem.NONE and group not in moving:
                message = f"group {group} no longer has the problem {before.label}"
                self._emit_event(SignalEvent(now_ms, group, before.label, began=False, message=message))
            if after is not Problem.NONE:
                message = groups[group].message
                self._emit_event(SignalEvent(now_ms, group, after.label, began=True, message=message))

    def _emit_event(self, event: SignalEvent) -> None:
        self.events.append(event)
        self._on_event(event)
