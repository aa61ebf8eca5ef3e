"""Write and sync journal data without blocking the event loop.

With the compiled module on Linux, the kernel performs the sync asynchronously; otherwise a thread does.
A thread needs two more wake-ups for each commit. On a fast disk, these wake-ups make a commit 1.5 times as
long.
"""

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from coordinator import fastpath

WriteCallback = Callable[[Exception | None], None]

_logger = logging.getLogger(__name__)


class Committer(Protocol):
    """Performs one write at a time. All methods are called on the event loop's thread."""

    def commit(self, descriptor: int, position: int, data: bytes, done: WriteCallback) -> None:
        """Overwrite part of an open file, sync all of it, and call `done` on the event loop."""

    def close(self) -> None:
        """Release all resources. No write may be in progress."""


def new_committer() -> Committer:
    """Return the fastest available committer. Raises RuntimeError if no thread can be started."""
    if fastpath.compiled is not None:
        try:
            return KernelCommitter()
        except OSError as error:
            _logger.info(
                "A thread syncs the journal, because asynchronous fdatasync is not available: %s",
                error,
            )
    return ThreadCommitter()


class KernelCommitter:
    """Committer that syncs with Linux's io_submit; an eventfd signals the end of the sync.

    The write itself is synchronous, like writes without a sync: the page cache usually takes it in
    microseconds (docs/operations.md describes the exceptions).  The constructor raises OSError if the system
    does not support asynchronous fdatasync.
    """

    def __init__(self) -> None:
        assert fastpath.compiled is not None
        self._commits = fastpath.compiled.Commits()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: WriteCallback | None = None

    def commit(self, descriptor: int, position: int, data: bytes, done: WriteCallback) -> None:
        assert self._done is None, "one write at a time"
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            loop.add_reader(self._commits.eventfd, self._on_sync_done)
            self._loop = loop
        try:
            self._commits.begin(descriptor, position, data)
        except OSError as error:
            loop.call_soon(done, error)
            return
        self._done = done

    def _on_sync_done(self) -> None:
        failure = self._commits.outcome()
        if failure is None:
            return
        assert self._done is not None, "a sync ended that was not requested"
        done, self._done = self._done, None
        done(OSError(failure, os.strerror(failure)) if failure else None)

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._commits.eventfd)
        self._commits.close()


class ThreadCommitter:
    """Committer with one thread that writes and syncs, one write after the other."""

    def __init__(self) -> None:
        self._commits: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run_writes, name="journal-commit", daemon=True)
        self._thread.start()

    def commit(self, descriptor: int, position: int, data: bytes, done: WriteCallback) -> None:
        loop = asyncio.get_running_loop()

        def write_and_sync() -> None:
            error: Exception | None = None
            try:
                write_fully(descriptor, position, data)
                os.fdatasync(descriptor)
            except Exception as failure:
                error = failure
            # If the event loop is closed, nothing waits for the result.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done, error)

        self._commits.put(write_and_sync)

    def close(self) -> None:
        self._commits.put(None)
        self._thread.join()

    def _run_writes(self) -> None:
        while (commit := self._commits.get()) is not None:
            commit()


def write_fully(descriptor: int, position: int, data: bytes) -> None:
    """Overwrite part of an open file, with repeated writes if needed. Raises OSError."""
    written = os.pwrite(descriptor, data, position)
    while written < len(data):
        step = os.pwrite(descriptor, data[written:], position + written)
        if step == 0:
            raise OSError(errno.EIO, "the disk accepted only part of a write")
        written += step
