"""A Kafka cluster in memory with the APIs that the log in a topic uses, and with faults.

Offsets, producer epochs and sequences, leaders, and log start offsets follow the rules of a broker.
The contract suite (test_contract.py) runs on this cluster and on a real one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from coordinator.cluster.kafka.cluster import (
    FetchResult,
    ListedOffset,
    NoResponse,
    ProduceResult,
    ProducerId,
    TopicDescription,
    UnsupportedApi,
)
from coordinator.cluster.kafka.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from coordinator.cluster.kafka.metadata_cache import MetadataCache
from coordinator.errors import LogUnavailable
from protocol.errors import ErrorCode
from protocol.record_batch import next_offset_at

_PRODUCER = Struct(">qhii")
_PRODUCER_AT = 43
_TRAVEL_S = 0.001
# The number of batches per producer that a broker recognises as duplicates.
_RECENT_BATCHES = 5
_SEQUENCES = 1 << 31


class FakeProducer(NamedTuple):
    """A producer at a leader: its epoch, base offsets of recent batches, and next expected sequence."""

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
        """Append as a leader does (Kafka's ProducerAppendInfo and ProducerStateEntry).

        If the producer is unknown or forgotten, the leader accepts any sequence (KIP-360).
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
    """The brokers of the cluster. Tests inject faults through the attributes."""

    def __init__(self, nodes: int = 3) -> None:
        self.nodes = nodes
        self.topics: dict[str, list[FakePartition]] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.leaders: dict[int, int] = {}
        self.topic_ids: dict[str, bytes] = {}
        # Whether brokers check the topic ids of requests.
        self.knows_topic_ids = True
        self._leader_epochs: dict[tuple[bytes, int], tuple[int, int]] = {}
        # The metadata that each broker without a connection to the controller continues to report.
        self._stale: dict[int, list[TopicMetadata]] = {}
        self.transactional_ids: dict[str, tuple[int, int]] = {}
        self.deletes_records = True
        self.transactional = True
        self.down: set[int] = set()
        # The number of produce requests, and of produce responses, that are lost next.
        self.requests_lost = 0
        self.answers_lost = 0
        # Error codes for the next batches. These batches are not appended.
        self.produce_errors: list[int] = []
        # Error codes of fetches by partition, until the test removes them.
        self.fetch_errors: dict[int, int] = {}
        self.requests: list[tuple[str, int]] = []

    def cluster(self, topic: str) -> "FakeCluster":
        """Return the cluster as one process sees it."""
        return FakeCluster(self, topic)

    def leader(self, partition: int) -> int:
        return self.leaders.get(partition, 1 + partition % self.nodes)

    def topic_id(self, topic: str) -> bytes:
        return self.topic_ids.setdefault(topic, (1).to_bytes(16))

    def create(self, topic: str, partitions: int) -> None:
        self.topics[topic] = [FakePartition() for _ in range(partitions)]
        self.topic_ids[topic] = (int.from_bytes(self.topic_ids.get(topic, b"")) + 1).to_bytes(16)

    def recreate_topic(self, topic: str) -> None:
        """Delete a topic and create it again."""
        partitions = len(self.topics[topic])
        self.create(topic, partitions)

    def cut_off_from_controller(self, node: int) -> None:
        """Freeze the metadata that a broker reports at its current value."""
        self._stale[node] = self.metadata(node)

    def metadata(self, node: int) -> list[TopicMetadata]:
        """Return the topics as a broker reports them."""
        if node in self._stale:
            return self._stale[node]
        return [
            TopicMetadata(
                ErrorCode.NONE,
                topic,
                self.topic_id(topic),
                [self._partition_metadata(self.topic_id(topic), number) for number in range(len(partitions))],
            )
            for topic, partitions in self.topics.items()
        ]

    def _partition_metadata(self, topic_id: bytes, number: int) -> PartitionMetadata:
        leader = self.leader(number)
        before, leader_epoch = self._leader_epochs.get((topic_id, number), (leader, 0))
        leader_epoch += before != leader
        self._leader_epochs[topic_id, number] = (leader, leader_epoch)
        replicas = tuple(range(1, self.nodes + 1))
        return PartitionMetadata(number, leader, leader_epoch, replicas)


class FakeCluster:
    """The `Cluster` interface of one process to the fake brokers."""

    def __init__(self, fake: FakeKafka, topic: str) -> None:
        self.fake = fake
        self.topic = topic
        self.cut_off = False
        self._metadata = MetadataCache(topic, self._ask_metadata, self._ask_bootstrap_servers)
        self._refreshing: set[asyncio.Task[None]] = set()

    @property
    def _partitions(self) -> list[FakePartition]:
        return self.fake.topics[self.topic]

    async def connect(self) -> None:
        await self._metadata.refresh()
        await self._metadata.refresh(wait_for_others=True)

    async def close(self) -> None:
        self.cut_off = True
        await self._metadata.close()

    def leader(self, partition: int) -> int:
        return self._metadata.leader(partition)

    def leader_epoch(self, partition: int) -> int:
        return self._metadata.leader_epoch(partition)

    def pin_topic_id(self) -> bytes:
        return self._metadata.topic.pin_id()

    def recreated_reason(self) -> str | None:
        return self._metadata.recreated_reason()

    async def _ask_metadata(self, node: int) -> ClusterMetadata:
        await asyncio.sleep(_TRAVEL_S)
        if self.cut_off or node in self.fake.down:
            raise NoResponse(f"broker {node} is not there", sent=False)
        addresses = {number: ("broker", number) for number in range(1, self.fake.nodes + 1)}
        return ClusterMetadata("cluster", addresses, self.fake.metadata(node))

    async def _ask_bootstrap_servers(self) -> ClusterMetadata:
        for node in range(1, self.fake.nodes + 1):
            with suppress(NoResponse):
                return await self._ask_metadata(node)
        raise LogUnavailable("no broker")

    async def _refresh(self) -> None:
        with suppress(LogUnavailable):
            await self._metadata.refresh()

    def refresh_soon(self) -> None:
        if not self._refreshing:
            task = asyncio.get_running_loop().create_task(self._refresh())
            self._refreshing.add(task)
            task.add_done_callback(self._refreshing.discard)

    def unreachable_reason(self) -> str | None:
        return "No broker can be reached." if self.cut_off else None

    async def _simulate_request(self, api: str, node: int) -> None:
        await asyncio.sleep(_TRAVEL_S)
        self.fake.requests.append((api, node))
        if self.cut_off or node in self.fake.down:
            raise NoResponse(f"broker {node} is down or cut off", sent=False)

    def _is_leader(self, node: int, partition: int) -> bool:
        return self.fake.leader(partition) == node

    def _is_other_topic(self) -> bool:
        """Return whether a broker fails to find the topic because the pinned topic id no longer exists."""
        pinned_id = self._metadata.topic._pinned_id
        return self.fake.knows_topic_ids and pinned_id not in (None, self.fake.topic_id(self.topic))

    async def produce(
        self, node: int, channel: str, batches: Sequence[tuple[int, bytes]], timeout_ms: int
    ) -> Mapping[int, ProduceResult]:
        await self._simulate_request("produce", node)
        if self.fake.requests_lost:
            self.fake.requests_lost -= 1
            raise NoResponse("the request was lost", sent=True)
        answers = {}
        for partition, batch in batches:
            if self.fake.produce_errors:
                answers[partition] = ProduceResult(self.fake.produce_errors.pop(0), -1)
            elif self._is_other_topic():
                answers[partition] = ProduceResult(ErrorCode.UNKNOWN_TOPIC_ID, -1)
            elif len(batch) > int(self.fake.configs[self.topic].get("max.message.bytes", 1_048_588)):
                answers[partition] = ProduceResult(ErrorCode.MESSAGE_TOO_LARGE, -1)
            elif self._is_leader(node, partition):
                answers[partition] = self._partitions[partition].append(batch)
            else:
                answers[partition] = ProduceResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        await asyncio.sleep(_TRAVEL_S)
        if self.fake.answers_lost:
            self.fake.answers_lost -= 1
            raise NoResponse("the response was lost", sent=True)
        return answers

    async def list_end_offsets(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        await self._simulate_request("list", node)
        return {p: self._make_listed_offset(node, p, self._partitions[p].end) for p in partitions}

    async def list_start_offsets(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        await self._simulate_request("list", node)
        return {p: self._make_listed_offset(node, p, self._partitions[p].start) for p in partitions}

    def _make_listed_offset(self, node: int, partition: int, log_offset: int) -> ListedOffset:
        if self._is_leader(node, partition):
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
        await self._simulate_request("fetch", node)
        if max_wait_ms and all(position == self._partitions[p].end for p, position in positions.items()):
            await asyncio.sleep(max_wait_ms / 1000)
        answers = {}
        for partition, position in positions.items():
            log = self._partitions[partition]
            if partition in self.fake.fetch_errors:
                answers[partition] = FetchResult(self.fake.fetch_errors[partition], -1, b"")
            elif self._is_other_topic():
                answers[partition] = FetchResult(ErrorCode.UNKNOWN_TOPIC_ID, -1, b"")
            elif not self._is_leader(node, partition):
                answers[partition] = FetchResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, b"")
            elif not log.start <= position <= log.end:
                answers[partition] = FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE, log.start, b"")
            else:
                # A broker truncates a response at its size limit: here in the middle of the fifth batch.
                data = [batch for batch in log.batches if next_offset_at(batch, 0) > position][:5]
                if len(data) == 5:
                    data[4] = data[4][: len(data[4]) // 2]
                answers[partition] = FetchResult(ErrorCode.NONE, log.start, b"".join(data))
        return answers

    async def delete_records(self, node: int, offsets: Mapping[int, int]) -> Mapping[int, int]:
        await self._simulate_request("delete", node)
        if not self.fake.deletes_records:
            raise UnsupportedApi("no DeleteRecords here")
        for partition, offset in offsets.items():
            log = self._partitions[partition]
            log.start = max(log.start, offset)
            log.batches = [batch for batch in log.batches if next_offset_at(batch, 0) > log.start]
        return dict.fromkeys(offsets, ErrorCode.NONE)

    async def producer_id(self, transactional_id: str | None) -> ProducerId:
        await self._simulate_request("producer id", 1)
        if transactional_id is not None and not self.fake.transactional:
            return ProducerId(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
        known = self.fake.transactional_ids
        name = transactional_id if transactional_id is not None else f"anonymous {len(known)}"
        producer_id, epoch = known.get(name, (1000 + len(known), -1))
        known[name] = (producer_id, epoch + 1)
        return ProducerId(ErrorCode.NONE, producer_id, epoch + 1)

    async def broker_count(self) -> int:
        return self.fake.nodes

    async def describe_topic(self) -> TopicDescription | None:
        await self._metadata.refresh(wait_for_others=True)
        partitions = self.fake.topics.get(self.topic)
        return None if partitions is None else TopicDescription(len(partitions), self.fake.nodes, True)

    async def create_topic(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> bool:
        if self.topic in self.fake.topics:
            return False
        self.fake.create(self.topic, partitions)
        self.fake.configs.setdefault(self.topic, dict(configs))
        return True

    async def topic_configs(self) -> Mapping[str, str] | None:
        return self.fake.configs[self.topic]
