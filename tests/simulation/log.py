"""Simulate a state log that outlives processes, with the faults that the log interface permits.

Possible faults: an append takes long. An append fails without writing. The outcome of an append is unknown,
and its records were written or not. The process dies before the result of an append, and its records were
written or not. The log accepts no writes for a while, and reports that. Reads fail for a while. The log
requests that old records are rewritten. Pruned records reappear after a restart.  Impossible: a successful
append is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from coordinator.errors import LogError, LogOutcomeUnknown, LogUnavailable
from coordinator.log.base import RECORD_BYTES_MAX, AppendCallback, LoggedBatch, Unit
from protocol.record_batch import encode_batch, next_offset_at


@dataclass(frozen=True)
class LogFaults:
    """Rates are per append or per read. Times are means of exponential delays, in seconds."""

    append_s: float = 0.002
    stall_rate: float = 0.0
    stall_s: float = 1.0
    unavailable_rate: float = 0.0
    unknown_rate: float = 0.0
    read_fails_rate: float = 0.0
    refuses_rate: float = 0.0
    refuses_s: float = 2.0
    pinned_rate: float = 0.0
    has_lease: bool = True


NO_LOG_FAULTS = LogFaults()


class LogStorage:
    """The durable data: batches and start offsets of every state partition."""

    def __init__(self, state_partitions: int) -> None:
        self.batches: list[list[bytes]] = [[] for _ in range(state_partitions)]
        self.pruned = [0] * state_partitions

    def end(self, state_partition: int) -> int:
        """Return the log offset of the next record."""
        batches = self.batches[state_partition]
        return next_offset_at(batches[-1], 0) if batches else 0

    def write(
        self, state_partition: int, records: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int
    ) -> int:
        """Append a batch; return its base offset."""
        base_offset = self.end(state_partition)
        self.batches[state_partition].append(encode_batch(base_offset, timestamp_ms, records))
        return base_offset

    def drop_pruned_batches(self, rng: Random) -> None:
        """Drop some of the pruned batches; the last one stays, because it determines the end offset."""
        for state_partition, batches in enumerate(self.batches):
            before = self.pruned[state_partition]
            while len(batches) > 1 and next_offset_at(batches[0], 0) <= before and rng.random() < 0.8:
                del batches[0]


class FaultyLog:
    """The view of one process on the storage."""

    def __init__(self, storage: LogStorage, rng: Random, faults: LogFaults) -> None:
        self.faults = faults
        self.record_bytes_max = RECORD_BYTES_MAX
        self._storage = storage
        self._rng = rng
        self._start_offsets = [0] * len(storage.batches)
        self._in_flight: set[int] = set()
        self._refuses_until_s = 0.0
        self._pins: dict[int, int] = {}
        self._pins_until_s = 0.0

    def lease_left_s(self, state_partition: int) -> float:
        """Return infinite seconds if reads may be answered from memory, else 0."""
        return inf if self.faults.has_lease else 0.0

    def renewal_due(self, state_partition: int, *, read: bool) -> bool:
        """Return False."""
        return False

    async def open(self) -> None:
        """Open the log; some pruned batches may be dropped."""
        self._storage.drop_pruned_batches(self._rng)

    async def close(self) -> None:
        """Wait for the appends in progress."""
        while self._in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def read(self, state_partitions: Collection[int]) -> AsyncIterator[list[LoggedBatch]]:
        """Yield every batch, in chunks of a few batches; any chunk may fail."""
        rng = self._rng
        waiting = [
            [LoggedBatch(state_partition, batch) for batch in self._storage.batches[state_partition]]
            for state_partition in state_partitions
        ]
        while waiting := [batches for batches in waiting if batches]:
            if rng.random() < self.faults.read_fails_rate:
                raise LogUnavailable("the simulated storage cannot be read")
            await asyncio.sleep(rng.expovariate(1 / 0.001))
            batches = rng.choice(waiting)
            count = rng.randrange(1, len(batches) + 1)
            yield batches[:count]
            del batches[:count]

    def append(
        self,
        state_partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        done: AppendCallback,
        units: Sequence[Unit] = (),
    ) -> None:
        """Write after a delay, and report the result after another delay."""
        assert state_partition not in self._in_flight, "one append per state partition at a time"
        self._in_flight.add(state_partition)
        loop = asyncio.get_running_loop()
        rng, faults = self._rng, self.faults
        base_offset = self._storage.end(state_partition)
        error: LogError | None = None
        written = True
        chance = rng.random()
        if self.health() is not None or chance < faults.unavailable_rate:
            error, written = LogUnavailable("the simulated storage accepts no writes"), False
        elif chance < faults.unavailable_rate + faults.unknown_rate:
            error, written = LogOutcomeUnknown("the simulated storage did not respond"), rng.random() < 0.5
        if rng.random() < faults.refuses_rate:
            self._refuses_until_s = loop.time() + rng.expovariate(1 / faults.refuses_s)
        write_s = rng.expovariate(1 / faults.append_s)
        report_s = rng.expovariate(1 / faults.append_s)
        if rng.random() < faults.stall_rate:
            write_s += min(rng.expovariate(1 / faults.stall_s), 4 * faults.stall_s)

        def write_batch() -> None:
            if written and records:
                self._storage.write(state_partition, records, timestamp_ms)
            loop.call_later(report_s, report_result)

        def report_result() -> None:
            self._in_flight.remove(state_partition)
            done(base_offset, error)

        loop.call_later(write_s, write_batch)

    def prune(self, state_partition: int, before_offset: int) -> None:
        """Advance the start offset; the storage is freed now or when the log is opened again."""
        start_offset = min(before_offset, self._storage.end(state_partition))
        if start_offset > self._start_offsets[state_partition]:
            self._start_offsets[state_partition] = start_offset
            self._storage.pruned[state_partition] = max(self._storage.pruned[state_partition], start_offset)
            if self._rng.random() < 0.5 and not self._in_flight:
                self._storage.drop_pruned_batches(self._rng)

    def start_offset(self, state_partition: int) -> int:
        """Return the offset of the first record that is not pruned."""
        return self._start_offsets[state_partition]

    def end_offset(self, state_partition: int) -> int:
        """Return the offset of the next record."""
        return self._storage.end(state_partition)

    def prune_offsets_freeing_storage(self, live_bytes: int = 0) -> Mapping[int, int]:
        """Request at random that a part of the log is rewritten, until it has been pruned."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._pins_until_s:
            self._pins_until_s = now_s + self._rng.expovariate(0.2)
            self._pins = {
                state_partition: self._rng.randrange(self._storage.end(state_partition) + 1)
                for state_partition in range(len(self._start_offsets))
                if self._rng.random() < self.faults.pinned_rate
            }
        return {
            state_partition: log_offset
            for state_partition, log_offset in self._pins.items()
            if self._start_offsets[state_partition] < log_offset
        }

    def health(self) -> str | None:
        """Return an error message while the log accepts no writes."""
        if asyncio.get_running_loop().time() < self._refuses_until_s:
            return "the simulated storage accepts no writes"
        return None

    def size_bytes(self) -> int:
        """Return the bytes of all batches."""
        return sum(len(batch) for batches in self._storage.batches for batch in batches)
