"""A partition of the simulated cluster: its leader, its uncommitted batches, and all its earlier batches."""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from struct import Struct
from typing import NamedTuple

from coordinator.cluster.kafka.broker_results import ProduceResult
from protocol.errors import ErrorCode
from protocol.record_batch import next_offset_at
from tests.simulation.loop import SimLoop

_PRODUCER = Struct(">qhii")
_PRODUCER_AT = 43
# The number of batches per producer that a broker recognises as duplicates.
_RECENT_BATCHES = 5
_SEQUENCES = 1 << 31


class ProducerState(NamedTuple):
    """A leader's state of a producer: epoch, recent batches' base offsets by sequence, next sequence."""

    epoch: int
    recent: dict[int, int]
    expected: int


class PartitionLog:
    """The log of one partition, and the state of the producers that wrote to it."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.start = 0
        self.producers: dict[int, ProducerState] = {}

    @property
    def end(self) -> int:
        return next_offset_at(self.batches[-1], 0) if self.batches else self.start

    def append(self, batch: bytes) -> ProduceResult:
        """Append as a leader does (Kafka's ProducerAppendInfo and ProducerStateEntry).

        If the producer is unknown or forgotten, the leader accepts any sequence (KIP-360).
        """
        producer_id, epoch, sequence, count = _PRODUCER.unpack_from(batch, _PRODUCER_AT)
        if producer_id >= 0:
            known = self.producers.get(producer_id, ProducerState(-1, {}, sequence))
            if epoch < known.epoch:
                return ProduceResult(ErrorCode.INVALID_PRODUCER_EPOCH, -1)
            if epoch > known.epoch >= 0:
                known = ProducerState(epoch, {}, 0)
            if sequence in known.recent:
                return ProduceResult(ErrorCode.NONE, known.recent[sequence])
            if sequence != known.expected:
                return ProduceResult(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
            recent = dict([*known.recent.items(), (sequence, self.end)][-_RECENT_BATCHES:])
            self.producers[producer_id] = ProducerState(epoch, recent, (sequence + count) % _SEQUENCES)
        base_offset = self.end
        self.batches.append(base_offset.to_bytes(8) + batch[8:])
        return ProduceResult(ErrorCode.NONE, base_offset)

    def truncate(self, end: int) -> None:
        """Remove the records from a log offset on, and the state of all producers."""
        self.batches = [batch for batch in self.batches if next_offset_at(batch, 0) <= end]
        self.producers.clear()


class UncommittedBatch(NamedTuple):
    """A batch that not all in-sync replicas have, and the producer state before it."""

    base_offset: int
    end: int
    producers: dict[int, ProducerState]
    # The name of the writing process, and the batch.
    written: tuple[str, bytes]
    # The error code of the append: NONE when the batch is committed.
    committed: asyncio.Future[int]


class SimPartition(PartitionLog):
    """A partition with its leader, its uncommitted batches, and all batches that were ever committed."""

    def __init__(self, loop: SimLoop, leader: int) -> None:
        super().__init__()
        self._loop = loop
        self.leader = leader
        self.leader_epoch = 0
        # Before this time, a new leader answers OFFSET_NOT_AVAILABLE instead of the end offset.
        self.end_offset_known_from_s = 0.0
        # The time at which all replicas will have the newest batch.
        self.replicated_s = 0.0
        self.uncommitted: list[UncommittedBatch] = []
        # The number of times that the producer state was lost.
        self.forgotten = 0
        self.appended_s: dict[int, float] = {}
        # All batches with the names of their writers, including pruned batches, but without truncated
        # batches.
        self.archive: list[tuple[str, bytes]] = []
        self.on_write: Callable[[], None] = lambda: None
        self.on_commit: Callable[[str, bytes], None] = lambda writer, batch: None
        self.on_prune: Callable[[int], None] = lambda log_offset: None
        self.lost_records = False

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are committed."""
        return self.uncommitted[0].base_offset if self.uncommitted else self.end

    def write(self, writer: str, batch: bytes, now_s: float) -> ProduceResult:
        """Append a batch, and record the name of its writer. The batch is uncommitted."""
        before, producers = self.end, dict(self.producers)
        produced = self.append(batch)
        if self.end > before:
            committed = self._loop.create_future()
            written = (writer, self.batches[-1])
            self.uncommitted.append(UncommittedBatch(before, self.end, producers, written, committed))
            self.archive.append(written)
            self.appended_s[int.from_bytes(batch[43:51])] = now_s
            self.on_write()
        return produced

    def commit_future(self, base_offset: int) -> asyncio.Future[int] | None:
        """Return a future that is done when a batch is committed; None if it is committed already."""
        return next((batch.committed for batch in self.uncommitted if batch.base_offset == base_offset), None)

    def commit(self, end: int) -> None:
        """Commit the batches below an offset: all in-sync replicas have them."""
        while self.uncommitted and self.uncommitted[0].end <= end:
            batch = self.uncommitted.pop(0)
            batch.committed.set_result(ErrorCode.NONE)
            self.on_commit(*batch.written)

    def change_leader(self, leader: int, rng: Random, code: int | None) -> None:
        """Begin the next leader epoch. The new leader has all committed batches, and some others.

        `code` is the response of the previous leader to the appends in progress, None if it does not respond.
        """
        self.leader, self.replicated_s = leader, 0.0
        self.leader_epoch += 1
        uncommitted, self.uncommitted = self.uncommitted, []
        kept = rng.randrange(len(uncommitted) + 1) if uncommitted else 0
        for batch in uncommitted:
            if code is not None:
                batch.committed.set_result(code)
        for batch in uncommitted[:kept]:
            self.uncommitted.append(batch._replace(committed=self._loop.create_future()))
        if kept < len(uncommitted):
            self._remove_from_offset(uncommitted[kept].base_offset)
            self.producers = uncommitted[kept].producers

    def _remove_from_offset(self, end: int) -> list[bytes]:
        lost = [batch for batch in self.batches if next_offset_at(batch, 0) > end]
        self.truncate(end)
        self.archive = [(writer, batch) for writer, batch in self.archive if next_offset_at(batch, 0) <= end]
        return lost

    def lose_producer_state(self) -> None:
        self.producers.clear()
        self.forgotten += 1

    def lose_records_from(self, end: int) -> list[bytes]:
        """Lose the records from a log offset on and all producer state; return the lost batches."""
        self.lost_records = True
        self.forgotten += 1
        return self._remove_from_offset(end)


class ProduceResponse(asyncio.Future[Mapping[int, ProduceResult]]):
    """The future results of a Produce request, set when its batches are committed or at its timeout."""

    def __init__(
        self,
        loop: SimLoop,
        answers: dict[int, ProduceResult],
        pending: Mapping[int, asyncio.Future[int]],
        timeout_s: float,
    ) -> None:
        super().__init__(loop=loop)
        self._answers = answers
        self._pending = pending
        timer = loop.call_later(timeout_s, self._complete)
        self.add_done_callback(lambda _: timer.cancel())
        for committed in pending.values():
            committed.add_done_callback(self._complete_if_committed)

    def _complete_if_committed(self, _: asyncio.Future[int]) -> None:
        if all(committed.done() for committed in self._pending.values()):
            self._complete()

    def _complete(self) -> None:
        if self.done():
            return
        for number, committed in self._pending.items():
            code = committed.result() if committed.done() else ErrorCode.REQUEST_TIMED_OUT
            if code != ErrorCode.NONE and self._answers[number].error_code == ErrorCode.NONE:
                self._answers[number] = ProduceResult(code, -1)
        self.set_result(self._answers)
