"""A Kafka cluster in memory, as far as the log in a topic needs one, with what can go wrong on the way.

It goes by a broker's rules for what the log relies on: offsets, producer epochs and sequences, leaders, log
start offsets.  Compared with the real one by the contract suite, which runs on both.
"""

import asyncio
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from coordinator.errors import LogUnavailable
from coordinator.kafka import cluster as kafka
from coordinator.kafka.cluster import (
    FetchResult,
    ListedOffset,
    NoResponse,
    ProduceResult,
    ProducerId,
    TopicDescription,
    UnsupportedApi,
)
from protocol.errors import ErrorCode
from protocol.record_batch import next_offset_at

_PRODUCER = Struct(">qhii")
_PRODUCER_AT = 43
_TRAVEL_S = 0.001
# How many batches of a producer a broker knows again.
_RECENT_BATCHES = 5
_SEQUENCES = 1 << 31


class FakeProducer(NamedTuple):
    """What a leader knows of a producer: its epoch, where its last batches went, and what must follow."""

    epoch: int
    recent: dict[int, int]
    expected: int


class FakePartition:
    """The log of one partition, and the producers that wrote to it."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.start = 0
        self.producers: dict[int, FakeProducer] = {}

    @property
    def end(self) -> int:
        return next_offset_at(self.batches[-1], 0) if self.batches else self.start

    def append(self, batch: bytes) -> ProduceResult:
        """Append as a leader does: ProducerAppendInfo and ProducerStateEntry of Kafka.

        Of a producer that it does not know (any more) it takes every sequence: KIP-360.
        """
        producer_id, epoch, sequence, count = _PRODUCER.unpack_from(batch, _PRODUCER_AT)
        if producer_id >= 0:
            known = self.producers.get(producer_id, FakeProducer(-1, {}, sequence))
            if epoch < known.epoch:
                return ProduceResult(ErrorCode.INVALID_PRODUCER_EPOCH, -1)
            if epoch > known.epoch >= 0:
                known = FakeProducer(epoch, {}, 0)
            if sequence in known.recent:
                return ProduceResult(ErrorCode.NONE, known.recent[sequence])
            if sequence != known.expected:
                return ProduceResult(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
            recent = dict([*known.recent.items(), (sequence, self.end)][-_RECENT_BATCHES:])
            self.producers[producer_id] = FakeProducer(epoch, recent, (sequence + count) % _SEQUENCES)
        base_offset = self.end
        self.batches.append(base_offset.to_bytes(8) + batch[8:])
        return ProduceResult(ErrorCode.NONE, base_offset)

    def truncate(self, end: int) -> None:
        """Lose the newest records, as after an unclean leader election."""
        self.batches = [batch for batch in self.batches if next_offset_at(batch, 0) <= end]
        self.producers.clear()


class FakeKafka:
    """The brokers. Faults are set by tests."""

    def __init__(self, nodes: int = 3) -> None:
        self.nodes = nodes
        self.topics: dict[str, list[FakePartition]] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.leaders: dict[int, int] = {}
        self.transactional_ids: dict[str, tuple[int, int]] = {}
        self.deletes_records = True
        self.transactional = True
        self.down: set[int] = set()
        # How many of the next produce requests are lost on their way there, or their answers on the way back.
        self.requests_lost = 0
        self.answers_lost = 0
        # Error codes for the next batches, instead of appending them.
        self.produce_errors: list[int] = []
        # Error codes of fetches, by partition, as long as they stand here.
        self.fetch_errors: dict[int, int] = {}
        self.requests: list[tuple[str, int]] = []

    def cluster(self, topic: str) -> "FakeCluster":
        """Return what one process sees of it."""
        return FakeCluster(self, topic)

    def leader(self, partition: int) -> int:
        return self.leaders.get(partition, 1 + partition % self.nodes)


class FakeCluster:
    """A `Cluster` of one process."""

    def __init__(self, fake: FakeKafka, topic: str) -> None:
        self.fake = fake
        self.topic = topic
        self.cut_off = False
        self._leaders: dict[int, int] = {}

    @property
    def _partitions(self) -> list[FakePartition]:
        return self.fake.topics[self.topic]

    async def connect(self) -> None:
        self._refresh()

    async def close(self) -> None:
        self.cut_off = True

    def leader(self, partition: int) -> int:
        return self._leaders.get(partition, kafka.NO_NODE)

    def _refresh(self) -> None:
        count = len(self.fake.topics.get(self.topic, []))
        self._leaders = {partition: self.fake.leader(partition) for partition in range(count)}

    def refresh_soon(self) -> None:
        asyncio.get_running_loop().call_later(_TRAVEL_S, self._refresh)

    def unreachable_reason(self) -> str | None:
        return "No broker can be reached." if self.cut_off else None

    async def _travel(self, api: str, node: int) -> None:
        await asyncio.sleep(_TRAVEL_S)
        self.fake.requests.append((api, node))
        if self.cut_off or node in self.fake.down:
            raise NoResponse(f"broker {node} is not there", sent=False)

    def _leads(self, node: int, partition: int) -> bool:
        return self.fake.leader(partition) == node

    async def produce(
        self, node: int, channel: str, batches: Sequence[tuple[int, bytes]], timeout_ms: int
    ) -> Mapping[int, ProduceResult]:
        await self._travel("produce", node)
        if self.fake.requests_lost:
            self.fake.requests_lost -= 1
            raise NoResponse("lost on the way there", sent=True)
        answers = {}
        for partition, batch in batches:
            if self.fake.produce_errors:
                answers[partition] = ProduceResult(self.fake.produce_errors.pop(0), -1)
            elif len(batch) > int(self.fake.configs[self.topic].get("max.message.bytes", 1_048_588)):
                answers[partition] = ProduceResult(ErrorCode.MESSAGE_TOO_LARGE, -1)
            elif self._leads(node, partition):
                answers[partition] = self._partitions[partition].append(batch)
            else:
                answers[partition] = ProduceResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        await asyncio.sleep(_TRAVEL_S)
        if self.fake.answers_lost:
            self.fake.answers_lost -= 1
            raise NoResponse("lost on the way back", sent=True)
        return answers

    async def list_ends(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        await self._travel("list", node)
        return {p: self._listed(node, p, self._partitions[p].end) for p in partitions}

    async def list_starts(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        await self._travel("list", node)
        return {p: self._listed(node, p, self._partitions[p].start) for p in partitions}

    def _listed(self, node: int, partition: int, log_offset: int) -> ListedOffset:
        if self._leads(node, partition):
            return ListedOffset(ErrorCode.NONE, log_offset)
        return ListedOffset(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)

    async def fetch(
        self,
        node: int,
        channel: str,
        positions: Mapping[int, int],
        bytes_max: int,
        max_wait_ms: int = 0,
    ) -> Mapping[int, FetchResult]:
        await self._travel("fetch", node)
        if max_wait_ms and all(position == self._partitions[p].end for p, position in positions.items()):
            await asyncio.sleep(max_wait_ms / 1000)
        answers = {}
        for partition, position in positions.items():
            log = self._partitions[partition]
            if partition in self.fake.fetch_errors:
                answers[partition] = FetchResult(self.fake.fetch_errors[partition], -1, b"")
            elif not self._leads(node, partition):
                answers[partition] = FetchResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, b"")
            elif not log.start <= position <= log.end:
                answers[partition] = FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE, log.start, b"")
            else:
                # A broker cuts where its limit is: here in the middle of the fifth batch.
                data = [batch for batch in log.batches if next_offset_at(batch, 0) > position][:5]
                if len(data) == 5:
                    data[4] = data[4][: len(data[4]) // 2]
                answers[partition] = FetchResult(ErrorCode.NONE, log.start, b"".join(data))
        return answers

    async def delete_records(self, node: int, offsets: Mapping[int, int]) -> Mapping[int, int]:
        await self._travel("delete", node)
        if not self.fake.deletes_records:
            raise UnsupportedApi("no DeleteRecords here")
        for partition, offset in offsets.items():
            log = self._partitions[partition]
            log.start = max(log.start, offset)
            log.batches = [batch for batch in log.batches if next_offset_at(batch, 0) > log.start]
        return dict.fromkeys(offsets, ErrorCode.NONE)

    async def producer_id(self, transactional_id: str | None) -> ProducerId:
        await self._travel("producer id", 1)
        if transactional_id is not None and not self.fake.transactional:
            return ProducerId(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
        known = self.fake.transactional_ids
        name = transactional_id if transactional_id is not None else f"anonymous {len(known)}"
        producer_id, epoch = known.get(name, (1000 + len(known), -1))
        known[name] = (producer_id, epoch + 1)
        return ProducerId(ErrorCode.NONE, producer_id, epoch + 1)

    async def brokers(self) -> int:
        return self.fake.nodes

    async def describe_topic(self) -> TopicDescription | None:
        if self.cut_off:
            raise LogUnavailable("no broker")
        self._refresh()
        partitions = self.fake.topics.get(self.topic)
        return None if partitions is None else TopicDescription(len(partitions), self.fake.nodes, True)

    async def create_topic(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> bool:
        if self.topic in self.fake.topics:
            return False
        self.fake.topics.setdefault(self.topic, [FakePartition() for _ in range(partitions)])
        self.fake.configs.setdefault(self.topic, dict(configs))
        return True

    async def topic_configs(self) -> Mapping[str, str] | None:
        return self.fake.configs[self.topic]
