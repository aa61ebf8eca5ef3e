"""A memory log whose appends can be held back, released or failed by a test."""

from collections.abc import AsyncIterator, Collection, Sequence
from math import inf
from typing import Any

from coordinator.errors import LogError
from coordinator.log.base import AppendCallback, LoggedBatch, Unit
from coordinator.log.memory import MemoryLog


class BlockingLog:
    """A memory log that holds appends while `blocking` is set; `lease_s` is the remaining lease in
    seconds."""

    def __init__(self, partitions: int) -> None:
        self.inner = MemoryLog(partitions)
        self.lease_s = inf
        self.unhealthy: str | None = None
        self.read_error: LogError | None = None
        self.held: list[tuple[int, Sequence[Any], int, AppendCallback]] = []
        self.blocking = True

    def append(
        self,
        state_partition: int,
        records: Sequence[Any],
        timestamp_ms: int,
        done: AppendCallback,
        units: Sequence[Unit] = (),
    ) -> None:
        if self.blocking:
            self.held.append((state_partition, records, timestamp_ms, done))
        else:
            self.inner.append(state_partition, records, timestamp_ms, done)

    def release_appends(self) -> None:
        """Pass all held appends to the memory log."""
        held, self.held = self.held, []
        for one in held:
            self.inner.append(*one)

    def fail_appends(self, error: LogError) -> None:
        """Fail all held appends; none of their records is stored."""
        held, self.held = self.held, []
        for state_partition, _, _, done in held:
            done(self.inner.end_offset(state_partition), error)

    async def read(self, state_partitions: Collection[int]) -> AsyncIterator[list[LoggedBatch]]:
        if self.read_error is not None:
            raise self.read_error
        async for chunk in self.inner.read(state_partitions):
            yield chunk

    def lease_left_s(self, state_partition: int) -> float:
        return self.lease_s

    def health(self) -> str | None:
        return self.unhealthy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
