"""The disk under the journal: a folder of files, with as few promises as the journal needs.

What a disk promises, and what may break:

* `write` with `sync` is durable, as a whole and with everything written to the file before, when it reports
  no error. When it reports one, each sector of what it was to make durable may or may not be on the disk, now
  or after a crash, and asking again tells nothing: the system may have forgotten that it never wrote them.
* `write` without `sync` survives the process, and the machine only after a later `sync` of the same file.
* A write that was under way when the process or the machine died may be there in part, any sectors of it.
* `prepare` gives a file of zeros, durable with its name.
* What fails says so with OSError as a rule, and any other exception counts as much.
* Bytes that were durable are read back as they are, or the disk is damaged, which a checksum notices.

`RealDisk` is the machine's; `tests/simulation/disk.py` has one that forgets, tears and fails on purpose, and
both pass the same contract tests.
"""

import asyncio
import errno
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from coordinator.errors import LogLocked, LogUnavailable
from coordinator.log.journal.committer import Committer, WriteCallback, new_committer, write_fully

LOCK_NAME = "lock"
# The journal has the state of all share groups: its user writes it, its group may read it, nobody else does.
FOLDER_MODE, FILE_MODE = 0o750, 0o640
# Zeros are written in pieces of this size. The system keeps each as one in memory, and goes through all of
# it for each commit: with 1 MiB one takes 1.2 µs longer, with a sync 12 µs of 100 (ext4, Linux 6.18).
_ZEROS = bytes(1 << 16)
# Threads for what is no commit.
_BACKGROUND_THREADS = 2


class Disk(Protocol):
    """A folder of files.  All methods are called on the event loop's thread."""

    def lock(self) -> None:
        """Take the folder for this process, and make it if it is not there.

        Raises LogLocked if another process has it, LogUnavailable if no thread can be started, OSError if it
        cannot be used.
        """
        ...

    def unlock(self) -> None:
        """Let go of the folder, and of every file.  No write may be under way.  Harmless without the lock."""
        ...

    def names(self) -> list[str]:
        """Return the names of the files, the lock left out, in order."""
        ...

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        ...

    def describe(self, name: str) -> str:
        """Return what a person calls the file: its path."""
        ...

    async def read(self, name: str, position: int, size: int) -> bytes:
        """Return up to `size` bytes; less only at the end of the file.  Raises OSError."""
        ...

    async def prepare(self, name: str, size: int) -> None:
        """Make a file of zeros, durable with its name, in place of any that is there; or raise OSError."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a file, durably; it may be missing already.  Raises OSError."""
        ...

    async def sync(self, name: str) -> None:
        """Make all of a file durable.  Raises OSError."""
        ...

    async def replace(self, name: str, data: bytes) -> None:
        """Make a file hold exactly one sector of data, durably, while other writes go on.

        The file is created if it is missing. After a crash it holds the old data or the new. Raises OSError.
        """
        ...

    def put(self, name: str, position: int, data: bytes) -> bool:
        """Overwrite part of a file that was prepared, now and without a sync; or raise OSError.

        False: nothing was done, because it may take a while; `write` does it.
        """
        ...

    def write(self, name: str, position: int, data: bytes, sync: bool, done: WriteCallback) -> None:
        """Overwrite part of a file that was prepared, and make all of the file durable if `sync`.

        `done` is called once, on the event loop, never from within this call.  At most one write is under way
        at a time.  Who calls waits for no sync, but the system may hold up the write itself.
        """
        ...


def write_promptly(
    disk: Disk, name: str, position: int, data: bytes, sync: bool, done: WriteCallback
) -> bool:
    """Write now and return True, where that needs no waiting; or do what `Disk.write` does, and return False.

    Raises what the disk raises; then `done` is not called.
    """
    if not sync and disk.put(name, position, data):
        return True
    disk.write(name, position, data, sync, done)
    return False


async def write_durably(disk: Disk, name: str, position: int, data: bytes) -> None:
    """Write with a sync, and wait for it.  Raises OSError."""
    written: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    disk.write(name, position, data, True, written.set_result)
    error = await written
    if error is not None:
        raise error


def check_free(folder: Path) -> None:
    """Raise what `RealDisk.lock` would if another process has the folder. Nothing is made or changed.

    Whoever takes the folder in the same moment may be refused: there is no other way to ask.
    """
    path = folder / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        # Shared, so that those who only ask do not meet each other.
        _flock(path, descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _flock(path: Path, descriptor: int, how: int) -> None:
    """Take a lock at once. Raises LogLocked, with the number that its owner left there, and OSError."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        owner = os.read(descriptor, 32).strip()
        raise LogLocked(path, int(owner) if owner.isdigit() else None) from None


class RealDisk:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptors: dict[str, int] = {}
        self._opening = threading.Lock()
        self._lock_descriptor: int | None = None
        self._committer: Committer | None = None
        # A reader does not wait while a file is being prepared.
        self._background_pool: ThreadPoolExecutor | None = None

    def lock(self) -> None:
        """Take the folder, which is made if it is not there."""
        missing = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        self._folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        for path in missing:
            _sync_folder(path.parent)
        path = self._folder / LOCK_NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            _flock(path, descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
        # A disk that is full does not take even this much; reading goes on all the same.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        self._lock_descriptor = descriptor
        self._background_pool = ThreadPoolExecutor(_BACKGROUND_THREADS, thread_name_prefix="journal-chores")
        try:
            _start_threads(self._background_pool, _BACKGROUND_THREADS)
            self._committer = new_committer()
        except RuntimeError as error:
            self.unlock()
            raise LogUnavailable(
                f"the journal cannot be used: {error}; allow more threads (ulimit -u, or the container's "
                f"pids limit)"
            ) from error
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        """Close everything; the lock goes last."""
        if self._committer is not None:
            self._committer.close()
            self._committer = None
        if self._background_pool is not None:
            self._background_pool.shutdown()
            self._background_pool = None
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def names(self) -> list[str]:
        """Return the names of the files, the lock left out, in order."""
        return sorted(path.name for path in self._folder.iterdir() if path.name != LOCK_NAME)

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return (self._folder / name).stat().st_size

    def describe(self, name: str) -> str:
        """Return the path of a file."""
        return str(self._folder / name)

    async def read(self, name: str, position: int, size: int) -> bytes:
        """Return up to `size` bytes; less only at the end of the file."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._background_pool, self._read, name, position, size)

    def _read(self, name: str, position: int, size: int) -> bytes:
        with open(self._folder / name, "rb", buffering=0) as file:
            file.seek(position)
            pieces = []
            while size and (piece := file.read(size)):
                pieces.append(piece)
                size -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def prepare(self, name: str, size: int) -> None:
        """Make a file of zeros, durable with its name; one that cannot be made as a whole is removed."""
        await asyncio.get_running_loop().run_in_executor(self._background_pool, self._prepare, name, size)

    def _prepare(self, name: str, size: int) -> None:
        path = self._folder / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            # Reserved first, so that a full disk says so before its last bytes are taken from others; then
            # written, so that a commit overwrites blocks and changes no metadata.
            os.posix_fallocate(descriptor, 0, size)
            position = 0
            while position < size:
                position += os.pwrite(descriptor, _ZEROS[: size - position], position)
            os.fsync(descriptor)
        except Exception:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        _sync_folder(self._folder)

    async def remove(self, name: str) -> None:
        """Remove a file, durably."""
        descriptor = self._descriptors.pop(name, None)
        await asyncio.get_running_loop().run_in_executor(
            self._background_pool, self._remove, name, descriptor
        )

    def _remove(self, name: str, descriptor: int | None) -> None:
        if descriptor is not None:
            os.close(descriptor)
        (self._folder / name).unlink(missing_ok=True)
        _sync_folder(self._folder)

    async def sync(self, name: str) -> None:
        """Make all of a file durable."""
        await asyncio.get_running_loop().run_in_executor(self._background_pool, self._sync, name)

    def _sync(self, name: str) -> None:
        os.fdatasync(self._descriptor(name))

    async def replace(self, name: str, data: bytes) -> None:
        """Make a file hold exactly one sector of data, durably."""
        await asyncio.get_running_loop().run_in_executor(self._background_pool, self._replace, name, data)

    def _replace(self, name: str, data: bytes) -> None:
        path = self._folder / name
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            write_fully(descriptor, 0, data)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            _sync_folder(self._folder)

    def put(self, name: str, position: int, data: bytes) -> bool:
        """Overwrite part of a file: the system's memory takes it in microseconds."""
        write_fully(self._descriptor(name), position, data)
        return True

    def write(self, name: str, position: int, data: bytes, sync: bool, done: WriteCallback) -> None:
        """Overwrite part of a file, and make all of the file durable if `sync`."""
        try:
            descriptor = self._descriptor(name)
            if not sync:
                write_fully(descriptor, position, data)
        except OSError as error:
            asyncio.get_running_loop().call_soon(done, error)
            return
        if sync:
            assert self._committer is not None, "the folder is not locked"
            self._committer.commit(descriptor, position, data, done)
        else:
            asyncio.get_running_loop().call_soon(done, None)

    def _descriptor(self, name: str) -> int:
        """Return the open file; it stays open until it is removed."""
        descriptor = self._descriptors.get(name)
        if descriptor is not None:
            return descriptor
        # From here on another thread may be about the same.
        with self._opening:
            descriptor = self._descriptors.get(name)
            if descriptor is None:
                descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC)
                self._descriptors[name] = descriptor
            return descriptor


def _start_threads(chores: ThreadPoolExecutor, count: int) -> None:
    """Start all threads of a new pool. Raises RuntimeError if one cannot be started.

    What is given to a pool that has to start one for it, and cannot, fails at once and is carried out all the
    same, by another thread: a file would be made or removed when it is in use by then.
    """
    all_started = threading.Barrier(count)
    try:
        for _ in range(count):
            chores.submit(all_started.wait)
    except BaseException:
        all_started.abort()
        raise


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
