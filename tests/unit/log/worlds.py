"""Where log tests run: the real disk under asyncio's own loop, or the simulated one on virtual time."""

import asyncio
from collections.abc import Coroutine
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


class World:
    """Storage that outlives logs, and the loop that they run on."""

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run to the end."""
        with asyncio.Runner() as runner:
            return runner.run(main)

    def disk(self) -> Disk:
        """Return a disk for one more process."""
        raise NotImplementedError

    def journal(self, sync: str = "always", segment_bytes: int = SEGMENT_BYTES) -> Journal:
        """Return a journal of this storage, not open yet."""
        assert sync in ("always", "os")
        return Journal(
            Path("unused"),
            state_partitions=STATE_PARTITIONS,
            segment_bytes=segment_bytes,
            sync=sync,
            disk=self.disk(),
        )


class RealWorld(World):
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def disk(self) -> Disk:
        return RealDisk(self.folder)


class SimWorld(World):
    """Simulated storage on virtual time."""

    def __init__(self, seed: int = 1, faults: DiskFaults | None = None) -> None:
        self.storage = SimStorage(Random(seed), faults)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=SimLoop) as runner:
            return runner.run(main)

    def disk(self) -> Disk:
        return self.storage.disk()


async def append(
    log: StateLog, state_partition: int, records: Records, timestamp_ms: int = 1
) -> tuple[int, LogError | None]:
    """Append and wait: the base offset and the error that `done` was called with."""
    told: asyncio.Future[tuple[int, LogError | None]] = asyncio.get_running_loop().create_future()
    log.append(
        state_partition,
        records,
        timestamp_ms,
        lambda base_offset, error: told.set_result((base_offset, error)),
    )
    assert not told.done(), "done was called from inside append"
    return await told


async def append_durably(log: StateLog, state_partition: int, records: Records) -> int:
    """Append and wait; it must succeed.  Return the base offset."""
    base_offset, error = await append(log, state_partition, records)
    assert error is None
    return base_offset


async def read_all(
    log: StateLog, state_partitions: range = range(STATE_PARTITIONS)
) -> dict[int, list[tuple[int, bytes | None, bytes | None]]]:
    """Return (log offset, key, value) of all that the log has, by state partition."""
    found: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {}
    async for chunk in log.read(state_partitions):
        for state_partition, batch_bytes in chunk:
            for batch in decode_batches(batch_bytes):
                found.setdefault(state_partition, []).extend(
                    (record.offset, record.key, record.value) for record in batch.records
                )
    return found
