"""Writes with a sync, on a thread of their own: the event loop goes on while the disk works.

One thread does what the disk is asked for, one write after the other.  The compiled one never waits for the
interpreter, which the event loop holds whenever it has something to do: it is told of a write through memory,
and tells that it is over through a pipe.
"""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from coordinator import hot

WriteDone = Callable[[OSError | None], None]


class Committer(Protocol):
    """One write at a time. All methods are for the event loop's thread."""

    def commit(self, descriptor: int, position: int, data: bytes, done: WriteDone) -> None:
        """Overwrite part of an open file, sync all of it, and call `done` on the event loop."""
        ...

    def close(self) -> None:
        """End the thread. No write may be under way."""
        ...


def new_committer() -> Committer:
    """Start a thread: the compiled way, where there is one."""
    return ThreadCommitter() if hot.compiled is None else CompiledCommitter()


class ThreadCommitter:
    """Python on the thread, too."""

    def __init__(self) -> None:
        self._commits: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal-commit", daemon=True)
        self._thread.start()

    def commit(self, descriptor: int, position: int, data: bytes, done: WriteDone) -> None:
        loop = asyncio.get_running_loop()

        def commit() -> None:
            error = None
            try:
                write_fully(descriptor, position, data)
                os.fdatasync(descriptor)
            except OSError as failure:
                error = failure
            # The loop may be closed by now: then nobody waits any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done, error)

        self._commits.put(commit)

    def close(self) -> None:
        self._commits.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (commit := self._commits.get()) is not None:
            commit()


class CompiledCommitter:
    """A thread that runs compiled code only."""

    def __init__(self) -> None:
        assert hot.compiled is not None
        self._told, told_by_thread = os.pipe()
        self._told_by_thread = told_by_thread
        os.set_blocking(self._told, False)
        self._commits = hot.compiled.CommitThread(told_by_thread)
        self._thread = threading.Thread(target=self._commits.run, name="journal-commit", daemon=True)
        self._thread.start()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: WriteDone | None = None

    def commit(self, descriptor: int, position: int, data: bytes, done: WriteDone) -> None:
        assert self._done is None, "one write at a time"
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            loop.add_reader(self._told, self._over)
        self._done = done
        self._commits.put(descriptor, position, data)

    def _over(self) -> None:
        try:
            os.read(self._told, 1)
        except BlockingIOError:
            return
        done, self._done = self._done, None
        assert done is not None, "a write is over that nobody asked for"
        failure = self._commits.take_outcome()
        done(OSError(failure, os.strerror(failure)) if failure else None)

    def close(self) -> None:
        self._commits.stop()
        self._thread.join()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._told)
        os.close(self._told)
        os.close(self._told_by_thread)


def write_fully(descriptor: int, position: int, data: bytes) -> None:
    """Overwrite part of an open file. Raises OSError."""
    written = os.pwrite(descriptor, data, position)
    while written < len(data):
        step = os.pwrite(descriptor, data[written:], position + written)
        if step == 0:
            raise OSError(errno.EIO, "the disk took only part of a write")
        written += step
