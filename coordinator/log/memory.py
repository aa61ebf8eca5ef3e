"""The state log in memory: reference implementation of `StateLog`, for tests and trials.

This log stores the same encoded batches as the other logs. The batches are lost when the process ends.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from coordinator.errors import LogUnavailable
from coordinator.log.base import RECORD_BYTES_MAX, AppendCallback, LoggedBatch, Unit, UnsharedLog
from protocol.record_batch import encode_batch, next_offset_at

CHUNK_BYTES = 1 << 20


class MemoryLog(UnsharedLog):
    """Batches in lists by state partition; a log that is reopened still has all appended records."""

    record_bytes_max = RECORD_BYTES_MAX

    def __init__(self, partitions: int) -> None:
        self._batches: list[list[bytes]] = [[] for _ in range(partitions)]
        self._start_offsets = [0] * partitions
        self._end_offsets = [0] * partitions
        self._in_flight: set[int] = set()
        self._idle_event = asyncio.Event()
        self._size_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Wait for the appends in progress; later appends are refused."""
        if self._in_flight:
            await self._idle_event.wait()
        self._loop = None

    async def read(self, state_partitions: Collection[int]) -> AsyncIterator[list[LoggedBatch]]:
        """Yield every batch of the state partitions as of the first step of the iteration."""
        batches = [
            LoggedBatch(state_partition, batch)
            for state_partition in state_partitions
            for batch in self.batches(state_partition)
        ]
        chunk: list[LoggedBatch] = []
        chunk_bytes = 0
        for logged in batches:
            chunk.append(logged)
            chunk_bytes += len(logged.batch)
            if chunk_bytes >= CHUNK_BYTES:
                yield chunk
                chunk, chunk_bytes = [], 0
        if chunk:
            yield chunk

    def batches(self, state_partition: int) -> list[bytes]:
        return list(self._batches[state_partition])

    def append(
        self,
        state_partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        done: AppendCallback,
        units: Sequence[Unit] = (),
    ) -> None:
        """Encode the records now; they are stored, and `done` is called, in the next loop iteration."""
        base_offset = self._end_offsets[state_partition]
        if self._loop is None:
            asyncio.get_running_loop().call_soon(done, base_offset, LogUnavailable("the log is not open"))
            return
        assert state_partition not in self._in_flight, "one append per state partition at a time"
        batch = encode_batch(base_offset, timestamp_ms, records) if records else b""
        self._in_flight.add(state_partition)
        self._idle_event.clear()
        self._loop.call_soon(self._finish_append, state_partition, base_offset, len(records), batch, done)

    def _finish_append(
        self, state_partition: int, base_offset: int, count: int, batch: bytes, done: AppendCallback
    ) -> None:
        self._in_flight.remove(state_partition)
        if not self._in_flight:
            self._idle_event.set()
        if batch:
            self._batches[state_partition].append(batch)
            self._end_offsets[state_partition] = base_offset + count
            self._size_bytes += len(batch)
            self._append_observer((batch,), 0)
        done(base_offset, None)

    def prune(self, state_partition: int, before_offset: int) -> None:
        """Raise the start offset, and delete the batches that are completely below it."""
        start_offset = min(before_offset, self._end_offsets[state_partition])
        if start_offset <= self._start_offsets[state_partition]:
            return
        self._start_offsets[state_partition] = start_offset
        batches = self._batches[state_partition]
        kept = [batch for batch in batches if next_offset_at(batch, 0) > start_offset]
        self._size_bytes -= sum(map(len, batches)) - sum(map(len, kept))
        self._batches[state_partition] = kept

    def start_offset(self, state_partition: int) -> int:
        return self._start_offsets[state_partition]

    def end_offset(self, state_partition: int) -> int:
        return self._end_offsets[state_partition]

    def prune_offsets_freeing_storage(self, live_bytes: int) -> Mapping[int, int]:
        """Return an empty mapping: ``prune`` frees memory directly."""
        return {}

    def health(self) -> str | None:
        return None if self._loop is not None else "The log is not open yet."

    def size_bytes(self) -> int:
        return self._size_bytes
