"""Disk interface of the journal: a folder of files with minimal guarantees.

Guarantees and possible failures:

* If `write` with `sync` reports no error, the write and all earlier writes to the file are durable.
  If the write reports an error, each unsynced sector may or may not be on the disk, now or after a crash. A
  second sync proves nothing, because the system may have dropped the unwritten sectors.
* `write` without `sync` survives a crash of the process.  The write survives a crash of the machine only
  after a later `sync` of the same file.
* If the process or the machine dies during a write, any of the write's sectors may be on the disk.
* `prepare` creates a file of zeros; the file and its name are durable.
* Failures usually raise OSError; any other exception has the same meaning.
* Durable bytes are read back unchanged, unless the disk is damaged; a checksum detects damage.

`RealDisk` uses the file system.  `tests/simulation/disk.py` has a disk that loses and tears writes and fails
on purpose.  Both implementations of `Disk` pass the same contract tests.
"""

import asyncio
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from coordinator.errors import LogLocked, LogUnavailable
from coordinator.log.journal.committer import Committer, WriteCallback, new_committer, write_fully

LOCK_NAME = "lock"
# Both are locked: the folder keeps its lock if somebody removes the lock file or moves the folder.
_LOCKED_NAMES = (".", LOCK_NAME)
# The journal contains the state of all share groups: its user may write, and its group may read.
FOLDER_MODE, FILE_MODE = 0o750, 0o640
# New files are filled with zeros in blocks of this size. The page cache stores each block as one folio, and
# each commit scans a whole folio. Larger blocks therefore make commits slower: with 1 MiB, by 1.2 µs, or by
# 12 µs of 100 µs with sync (ext4, Linux 6.18).
_ZEROS = bytes(1 << 16)
# Number of threads for all work except commits.
_BACKGROUND_THREADS = 2


class Disk(Protocol):
    """A folder of files.  All methods are called on the event loop's thread."""

    def lock(self) -> None:
        """Lock the folder for this process; create the folder if it is missing.

        Raises LogLocked if another process holds the lock, LogUnavailable if no thread can be started, and
        OSError if the folder cannot be used.
        """

    def unlock(self) -> None:
        """Wait for the write in progress, close all files, release the lock.  Harmless without the lock."""

    def names(self) -> list[str]:
        """Return the sorted names of the files without the lock file."""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""

    def describe(self, name: str) -> str:
        """Return the path of a file, for messages."""

    async def read(self, name: str, position: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file.  Raises OSError."""

    async def prepare(self, name: str, size: int) -> None:
        """Create or replace a file with zeros; the file and its name are durable.  Raises OSError."""

    async def remove(self, name: str) -> None:
        """Remove a file durably, if it exists.  Raises OSError."""

    async def sync(self, name: str) -> None:
        """Make all bytes of a file durable.  Raises OSError."""

    async def replace(self, name: str, data: bytes) -> None:
        """Durably replace the content of a file with one sector of data; other writes may be in progress.

        The file is created if it is missing. After a crash, the file has the old data or the new data. Raises
        OSError.
        """

    def write(self, name: str, position: int, data: bytes, sync: bool, done: WriteCallback) -> bool:
        """Overwrite part of a prepared file; if `sync`, make the whole file durable.  Raises OSError.

        Returns True if the write is complete.  If the write is not complete, `done` is called once, on the
        event loop, and never during this call.  At most one write may be in progress at a time.  The caller
        does not wait for the sync, but the system may delay the write itself.
        """


async def write_durably(disk: Disk, name: str, position: int, data: bytes) -> None:
    """Write, sync and wait for the result.  Raises OSError.  After a cancellation, only unlock the disk."""
    written: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def on_written(error: Exception | None) -> None:
        if not written.cancelled():
            written.set_result(error)

    if not disk.write(name, position, data, True, on_written) and (error := await written):
        raise error


def check_not_locked(folder: Path) -> None:
    """Raise the errors of `RealDisk.lock` if another process has locked the folder; change nothing.

    A process that locks the folder during the check may fail, because the check needs the lock itself.
    """
    for name in _LOCKED_NAMES:
        with suppress(FileNotFoundError):
            # A shared lock, so that concurrent checks do not conflict.
            os.close(_open_locked(folder, name, 0, fcntl.LOCK_SH))


def _open_locked(folder: Path, name: str, flags: int, how: int) -> int:
    """Open and lock a file or "." without blocking.

    Raises OSError, and LogLocked with the process id in the lock file.
    """
    is_folder = name == "."
    if is_folder:
        flags |= os.O_DIRECTORY
    elif how == fcntl.LOCK_EX:
        # NFS gives an exclusive lock only to a file that is open for writing.
        flags |= os.O_RDWR
    descriptor = os.open(folder / name, flags | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        is_locked = error.errno in (errno.EWOULDBLOCK, errno.EACCES)
        if is_folder and not is_locked:
            # Some file systems cannot lock folders.
            return descriptor
        os.close(descriptor)
        if not is_locked:
            raise
        with suppress(OSError, ValueError):
            raise LogLocked(folder, int((folder / LOCK_NAME).read_bytes())) from None
        raise LogLocked(folder, None) from None
    return descriptor


P = ParamSpec("P")
T = TypeVar("T")


def _in_background(
    method: Callable[Concatenate["RealDisk", P], T],
) -> Callable[Concatenate["RealDisk", P], Coroutine[Any, Any, T]]:
    """Turn a method that blocks into a coroutine function that runs it on a background thread."""

    async def run_in_pool(disk: "RealDisk", /, *args: P.args, **kwargs: P.kwargs) -> T:
        call = partial(method, disk, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(disk._background_pool, call)

    return run_in_pool


class RealDisk:
    """A folder in the file system."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptors: dict[str, int] = {}
        self._opening = threading.Lock()
        # With the lock, files are opened relative to the locked folder, which may be moved.
        self._folder_descriptor: int | None = None
        self._lock_descriptor: int | None = None
        self._committer: Committer | None = None
        # Two threads, so that reads do not wait while a file is prepared.
        self._background_pool: ThreadPoolExecutor | None = None

    def lock(self) -> None:
        """Lock the folder; create it if it is missing."""
        missing = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        self._folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        for path in missing:
            _sync_folder(path.parent)
        try:
            self._folder_descriptor = _open_locked(self._folder, ".", 0, fcntl.LOCK_EX)
            descriptor = _open_locked(self._folder, LOCK_NAME, os.O_CREAT, fcntl.LOCK_EX)
            self._lock_descriptor = descriptor
            # If the disk is full, the process id is not written; the lock is valid without it.
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
            self._background_pool = ThreadPoolExecutor(
                _BACKGROUND_THREADS, thread_name_prefix="journal-chores"
            )
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
        """Close all files; release the lock last."""
        if self._committer is not None:
            self._committer.close()
            self._committer = None
        if self._background_pool is not None:
            self._background_pool.shutdown()
            self._background_pool = None
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        for lock in (self._lock_descriptor, self._folder_descriptor):
            if lock is not None:
                os.close(lock)
        self._lock_descriptor = self._folder_descriptor = None

    def names(self) -> list[str]:
        folder = self._folder if self._folder_descriptor is None else self._folder_descriptor
        return sorted(name for name in os.listdir(folder) if name != LOCK_NAME)

    def size(self, name: str) -> int:
        return os.stat(self._path(name), dir_fd=self._folder_descriptor).st_size

    def describe(self, name: str) -> str:
        return str(self._folder / name)

    @_in_background
    def read(self, name: str, position: int, size: int) -> bytes:
        with open(name, "rb", buffering=0, opener=self._open) as file:
            file.seek(position)
            pieces = []
            while size and (piece := file.read(size)):
                pieces.append(piece)
                size -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @_in_background
    def prepare(self, name: str, size: int) -> None:
        """Create a durable file of zeros; an incomplete file is removed."""
        folder = self._locked_folder()
        descriptor = self._open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            # Reserve the space first, so that a full disk fails before any byte is written. Then write zeros,
            # so that commits overwrite allocated blocks and change no metadata.
            os.posix_fallocate(descriptor, 0, size)
            position = 0
            while position < size:
                position += os.pwrite(descriptor, _ZEROS[: size - position], position)
            os.fsync(descriptor)
        except Exception:
            os.unlink(name, dir_fd=folder)
            raise
        finally:
            os.close(descriptor)
        os.fsync(folder)

    @_in_background
    def remove(self, name: str) -> None:
        folder = self._locked_folder()
        with self._opening:
            descriptor = self._descriptors.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        os.fsync(folder)

    @_in_background
    def sync(self, name: str) -> None:
        os.fdatasync(self._descriptor(name))

    @_in_background
    def replace(self, name: str, data: bytes) -> None:
        folder = self._locked_folder()
        is_new = not os.access(name, os.F_OK, dir_fd=folder)
        descriptor = self._open(name, os.O_RDWR | os.O_CREAT)
        try:
            write_fully(descriptor, 0, data)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            os.fsync(folder)

    def write(self, name: str, position: int, data: bytes, sync: bool, done: WriteCallback) -> bool:
        """Overwrite part of a file: at once, or with a sync in the background."""
        descriptor = self._descriptor(name)
        if sync:
            assert self._committer is not None, "the folder is not locked"
            self._committer.commit(descriptor, position, data, done)
        else:
            # The page cache takes the bytes in microseconds.
            write_fully(descriptor, position, data)
        return not sync

    def _path(self, name: str) -> Path | str:
        """Return the path of a file, relative to the locked folder if it is locked."""
        return self._folder / name if self._folder_descriptor is None else name

    def _open(self, name: str, flags: int) -> int:
        return os.open(self._path(name), flags | os.O_CLOEXEC, FILE_MODE, dir_fd=self._folder_descriptor)

    def _locked_folder(self) -> int:
        """Return the descriptor of the folder. Raises OSError after `unlock`: another process may own it."""
        if self._folder_descriptor is None:
            raise OSError(errno.ENOLCK, "the journal is closed")
        return self._folder_descriptor

    def _descriptor(self, name: str) -> int:
        """Return the descriptor of a file, which stays open until the file is removed."""
        descriptor = self._descriptors.get(name)
        if descriptor is not None:
            return descriptor
        # Another thread may open the same file.
        with self._opening:
            descriptor = self._descriptors.get(name)
            if descriptor is None:
                descriptor = self._open(name, os.O_RDWR)
                self._descriptors[name] = descriptor
            return descriptor


def _start_threads(pool: ThreadPoolExecutor, count: int) -> None:
    """Start all threads of a new pool. Raises RuntimeError if a thread cannot be started.

    If a pool cannot start a thread for a submitted task, `submit` raises, but another thread may still run
    the task later. A file could then be created or removed while it is in use.
    """
    all_started = threading.Barrier(count)
    try:
        for _ in range(count):
            pool.submit(all_started.wait)
    except BaseException:
        all_started.abort()
        raise


def _sync_folder(folder: Path) -> None:
    """Make the file names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
