"""Environments of log tests: a real disk on asyncio's own event loop, or a simulated disk on virtual time."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

from coordinator.errors import LogError
from coordinator.log.base import StateLog
from coordinator.log.journal import Disk, Journal, RealDisk
from protocol.record_batch import decode_batches
from tests.simulation.disk import DiskFaults, SimStorage
from tests.simulation.loop import SimLoop

STATE_PARTITIONS = 5
SEGMENT_BYTES = 8 << 10

Records = list[tuple[bytes, bytes | None]]


class LogEnvironment:
    """Storage that outlives logs, and the event loop that the logs run on."""

    new_loop: Callable[[], asyncio.AbstractEventLoop] = staticmethod(asyncio.new_event_loop)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end. Raise the first exception of a callback or of a task that was never
        awaited.
        """
        failures: list[BaseException] = []

        def record_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            failures.append(context.get("exception") or RuntimeError(str(context)))

        # asyncio reports the exception of a task without an awaiter when the task is garbage-collected.
        # gc.freeze() excludes older objects from the collection, so the collection is fast.
        gc.freeze()
        try:
            with asyncio.Runner(loop_factory=self.new_loop) as runner:
                runner.get_loop().set_exception_handler(record_failure)
                result = runner.run(main)
            gc.collect()
        finally:
            gc.unfreeze()
        if failures:
            raise failures[0]
        return result

    def disk(self) -> Disk:
        """Return a new disk object on the same storage, for the next process."""
        raise NotImplementedError

    def journal(self, sync: str = "always", segment_bytes: int = SEGMENT_BYTES) -> Journal:
        """Return a journal on this storage. The journal is not open."""
        assert sync in ("always", "os")
        return Journal(
            Path("unused"),
            state_partitions=STATE_PARTITIONS,
            segment_bytes=segment_bytes,
            sync=sync,
            disk=self.disk(),
        )


class RealDiskEnvironment(LogEnvironment):
    """A folder on a real disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def disk(self) -> Disk:
        return RealDisk(self.folder)


class SimulatedEnvironment(LogEnvironment):
    """Simulated storage on virtual time."""

    new_loop = SimLoop

    def __init__(self, seed: int = 1, faults: DiskFaults | None = None) -> None:
        self.storage = SimStorage(Random(seed), faults)

    def disk(self) -> Disk:
        return self.storage.disk()


async def append(
    log: StateLog, state_partition: int, records: Records, timestamp_ms: int = 1
) -> tuple[int, LogError | None]:
    """Append records and wait. Return the base offset and the error that the callback `done` received."""
    told: asyncio.Future[tuple[int, LogError | None]] = asyncio.get_running_loop().create_future()

    def on_append_done(base_offset: int, error: LogError | None) -> None:
        # A cancelled caller no longer waits.
        if not told.cancelled():
            told.set_result((base_offset, error))

    log.append(state_partition, records, timestamp_ms, on_append_done)
    assert not told.done(), "done was called from inside append"
    return await told


async def append_durably(log: StateLog, state_partition: int, records: Records) -> int:
    """Append, and fail if the append fails. Return the base offset."""
    base_offset, error = await append(log, state_partition, records)
    assert error is None
    return base_offset


async def append_error(log: StateLog, state_partition: int, records: Records) -> LogError | None:
    """Append, and return the error that the callback `done` received."""
    return (await append(log, state_partition, records))[1]


async def prune_log(log: StateLog, state_partition: int, before_offset: int) -> None:
    """Prune, and renew the lease if pruning requires a renewal, as the runtime does."""
    log.prune(state_partition, before_offset)
    if log.renewal_due(state_partition, read=False):
        assert await append_error(log, state_partition, []) is None


async def read_all(
    log: StateLog, state_partitions: range = range(STATE_PARTITIONS)
) -> dict[int, list[tuple[int, bytes | None, bytes | None]]]:
    """Return (log offset, key, value) of every record in the log, by state partition."""
    found: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {}
    async for chunk in log.read(state_partitions):
        for state_partition, batch_bytes in chunk:
            for batch in decode_batches(batch_bytes):
                found.setdefault(state_partition, []).extend(
                    (record.offset, record.key, record.value) for record in batch.records
                )
    return found
