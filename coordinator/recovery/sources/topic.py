"""Read a live state topic, this project's or Kafka's: list its offsets once, and fetch each range separately.

Record batches are fetched undecoded, so that owner epochs, producer ids and leader epochs are available.  The
reader joins no consumer group and commits no offsets.  It reads up to the high watermark, including records
of open transactions, as Kafka's own coordinator does.
"""

import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.broker_results import ListedOffset, NoResponse
from coordinator.errors import ConfigError, LogError, LogUnavailable
from coordinator.process.optional_dependencies import KAFKA_EXTRA
from coordinator.recovery.parse import parse_around_damage
from coordinator.recovery.records import Records
from coordinator.recovery.sources.base import (
    LogCut,
    LogRange,
    PrunedError,
    ReadPlan,
    run_coroutine_on_thread,
)
from protocol.errors import ErrorCode
from protocol.record_batch import batch_size_at, next_offset_at
from protocol.state_records import topic_id_text

_CHANNEL = "recovery"
_FETCH_BYTES = 8 << 20
_PAUSE_S = 0.1
# Maximum number of fetched responses that wait to be parsed.
_ANSWERS_MAX = 2
_END_OF_ANSWERS = None

_PLAIN = ClientSecurity()

# A function that requests the start or end offsets of some partitions from a broker.
_ListRequest = Callable[..., Awaitable[Mapping[int, ListedOffset]]]


@dataclass(frozen=True)
class TopicSource:
    """A topic of a Kafka cluster; a read fails after `timeout_s` without progress."""

    topic: str
    bootstrap_servers: str
    security: ClientSecurity = _PLAIN
    request_timeout_s: float = 10.0
    timeout_s: float = 30.0

    @property
    def text(self) -> str:
        """The source as the value of the option --from."""
        return f"kafka:{self.topic}"

    def identity(self) -> dict[str, str]:
        """Read the ids of the cluster and the topic from the brokers."""
        return run_coroutine_on_thread(self._read_identity())

    async def _read_identity(self) -> dict[str, str]:
        from coordinator.cluster.kafka.share_groups import ShareGroups
        from coordinator.cluster.kafka.user_topics import UserTopics

        security, timeout_s = self.security, self.request_timeout_s
        groups = ShareGroups(self.bootstrap_servers, security=security, request_timeout_s=timeout_s)
        topics = UserTopics(self.bootstrap_servers, security=security, request_timeout_s=timeout_s)
        try:
            cluster_id = (await groups.resolve_topic_ids(())).cluster_id
            topic_id = await topics.topic_id(self.topic)
        finally:
            await groups.close()
            await topics.close()
        found = {"cluster_id": cluster_id, "topic_id": "" if topic_id is None else topic_id_text(topic_id)}
        return {name: value for name, value in found.items() if value}

    def plan(self, cut: LogCut) -> ReadPlan:
        """List the start and end offsets of all state partitions; each state partition is one log range."""
        return run_coroutine_on_thread(self._make_plan(cut))

    async def _make_plan(self, cut: LogCut) -> ReadPlan:
        async with self._connect_to_brokers() as brokers:
            shape = await brokers.describe_topic()
            topic_id = brokers.pin_topic_id()
            if shape is None:
                raise ConfigError("kafka", self.topic, f"a topic of {self.bootstrap_servers}")
            partitions = range(shape.partitions)
            # List the starts first. List the starts first; if records are pruned before the ends are listed,
            # the read detects that. In the other order, the snapshot that replaces pruned records might be
            # after the listed end.
            starts = await self._list_offsets(brokers, partitions, brokers.list_start_offsets)
            ends = await self._list_offsets(brokers, partitions, brokers.list_end_offsets)
            if cut.time_ms is not None:
                after = brokers.list_offsets_after
                later = await self._list_offsets(brokers, partitions, after, cut.time_ms)
                ends = {p: min(end, later[p]) if later[p] >= 0 else end for p, end in ends.items()}
        ends = {p: max(min(end, cut.end(p)), starts[p]) for p, end in ends.items()}
        ranges = [
            LogRange(p, begin, ends[p], ends[p] - begin, topic_id)
            for p in partitions
            if (begin := max(starts[p], cut.start(p))) < ends[p]
        ]
        facts = {"bootstrap_servers": self.bootstrap_servers, "topic_id": topic_id_text(topic_id)}
        return ReadPlan(tuple(ranges), starts, ends, facts=facts)

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Yield the records of a range; another thread fetches batches, and this thread parses them."""
        answers: queue.Queue[bytes | BaseException | None] = queue.Queue(_ANSWERS_MAX)
        closed = threading.Event()

        def put_in_queue(answer: bytes | BaseException | None) -> bool:
            while not closed.is_set():
                try:
                    answers.put(answer, timeout=_PAUSE_S)
                except queue.Full:
                    continue
                return True
            return False

        def run_fetch() -> None:
            try:
                asyncio.run(self._fetch(log_range, put_in_queue))
                put_in_queue(_END_OF_ANSWERS)
            except BaseException as error:
                put_in_queue(error)

        thread = threading.Thread(target=run_fetch, name="recovery fetch", daemon=True)
        thread.start()
        try:
            while (answer := answers.get()) is not _END_OF_ANSWERS:
                if isinstance(answer, BaseException):
                    raise answer
                number, name = log_range.state_partition, f"{self.topic}-{log_range.state_partition}"
                for records in parse_around_damage(number, answer, log_range.start, log_range.end, name):
                    if len(records) or records.damages:
                        yield records
                    if records.reaches(log_range.end):
                        return
        finally:
            closed.set()
            thread.join()

    async def _fetch(self, log_range: LogRange, put: Callable[[bytes], bool]) -> None:
        """Fetch a log range, and put complete record batches into the queue.

        Raises PrunedError, LogUnavailable.
        """
        partition, position = log_range.state_partition, log_range.start
        loop = asyncio.get_running_loop()
        async with self._connect_to_brokers() as brokers:
            if log_range.place not in (None, brokers.pin_topic_id()):
                raise LogUnavailable(f"{self.topic} was deleted and created again while it was read")
            moved_s = loop.time()
            while position < log_range.end:
                fetched = await self._fetch_once(brokers, partition, position)
                whole = 0
                if fetched is not None:
                    data = fetched.data
                    while (size := batch_size_at(data, whole)) is not None and whole + size <= len(data):
                        position = next_offset_at(data, whole)
                        whole += size
                if fetched is not None and whole:
                    moved_s = loop.time()
                    # Call `put` on another thread, because it blocks while the queue is full.
                    if not await asyncio.to_thread(put, fetched.data[:whole]):
                        return
                elif loop.time() - moved_s > self.timeout_s:
                    raise LogUnavailable(f"state partition {partition} of {self.topic} cannot be read now")
                else:
                    await asyncio.sleep(_PAUSE_S)

    async def _fetch_once(self, brokers: Any, partition: int, position: int) -> Any:
        """Send one Fetch request; return None if it failed. Raises PrunedError."""
        try:
            answers = await brokers.fetch(
                brokers.leader(partition), _CHANNEL, {partition: position}, _FETCH_BYTES
            )
        except NoResponse:
            brokers.refresh_soon()
            return None
        fetched = answers.get(partition)
        if fetched is None or fetched.error_code == ErrorCode.NONE:
            return fetched
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            starts = await self._list_offsets(brokers, [partition], brokers.list_start_offsets)
            if starts[partition] > position:
                raise PrunedError(partition, starts[partition])
        brokers.refresh_soon()
        return None

    async def _list_offsets(
        self, brokers: Any, partitions: Collection[int], ask: _ListRequest, *arguments: int
    ) -> dict[int, int]:
        """List the start or end offset of each state partition; retry until all are known.

        Raises LogUnavailable.
        """
        found: dict[int, int] = {}
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.timeout_s
        while True:
            by_node: defaultdict[int, list[int]] = defaultdict(list)
            for partition in partitions:
                if partition not in found:
                    by_node[brokers.leader(partition)].append(partition)
            if not by_node:
                return found
            if loop.time() > deadline_s:
                missing = ", ".join(map(str, sorted(set(partitions) - set(found))))
                raise LogUnavailable(f"no leader of {self.topic} returned the offsets of partition {missing}")
            for node, asked in by_node.items():
                try:
                    answers = await ask(node, _CHANNEL, asked, *arguments)
                except NoResponse:
                    continue
                found |= {
                    p: each.log_offset for p, each in answers.items() if each.error_code == ErrorCode.NONE
                }
            if len(found) < len(partitions):
                brokers.refresh_soon()
                await asyncio.sleep(_PAUSE_S)

    @asynccontextmanager
    async def _connect_to_brokers(self) -> AsyncIterator[Any]:
        try:
            from coordinator.cluster.kafka.brokers import Brokers
        except ImportError:
            raise LogError(f"reading a topic requires aiokafka: {KAFKA_EXTRA}") from None
        brokers = Brokers(
            self.bootstrap_servers,
            self.topic,
            security=self.security,
            client_id="share-coordinator-recovery",
            request_timeout_s=self.request_timeout_s,
        )
        await brokers.connect()
        try:
            yield brokers
        finally:
            await brokers.close()
