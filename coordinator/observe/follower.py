"""Follow the state log of a cluster read-only, and keep the state that it contains in memory.

Each state partition is replayed from its log start into a shard and then followed at its end. The shards are
a cache of the log, as in a coordinator. If the log was pruned past the follower's position, the shard is
replayed again from the log start. During the replay, the old state stays visible, marked LOADING.

For each broker, a task fetches all partitions that the broker leads, with a long poll. A broker that does not
answer therefore delays only its own partitions.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from math import inf
from typing import TYPE_CHECKING

from coordinator.cluster.kafka.broker_results import NO_NODE, FetchResult, NoResponse
from coordinator.errors import CoordinatorError, LogRefused
from coordinator.log.claims import FencingFilter
from coordinator.log.kafka.replay import keep_valid_records
from coordinator.metrics import ShardView
from coordinator.process.freed_memory import trim_heap
from coordinator.serve.runtime.replay import Replay, make_replays
from coordinator.shard import Shard, ShareState, SnapshotPolicy
from protocol.errors import DecodeError, ErrorCode
from protocol.record_batch import batch_size_at, decode_batches, next_offset_at
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord, decode_record

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

_logger = logging.getLogger(__name__)

# The channel (connection) of all requests; see `coordinator.cluster.kafka.brokers`.
CHANNEL = "observe"
FETCH_BYTES_MAX = 4 << 20
# How long a broker waits for new records before it answers a fetch.
FETCH_WAIT_MS = 500
# A partition without a response for this time is outdated; usually there is one every `FETCH_WAIT_MS`.
OUTDATED_S = 5.0
# Bytes of batches that are replayed before yielding to the event loop: about 10 ms.
SLICE_BYTES = 64 << 10
# Number of states that are visited before yielding to the event loop.
VIEW_SLICE = 2_000
_RETRY_S = 0.5
_RETRY_MAX_S = 10.0
# The interval between checks for a topic that does not exist yet.
_NO_TOPIC_S = 2.0


class _FollowedPartition:
    """One state partition: its shard and the position in its log."""

    def __init__(self, number: int, policy: SnapshotPolicy) -> None:
        self.number = number
        self.policy = policy
        self.shard = Shard(number, policy)
        self.failure: str | None = None
        self.position: int | None = None
        self.log_start = 0
        self.fetched_s = -inf
        # After an error, the partition is not fetched before this time.
        self.retry_s = -inf
        self.load_ms = 0
        self.loaded_records = 0
        self.caught_up_once = False
        self.validity = FencingFilter()
        # The replay in progress, the shard that it fills, its end offset and its start time.
        self.replay: Replay | None = None
        self.replayed = self.shard
        self.replay_end = 0
        self.replay_began_s = 0.0

    @property
    def status(self) -> str:
        if self.failure is not None:
            return "FAILED"
        return "ACTIVE" if self.replay is None and self.position is not None else "LOADING"

    def begin_replay(self, start: int, end: int, replay: Replay, shard: Shard, now_s: float) -> None:
        self.position, self.log_start, self.replay_end = start, start, end
        self.validity = FencingFilter()
        self.replay, self.replayed, self.replay_began_s = replay, shard, now_s
        self.loaded_records = 0

    def restart_replay(self) -> None:
        """Drop the position: the partition is replayed again from its log start."""
        self.position, self.replay = None, None


class LogFollower:
    """Follows all partitions of a state topic. While `run` is active, all other methods may be called."""

    def __init__(self, cluster: "Brokers", topic: str) -> None:
        """Create the object without connecting. `cluster` is a client for the topic of this name."""
        # Called with each followed record, but not during a replay: key, previous state, record.
        self.on_record_followed: Callable[[SharePartitionKey, ShareState | None, StateRecord], None]
        self.on_record_followed = lambda key, before, record: None
        self._cluster = cluster
        self._topic = topic
        self._partitions: list[_FollowedPartition] = []
        self._failure: str | None = "The cluster was not reached yet."
        self._topic_exists: bool | None = None

    # Following.

    async def run(self) -> None:
        """Follow the log until cancelled. Errors of the cluster are reported by `health` and retried."""
        retry_s = _RETRY_S
        while True:
            try:
                if await self._find_topic():
                    await self._fetch_from_leaders()
                retry_s = _RETRY_S
                await asyncio.sleep(_NO_TOPIC_S)
            except Exception as error:
                if not isinstance(error, CoordinatorError):
                    _logger.exception("Internal error while following topic %s; retrying.", self._topic)
                elif str(error) != self._failure:
                    _logger.warning(
                        "Cannot follow topic %s: %s; retrying.", self._topic, str(error).rstrip(".")
                    )
                self._failure = str(error)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_MAX_S)

    async def close(self) -> None:
        await self._cluster.close()

    async def _find_topic(self) -> bool:
        """Find the partitions of the topic; return False if it does not exist yet."""
        await self._cluster.connect()
        try:
            topic = await self._cluster.describe_topic()
        except LogRefused as error:
            raise LogRefused(
                f"{str(error).rstrip('.')}. Add the ACL: Describe on topic {self._topic}."
            ) from None
        self._failure = None
        if topic is None:
            if self._topic_exists is not False:
                _logger.info(
                    "Topic %s does not exist yet. Kafka creates it for the first share group.", self._topic
                )
            self._topic_exists = False
            self._partitions = []
            return False
        self._topic_exists = True
        self._cluster.pin_topic_id()
        if self._partitions and len(self._partitions) != topic.partitions:
            # With another partition count, keys move between partitions, so the old state is invalid.
            self._partitions = []
        if not self._partitions:
            policy = SnapshotPolicy()
            self._partitions = [_FollowedPartition(number, policy) for number in range(topic.partitions)]
        return True

    async def _fetch_from_leaders(self) -> None:
        """Keep one fetching task for each broker that leads a partition."""
        tasks: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                leaders = {self._cluster.leader(each.number) for each in self._partitions}
                if NO_NODE in leaders:
                    self._cluster.refresh_soon()
                for node in leaders - {NO_NODE} - tasks.keys():
                    tasks[node] = asyncio.create_task(self._follow_node(node), name=f"follow broker {node}")
                done, _ = await asyncio.wait(
                    tasks.values() or [asyncio.create_task(asyncio.sleep(_RETRY_S))], timeout=_RETRY_S
                )
                for node, task in list(tasks.items()):
                    if task in done:
                        del tasks[node]
                        task.result()
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _follow_node(self, node: int) -> None:
        """Fetch the partitions that this broker leads; return when it leads none."""
        while led := [each for each in self._partitions if self._cluster.leader(each.number) == node]:
            now_s = asyncio.get_running_loop().time()
            led = [each for each in led if each.retry_s <= now_s]
            try:
                await self._begin_replays(node, [each for each in led if each.position is None])
                positions = {each.number: each.position for each in led if each.position is not None}
                if not positions:
                    await asyncio.sleep(_RETRY_S)
                    continue
                fetched = await self._cluster.fetch(
                    node, CHANNEL, positions, FETCH_BYTES_MAX, max_wait_ms=FETCH_WAIT_MS
                )
            except NoResponse:
                self._cluster.refresh_soon()
                await asyncio.sleep(_RETRY_S)
                continue
            for each in led:
                # After a change of the leader, the new leader's records may have been replayed meanwhile.
                if each.number in fetched and each.position == positions.get(each.number):
                    await self._replay_response(each, fetched[each.number])

    async def _begin_replays(self, node: int, partitions: list[_FollowedPartition]) -> None:
        if not partitions:
            return
        numbers = [each.number for each in partitions]
        ends = await self._cluster.list_end_offsets(node, CHANNEL, numbers)
        starts = await self._cluster.list_start_offsets(node, CHANNEL, numbers)
        shards = {each.number: Shard(each.number, each.policy) for each in partitions}
        replays = make_replays(shards)
        now_s = asyncio.get_running_loop().time()
        for each in partitions:
            start, end = starts.get(each.number), ends.get(each.number)
            if (
                start is None
                or end is None
                or start.error_code != ErrorCode.NONE
                or end.error_code != ErrorCode.NONE
            ):
                for listed in (start, end):
                    if listed is not None and listed.error_code != ErrorCode.NONE:
                        self._record_partition_error(each, listed.error_code)
                continue
            each.begin_replay(
                start.log_offset, end.log_offset, replays[each.number], shards[each.number], now_s
            )
            if start.log_offset >= end.log_offset:
                self._finish_replay(each)

    async def _replay_response(self, each: _FollowedPartition, answer: FetchResult) -> None:
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            _logger.info("State partition %d was pruned and is replayed from its log start.", each.number)
            each.restart_replay()
        elif answer.error_code != ErrorCode.NONE:
            self._record_partition_error(each, answer.error_code)
        else:
            each.fetched_s = asyncio.get_running_loop().time()
            each.log_start = max(each.log_start, answer.start_offset)
            await self._replay_data(each, answer.data)

    def _record_partition_error(self, each: _FollowedPartition, error_code: int) -> None:
        if error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            each.failure = (
                f"Read on topic {self._topic} is not allowed. Add the ACL: Read on topic {self._topic}."
            )
        each.retry_s = asyncio.get_running_loop().time() + _RETRY_S
        self._cluster.refresh_soon()

    async def _replay_data(self, each: _FollowedPartition, data: bytes) -> None:
        """Replay the complete batches of a response, and advance the position past them.

        Stop if the records of another response are replayed meanwhile.
        """
        at = slice_start = 0
        try:
            while (size := batch_size_at(data, at)) is not None and at + size <= len(data):
                batch = data[at : at + size]
                self._replay_batch(each, batch)
                each.position = position = next_offset_at(data, at)
                at += size
                if at - slice_start >= SLICE_BYTES:
                    slice_start = at
                    await asyncio.sleep(0)
                    if each.position != position:
                        return
        except DecodeError as error:
            failure = f"state partition {each.number} cannot be read at log offset {each.position}: {error}"
            if failure != each.failure:
                _logger.error("%s. Run share-coordinator recovery audit.", failure)
            each.failure = failure
            each.retry_s = asyncio.get_running_loop().time() + _RETRY_MAX_S
            each.restart_replay()
            return
        if each.replay is not None and each.position is not None and each.position >= each.replay_end:
            self._finish_replay(each)
        if each.replay is None:
            each.failure = None

    def _replay_batch(self, each: _FollowedPartition, batch: bytes) -> None:
        for kept in keep_valid_records(batch, each.validity, each.log_start):
            if each.replay is not None:
                each.loaded_records += each.replay.replay_batches(kept)
            else:
                self._apply_batch(each.shard, kept)

    def _apply_batch(self, shard: Shard, batch_bytes: bytes) -> None:
        for batch in decode_batches(batch_bytes):
            for logged in batch.records:
                record = decode_record(logged.key, logged.value)
                if record is None:
                    continue
                before = shard.state(record.key)
                shard.replay(record, logged.offset, logged.timestamp_ms)
                try:
                    self.on_record_followed(record.key, before, record)
                except Exception:
                    _logger.exception("The signals of share group %s cannot be updated.", record.key.group_id)

    def _finish_replay(self, each: _FollowedPartition) -> None:
        each.shard, each.replay = each.replayed, None
        each.load_ms = round((asyncio.get_running_loop().time() - each.replay_began_s) * 1000)
        trim_heap()
        if (
            all(other.caught_up_once or other is each for other in self._partitions)
            and not each.caught_up_once
        ):
            records = sum(other.loaded_records for other in self._partitions)
            _logger.info(
                "Caught up with topic %s.",
                self._topic,
                extra={"state_partitions": len(self._partitions), "records": records},
            )
        each.caught_up_once = True

    # The methods of `coordinator.serve.state_view.StateView`, as in `Runtime`.

    @property
    def state_partitions(self) -> int:
        """The number of partitions of the topic; 1 until it is known."""
        return max(1, len(self._partitions))

    @property
    def initial_load_done(self) -> bool:
        """True once every partition was replayed to its end, or the topic was found not to exist."""
        return self._topic_exists is not None and all(each.caught_up_once for each in self._partitions)

    def owned_shards(self) -> list[int]:
        return [each.number for each in self._partitions]

    def appends_in_flight(self) -> int:
        return 0

    def health(self) -> list[str]:
        reasons = [] if self._failure is None else [self._failure]
        trouble = self._cluster.recreated_reason() or self._cluster.unreachable_reason()
        if trouble is not None and trouble not in reasons:
            reasons.append(trouble)
        loading = sum(each.status == "LOADING" for each in self._partitions)
        if loading:
            reasons.append(f"{loading} of {len(self._partitions)} state partitions are being read.")
        elif outdated := len(self.outdated_partitions()):
            reasons.append(
                f"No broker has answered for {outdated} of {len(self._partitions)} state partitions for "
                f"{OUTDATED_S:.0f} s, so their state here may be old."
            )
        reasons.extend(sorted({each.failure for each in self._partitions if each.failure is not None}))
        return reasons

    def outdated_partitions(self) -> Collection[int]:
        """Return the partitions that no broker has answered for recently."""
        oldest_s = asyncio.get_running_loop().time() - OUTDATED_S
        return {each.number for each in self._partitions if each.fetched_s < oldest_s}

    def shard_views(self) -> list[ShardView]:
        return [
            ShardView(
                state_partition=each.number,
                status=each.status,
                failure=each.failure,
                owner_epoch=each.validity.owner_epoch or 0,
                share_partitions=len(each.shard),
                start_log_offset=each.log_start,
                end_log_offset=each.position or 0,
                redundant_offset=each.shard.redundant_offset,
                load_ms=each.load_ms,
                loaded_records=each.loaded_records,
                live_bytes=each.shard.live_bytes,
                state_batches=each.shard.state_batches,
            )
            for each in self._partitions
        ]

    async def share_partitions(self) -> AsyncIterator[tuple[SharePartitionKey, ShareState]]:
        looked_at = 0
        for each in self._partitions:
            for key in each.shard.share_partitions():
                state = each.shard.state(key)
                if state is not None:
                    yield key, state
                looked_at += 1
                if looked_at % VIEW_SLICE == 0:
                    await asyncio.sleep(0)

    def share_partition(self, key: SharePartitionKey) -> ShareState | None:
        if not self._partitions:
            return None
        return self._partitions[state_partition(key, len(self._partitions))].shard.state(key)
