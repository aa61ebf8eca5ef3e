"""Simulate a disk on virtual time that loses and tears writes and fails operations, as a seed determines.

* A write may stop in the middle, because of an I/O error.
* If a sync fails, some unsynced sectors are durable. The operating system never writes the other sectors,
although reads still return their content. * A file may fail to be created, read, replaced or removed. *
Writes and syncs take time. * If the process dies, a prefix of the write in progress remains. * If the power
fails, a random subset of the unsynced sectors remains. * `flip_bit` and `write_zeros` damage durable data.
Without these two functions, synced bytes never change.
"""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from coordinator.errors import LogLocked
from coordinator.log.journal.disk import WriteCallback

SECTOR_BYTES = 512


@dataclass
class DiskFaults:
    """The faults of a disk. Rates are per operation; times are means of exponential delays, in seconds."""

    write_fails_rate: float = 0.0
    sync_fails_rate: float = 0.0
    prepare_fails_rate: float = 0.0
    read_fails_rate: float = 0.0
    remove_fails_rate: float = 0.0
    replace_fails_rate: float = 0.0
    write_s: float = 0.0
    sync_s: float = 0.0
    stall_rate: float = 0.0
    stall_s: float = 0.0
    capacity_bytes: int | None = None


class SimFile:
    """A file: the content that reads return (`shown`), the durable content, and the unsynced sectors."""

    def __init__(self, size: int) -> None:
        self.shown = bytearray(size)
        self.durable = bytearray(size)
        self.dirty: set[int] = set()

    def write(self, position: int, data: bytes) -> None:
        """Write bytes, which reads return at once, but which are not durable before a sync."""
        end = position + len(data)
        if end > len(self.shown):
            self.durable.extend(bytes(end - len(self.shown)))
            self.shown.extend(bytes(end - len(self.shown)))
        self.shown[position:end] = data
        self.dirty.update(range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def make_sector_durable(self, sector: int) -> None:
        begin = sector * SECTOR_BYTES
        self.durable[begin : begin + SECTOR_BYTES] = self.shown[begin : begin + SECTOR_BYTES]

    def sync(self, is_kept: Callable[[int], bool]) -> None:
        """Make the unsynced sectors that `is_kept` selects durable; mark all sectors as synced."""
        for sector in sorted(self.dirty):
            if is_kept(sector):
                self.make_sector_durable(sector)
        self.dirty.clear()


@dataclass
class _PendingWrite:
    name: str
    position: int
    data: bytes
    sync: bool
    done: WriteCallback


class SimStorage:
    """The files of one directory, which outlive processes."""

    def __init__(self, rng: Random, faults: DiskFaults | None = None) -> None:
        self.rng = rng
        self.faults = faults if faults is not None else DiskFaults()
        self.files: dict[str, SimFile] = {}
        # The names of operations ("write", "sync", ...) that fail next, each entry once and in this order.
        self.next_faults: list[str] = []
        self._holder: SimDisk | None = None

    def disk(self) -> "SimDisk":
        """Return a `SimDisk` for a new process."""
        return SimDisk(self)

    def kill(self) -> None:
        """Kill the process that has locked the directory; its completed writes remain."""
        if self._holder is not None:
            self._holder.kill_process()

    def cut_power(self) -> None:
        """Kill the process; make a random subset of the unsynced sectors durable, and discard the others."""
        self.kill()
        for file in self.files.values():
            file.sync(lambda sector: self.rng.random() < 0.5)
            file.shown[:] = file.durable

    def flip_bit(self, name: str, position: int) -> None:
        """Flip one bit of a file, in the durable content and in the content that reads return."""
        file = self.files[name]
        file.durable[position] ^= 1 << self.rng.randrange(8)
        file.shown[position] = file.durable[position]

    def write_zeros(self, name: str, position: int, size: int) -> None:
        """Write zeros to a byte range of a file, as if the disk had lost a write."""
        file = self.files[name]
        file.durable[position : position + size] = bytes(size)
        file.shown[position : position + size] = bytes(size)

    def draw_failure(self, operation: str) -> bool:
        """Return whether the next operation with this name ("write", "sync", ...) fails."""
        if self.next_faults and self.next_faults[0] == operation:
            del self.next_faults[0]
            return True
        rate: float = getattr(self.faults, f"{operation}_fails_rate")
        return rate > 0 and self.rng.random() < rate

    def delay_s(self, mean_s: float) -> float:
        """Return a random duration of an operation, in seconds."""
        faults = self.faults
        if faults.stall_rate and self.rng.random() < faults.stall_rate:
            mean_s += faults.stall_s
        return self.rng.expovariate(1 / mean_s) if mean_s else 0.0

    def free_bytes(self) -> float:
        if self.faults.capacity_bytes is None:
            return float("inf")
        return self.faults.capacity_bytes - sum(len(file.shown) for file in self.files.values())

    def lock_directory(self, holder: "SimDisk") -> None:
        if self._holder is not None and self._holder is not holder:
            raise LogLocked("simulated/lock", 1)
        self._holder = holder

    def unlock_directory(self, holder: "SimDisk") -> None:
        if self._holder is holder:
            self._holder = None


class SimDisk:
    """The `Disk` that one process uses. When the process is killed, its pending operations never complete."""

    def __init__(self, storage: SimStorage) -> None:
        self._storage = storage
        self._is_alive = True
        self._in_flight: _PendingWrite | None = None

    def kill_process(self) -> None:
        """Kill the process; a random prefix of the write in progress reaches the file."""
        self._is_alive = False
        write = self._in_flight
        if write is not None and write.name in self._storage.files:
            size = self._storage.rng.randrange(len(write.data) + 1)
            self._storage.files[write.name].write(write.position, write.data[:size])
        self._storage.unlock_directory(self)

    def lock(self) -> None:
        """Lock the directory."""
        self._storage.lock_directory(self)

    def unlock(self) -> None:
        """Unlock the directory."""
        if self._in_flight is not None and self._is_alive:
            # Its caller was cancelled: as after a kill, part of the write may be in the file.
            self.kill_process()
        self._storage.unlock_directory(self)

    def names(self) -> list[str]:
        """Return the names of the files, sorted."""
        return sorted(self._storage.files)

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return len(self._existing_file(name).shown)

    def describe(self, name: str) -> str:
        """Return the name of the file for error messages."""
        return f"simulated/{name}"

    async def read(self, name: str, position: int, size: int) -> bytes:
        """Return up to `size` bytes of a file, including bytes that are not durable."""
        await self._wait_random_time(self._storage.faults.write_s)
        self._fail_randomly("read")
        return bytes(self._existing_file(name).shown[position : position + size])

    async def prepare(self, name: str, size: int) -> None:
        """Preallocate a file of zeros. Raises OSError if the disk is full."""
        await self._wait_random_time(self._storage.faults.sync_s)
        self._storage.files.pop(name, None)
        self._fail_randomly("prepare")
        if size > self._storage.free_bytes():
            raise OSError(errno.ENOSPC, "No space left on device")
        self._storage.files[name] = SimFile(size)

    async def remove(self, name: str) -> None:
        """Remove a file."""
        await self._wait_random_time(self._storage.faults.sync_s)
        self._fail_randomly("remove")
        self._storage.files.pop(name, None)

    async def sync(self, name: str) -> None:
        """Make the whole content of a file durable."""
        await self._wait_random_time(self._storage.faults.sync_s)
        error = self._sync(name)
        if error is not None:
            raise error

    async def replace(self, name: str, data: bytes) -> None:
        """Replace the content of a one-sector file atomically; the content becomes durable after a delay."""
        assert len(data) == SECTOR_BYTES
        await self._wait_random_time(self._storage.faults.write_s)
        self._fail_randomly("replace")
        if name not in self._storage.files and len(data) > self._storage.free_bytes():
            raise OSError(errno.ENOSPC, "No space left on device")
        file = self._storage.files.setdefault(name, SimFile(0))
        file.write(0, data)
        await self._wait_random_time(self._storage.faults.sync_s)
        file.sync(lambda sector: True)

    def write(self, name: str, position: int, data: bytes, sync: bool, done: WriteCallback) -> bool:
        """Write bytes, sync the file if requested, and call `done` with the error or None.

        Return False, because a simulated write is never complete when this method returns.
        """
        assert self._in_flight is None, "one write at a time"
        self._in_flight = _PendingWrite(name, position, data, sync, done)
        self._run_later(self._storage.faults.write_s, self._write)
        return False

    def _write(self) -> None:
        write = self._in_flight
        assert write is not None
        if write.name not in self._storage.files:
            self._complete_write(OSError(errno.ENOENT, "No such file"))
            return
        data = write.data
        failed = self._storage.draw_failure("write")
        if failed:
            data = data[: self._storage.rng.randrange(len(data) + 1)]
        self._existing_file(write.name).write(write.position, data)
        # The write is complete: if the process is killed from now on, all bytes remain.
        write.data = b""
        if failed:
            self._complete_write(OSError(errno.EIO, "Input/output error"))
        elif write.sync:
            self._run_later(self._storage.faults.sync_s, lambda: self._complete_write(self._sync(write.name)))
        else:
            self._complete_write(None)

    def _sync(self, name: str) -> OSError | None:
        rng = self._storage.rng
        if self._storage.draw_failure("sync"):
            self._existing_file(name).sync(lambda sector: rng.random() < 0.5)
            return OSError(errno.EIO, "Input/output error")
        self._existing_file(name).sync(lambda sector: True)
        return None

    def _complete_write(self, error: OSError | None) -> None:
        write = self._in_flight
        assert write is not None
        self._in_flight = None
        write.done(error)

    def _existing_file(self, name: str) -> SimFile:
        if name not in self._storage.files:
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        return self._storage.files[name]

    def _fail_randomly(self, operation: str) -> None:
        if self._storage.draw_failure(operation):
            raise OSError(errno.EIO, "Input/output error")

    def _run_later(self, mean_s: float, step: Callable[[], None]) -> None:
        def run_if_alive() -> None:
            if self._is_alive:
                step()

        asyncio.get_running_loop().call_later(self._storage.delay_s(mean_s), run_if_alive)

    async def _wait_random_time(self, mean_s: float) -> None:
        await asyncio.sleep(self._storage.delay_s(mean_s))
        if not self._is_alive:
            await asyncio.get_running_loop().create_future()
