"""Simulate the brokers of a Kafka cluster and their faults on virtual time.

* A request or its response is lost, or a request arrives after its sender has retried on another connection.
* All appends of a process are delayed for some time.
* A coordinator process cannot reach a broker. * A broker dies. After a broker fails, other brokers become
leaders of its partitions, possibly without its producer state. * A broker is disconnected from the other
brokers. The disconnected broker does not detect that others lead its partitions, returns old end offsets, and
acknowledges no write. * The metadata of brokers is updated with different delays after an election. * A new
leader answers OFFSET_NOT_AVAILABLE at first. * The state of idle producers expires. * An unclean election
loses the newest records of a partition; a clean one loses no acknowledged record.

An append is uncommitted until all in-sync replicas have it. Until then, readers do not see the records, the
response waits, and the next leader may lack the records. A delayed request never arrives after its broker has
restarted, because Kafka closes the connection, or after the producer state has expired, which takes a day.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from zlib import crc32

from coordinator.cluster.kafka import broker_results as kafka
from coordinator.cluster.kafka.broker_results import FetchResult, ListedOffset, ProduceResult, ProducerId
from coordinator.cluster.kafka.metadata import NO_LEADER_EPOCH, PartitionMetadata, TopicMetadata
from protocol.errors import ErrorCode
from protocol.record_batch import next_offset_at
from tests.kafka_in_memory.broker import RequestSender
from tests.simulation.kafka.partition import ProduceResponse, SimPartition
from tests.simulation.loop import SimLoop

OFFSET_NOT_AVAILABLE = 78
FETCH_BATCHES_MAX = 20
MAX_MESSAGE_BYTES = 1_048_588


@dataclass(frozen=True)
class BrokerFaults:
    """The faults of brokers. The faults of brokers. Rates are per request; times are means in seconds."""

    travel_s: float = 0.002
    request_lost_rate: float = 0.0
    answer_lost_rate: float = 0.0
    late_rate: float = 0.0
    late_max_s: float = 10.0
    error_rate: float = 0.0
    forgets_rate: float = 0.0
    elections_s: float = 0.2
    transactional: bool = True
    # The delay after which each broker's metadata contains a new leader.
    metadata_delay_s: float = 0.0
    # The fraction of appends that the replicas receive late, and the maximum delay.
    replicas_late_rate: float = 0.0
    replicas_late_max_s: float = 0.0


class SimBrokers:
    """The brokers of the cluster. Node ids start at 1."""

    # Whether brokers check the topic ids in requests.
    checks_topic_ids = True
    cluster_id = "cluster"

    def __init__(
        self,
        loop: SimLoop,
        rng: Random,
        faults: BrokerFaults,
        *,
        nodes: int,
        partitions: int,
        host: str = "broker",
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.faults = faults
        self.nodes = range(1, nodes + 1)
        self.partitions = [SimPartition(loop, 1 + partition % nodes) for partition in range(partitions)]
        self.configs: dict[str, str] = {}
        self.down: set[int] = set()
        # How often each node was killed.
        self.lives = dict.fromkeys(self.nodes, 0)
        # Pairs of process name and node id that cannot communicate.
        self.blocked: set[tuple[str, int]] = set()
        # By process name, the time until which its appends are delayed.
        self.held: dict[str, float] = {}
        # The end offsets of each disconnected node at its disconnection.
        self.views: dict[int, list[int]] = {}
        # The partitions in the metadata of each node.
        self._metadata = {node: self._current_metadata() for node in self.nodes}
        # These delays have separate random generators, so that other random choices do not change.
        self._delays, self._replica_delays = Random(nodes), Random(nodes)
        self._producer_ids: dict[str, tuple[int, int]] = {}
        self.topic, self.topic_id = "state", bytes(range(16))
        # The topic ids that some nodes report instead of `topic_id`.
        self._topic_ids: dict[int, bytes] = {}
        # Nodes that answer no requests.
        self.silent: set[int] = set()
        self.addresses = {node: (f"{host}-{node}", 9092) for node in self.nodes}
        self.on_kill: Callable[[int], None] = lambda node: None

    # Faults.

    def reaches(self, name: str, node: int) -> bool:
        return node not in self.down and (name, node) not in self.blocked

    def append_delay_left_s(self, name: str) -> float:
        """Return for how many more seconds the appends of a process are delayed."""
        return max(0.0, self.held.get(name, 0.0) - self.loop.time())

    def set_down(self, *nodes: int) -> None:
        """Stop these nodes, and start all other nodes, without elections."""
        for node in set(nodes) - self.down:
            self.lives[node] += 1
            self.on_kill(node)
        self.down = set(nodes)

    def kill(self, node: int) -> None:
        """Kill a node; other nodes become leaders of its partitions after an election."""
        self.views.pop(node, None)
        self.set_down(node, *self.down)
        self._elect_new_leaders(node)

    def restart_node(self, node: int) -> None:
        """Start a dead node again."""
        if node in self.down:
            self.down.discard(node)
            self._metadata[node] = self._current_metadata()
        self._elect_missing_leaders()

    def disconnect_broker(self, node: int) -> None:
        """Disconnect a node, which keeps its old metadata. The other nodes elect new leaders."""
        self.views[node] = [partition.high_watermark for partition in self.partitions]
        self._elect_new_leaders(node)

    def reconnect_broker(self, node: int) -> None:
        """Reconnect a node, which gets the current metadata."""
        if self.views.pop(node, None) is not None:
            self._metadata[node] = self._current_metadata()
            self._elect_missing_leaders()

    def elect_another_leader(self, number: int) -> None:
        self._elect_leader(number, self.partitions[number].leader)

    def set_leader(self, number: int, node: int) -> None:
        """Make a node, which has all records, the leader of a partition."""
        partition = self.partitions[number]
        partition.leader = node
        partition.leader_epoch += 1
        self._publish_leader(number)

    def leaders(self) -> list[int]:
        """Return the current leader of each partition."""
        return [partition.leader for partition in self.partitions]

    def _elect_new_leaders(self, node: int) -> None:
        for number, partition in enumerate(self.partitions):
            if partition.leader == node:
                partition.leader = kafka.NO_NODE
                partition.leader_epoch += 1
                self._publish_leader(number)
                self.loop.call_later(
                    self.rng.expovariate(1 / self.faults.elections_s), self._elect_leader, number, node
                )

    def _elect_missing_leaders(self) -> None:
        for number, partition in enumerate(self.partitions):
            if partition.leader == kafka.NO_NODE:
                self._elect_leader(number, kafka.NO_NODE)

    def _elect_leader(self, number: int, not_node: int) -> None:
        """Elect a leader that has all committed records, and maybe some uncommitted records."""
        partition, rng = self.partitions[number], self.rng
        connected = [node for node in self.nodes if node not in self.down and node not in self.views]
        others = [node for node in connected if node != not_node] or connected
        if not others or (partition.leader not in (kafka.NO_NODE, not_node)):
            return
        # A previous leader that is alive and connected responds to its appends in progress with an error.
        code = None if partition.leader == kafka.NO_NODE else ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition.change_leader(rng.choice(others), self._replica_delays, code)
        self._publish_leader(number)
        partition.end_offset_known_from_s = self.loop.time() + rng.expovariate(1 / self.faults.elections_s)
        if partition.uncommitted:
            self._schedule_commit(partition.end_offset_known_from_s, partition)
        if rng.random() < self.faults.forgets_rate:
            partition.lose_producer_state()

    def topic_metadata(self, node: int) -> TopicMetadata:
        partitions = list(self._metadata[node].values())
        topic_id = self._topic_ids.get(node, self.topic_id)
        return TopicMetadata(ErrorCode.NONE, self.topic, topic_id, partitions)

    def set_reported_leader(
        self, node: int, leader: PartitionMetadata, topic_id: bytes | None = None
    ) -> None:
        """Let a node report a leader, and possibly another topic id, without an election."""
        self._metadata[node][leader.partition] = leader
        if topic_id is not None:
            self._topic_ids[node] = topic_id

    def _current_metadata(self) -> dict[int, PartitionMetadata]:
        return {
            number: PartitionMetadata(number, partition.leader, partition.leader_epoch)
            for number, partition in enumerate(self.partitions)
        }

    def _publish_leader(self, number: int) -> None:
        """Update the metadata of all nodes with the leader of a partition, each after its delay."""
        reported = self._current_metadata()[number]
        for node in self.nodes:
            mean_s = self.faults.metadata_delay_s
            if mean_s:
                delay_s = self._delays.expovariate(1 / mean_s)
                self.loop.call_later(delay_s, self._receive_metadata, node, reported)
            else:
                self._receive_metadata(node, reported)

    def _receive_metadata(self, node: int, reported: PartitionMetadata) -> None:
        known = self._metadata[node].get(reported.partition, reported)
        if node not in self.views and reported.leader_epoch >= known.leader_epoch:
            self._metadata[node][reported.partition] = reported

    def expire_producers(self, older_than_s: float) -> None:
        """Remove the state of producers whose last append is more than `older_than_s` seconds ago."""
        for partition in self.partitions:
            for producer_id in list(partition.producers):
                if partition.appended_s.get(producer_id, 0.0) < older_than_s:
                    del partition.producers[producer_id]

    # Requests. The methods below serve requests; `node` is the node that receives the request.

    def _is_leader(self, node: int, number: int) -> bool:
        return self.partitions[number].leader == node and node not in self.views

    def _is_replaced_leader(self, node: int, number: int) -> bool:
        return node in self.views and self._metadata[node][number].leader == node

    def _draw_request_error(self, codes: Sequence[int]) -> int:
        return self.rng.choice(codes) if self.rng.random() < self.faults.error_rate else ErrorCode.NONE

    def produce(
        self, sender: RequestSender, node: int, batches: Sequence[tuple[int, bytes]], timeout_s: float
    ) -> Mapping[int, ProduceResult] | asyncio.Future[Mapping[int, ProduceResult]]:
        """Append batches; respond when all in-sync replicas have them.

        On a disconnected node, the append times out. A batch is dropped if the producer state of its
        partition was lost while the request was in flight.
        """
        answers: dict[int, ProduceResult] = {}
        pending: dict[int, asyncio.Future[int]] = {}
        for number, batch in batches:
            partition = self.partitions[number]
            if partition.forgotten != sender.forgotten[number]:
                continue
            error = self._draw_produce_error()
            if error != ErrorCode.NONE:
                answers[number] = ProduceResult(error, -1)
            elif len(batch) > int(self.configs.get("max.message.bytes", MAX_MESSAGE_BYTES)):
                answers[number] = ProduceResult(ErrorCode.MESSAGE_TOO_LARGE, -1)
            elif self._is_leader(node, number):
                produced = partition.write(sender.name, batch, self.loop.time())
                self._replicate(partition)
                # Sometimes the leader responds with an error before the replicas have the records.
                slow = self._draw_request_error(
                    (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
                )
                answers[number] = ProduceResult(slow, -1) if slow else produced
                committed = partition.commit_future(answers[number].base_offset)
                if committed is not None:
                    pending[number] = committed
            elif self._is_replaced_leader(node, number):
                code = self.rng.choice((ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS))
                answers[number], pending[number] = ProduceResult(code, -1), self.loop.create_future()
            else:
                answers[number] = ProduceResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        return ProduceResponse(self.loop, answers, pending, timeout_s) if pending else answers

    def _draw_produce_error(self) -> int:
        """Return the error code with which a leader refuses the next batch, or NONE."""
        return self._draw_request_error((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS))

    def _replicate(self, partition: SimPartition) -> None:
        """Commit the records of a partition when all in-sync replicas have them."""
        faults, delays, now_s = self.faults, self._replica_delays, self.loop.time()
        is_late = len(self.nodes) > 1 and delays.random() < faults.replicas_late_rate
        delay_s = delays.uniform(0.0, faults.replicas_late_max_s) if is_late else 0.0
        partition.replicated_s = max(partition.replicated_s, now_s + delay_s)
        if partition.replicated_s > now_s:
            self._schedule_commit(partition.replicated_s, partition)
        else:
            partition.commit(partition.end)

    def _schedule_commit(self, when_s: float, partition: SimPartition) -> None:
        """Commit a partition's present records at a later time, unless another leader is elected before."""
        end, leader_epoch = partition.end, partition.leader_epoch

        def commit_in_same_epoch() -> None:
            if partition.leader_epoch == leader_epoch:
                partition.commit(end)

        self.loop.call_at(when_s, commit_in_same_epoch)

    def list_end_offsets(self, node: int, numbers: Sequence[int]) -> Mapping[int, ListedOffset]:
        """Return end offsets; a disconnected node returns the values at its disconnection."""
        return {number: self._end_offset(node, number) for number in numbers}

    def _end_offset(self, node: int, number: int) -> ListedOffset:
        partition = self.partitions[number]
        if self._is_replaced_leader(node, number):
            return ListedOffset(ErrorCode.NONE, self.views[node][number])
        if not self._is_leader(node, number):
            return ListedOffset(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        if self.loop.time() < partition.end_offset_known_from_s:
            return ListedOffset(OFFSET_NOT_AVAILABLE, -1)
        return ListedOffset(ErrorCode.NONE, partition.high_watermark)

    def list_start_offsets(self, node: int, numbers: Sequence[int]) -> Mapping[int, ListedOffset]:
        return {
            number: ListedOffset(ErrorCode.NONE, self.partitions[number].start)
            if self._is_leader(node, number) or self._is_replaced_leader(node, number)
            else ListedOffset(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            for number in numbers
        }

    def fetch(self, node: int, positions: Mapping[int, tuple[int, int]]) -> Mapping[int, FetchResult]:
        """Return some record batches from each position; the last batch may be incomplete."""
        return {number: self._fetch(node, number, *position) for number, position in positions.items()}

    def _fetch(self, node: int, number: int, leader_epoch: int, position: int) -> FetchResult:
        partition = self.partitions[number]
        if self._is_leader(node, number):
            end = partition.high_watermark
        elif self._is_replaced_leader(node, number):
            end = min(partition.high_watermark, self.views[node][number])
        else:
            return FetchResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, b"")
        current = self._metadata[node][number].leader_epoch if node in self.views else partition.leader_epoch
        if leader_epoch not in (NO_LEADER_EPOCH, current):
            is_old = leader_epoch < current
            code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
            return FetchResult(code, -1, b"")
        if not partition.start <= position <= end:
            return FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE, partition.start, b"")
        data = [batch for batch in partition.batches if position < next_offset_at(batch, 0) <= end]
        data = data[: self.rng.randrange(1, FETCH_BATCHES_MAX + 1)]
        if len(data) > 1 and self.rng.random() < 0.3:
            data[-1] = data[-1][: len(data[-1]) // 2]
        return FetchResult(ErrorCode.NONE, partition.start, b"".join(data))

    def delete_records(self, node: int, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Delete records below the offsets; return an error code for each partition."""
        answers = {}
        for number, offset in offsets.items():
            partition = self.partitions[number]
            if not self._is_leader(node, number):
                answers[number] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif offset > partition.high_watermark:
                answers[number] = ErrorCode.OFFSET_OUT_OF_RANGE
            else:
                partition.start = max(partition.start, offset)
                partition.batches = [
                    batch for batch in partition.batches if next_offset_at(batch, 0) > partition.start
                ]
                partition.on_prune(partition.start)
                answers[number] = ErrorCode.NONE
        return answers

    def find_coordinator(self, node: int, transactional_id: str) -> tuple[int, int]:
        """Return an error code and the transaction coordinator; a disconnected node returns itself."""
        connected = [each for each in self.nodes if each not in self.down and each not in self.views]
        if node in self.views:
            return ErrorCode.NONE, node
        if not connected:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, kafka.NO_NODE
        return ErrorCode.NONE, connected[crc32(transactional_id.encode()) % len(connected)]

    def producer_id(self, node: int, transactional_id: str | None) -> ProducerId:
        """Return a producer id and epoch; for a known transactional id, the epoch is higher than before."""
        if node in self.views:
            return ProducerId(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
        if transactional_id is not None and self.find_coordinator(node, transactional_id)[1] != node:
            return ProducerId(ErrorCode.NOT_COORDINATOR, -1, -1)
        if transactional_id is not None and not self.faults.transactional:
            return ProducerId(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
        known = self._producer_ids
        name = transactional_id if transactional_id is not None else f"no transactional id {len(known)}"
        producer_id, epoch = known.get(name, (1_000 + len(known), -1))
        known[name] = (producer_id, epoch + 1)
        return ProducerId(ErrorCode.NONE, producer_id, epoch + 1)
