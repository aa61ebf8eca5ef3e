"""Writes with a sync, on a thread of their own: the event loop goes on while the disk works.

One thread does what the disk is asked for, one write after the other.  The compiled one never waits for the
interpreter, which the event loop holds whenever it has something to do.
"""

import asyncio
import errno
import os
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from coordinator import hot

# What a compiled thread tells of a write: one `int` of C.
INT_BYTES = struct.calcsize("i")

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
    """A thread that runs compiled code only; it is asked through a pipe, and tells through another."""

    def __init__(self) -> None:
        assert hot.compiled is not None
        self._compiled = hot.compiled
        self._loop: asyncio.AbstractEventLoop | None = None
        # The thread reads the data, and has a share in it by having one in this.
        self._under_way: tuple[bytes, WriteDone] | None = None
        self._pipes: list[int] = []
        try:
            asked, self._ask = self._new_pipe()
            self._told, tell = self._new_pipe()
            os.set_blocking(self._told, False)
            self._thread = threading.Thread(
                target=self._run, args=(asked, tell), name="journal-commit", daemon=True
            )
            self._thread.start()
        except BaseException:
            self._close_pipes()
            raise

    def commit(self, descriptor: int, position: int, data: bytes, done: WriteDone) -> None:
        assert self._under_way is None, "one write at a time"
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            loop.add_reader(self._told, self._over)
        self._under_way = data, done
        try:
            self._compiled.commit(self._ask, descriptor, position, data)
        except OSError as error:
            self._under_way = None
            loop.call_soon(done, error)

    def _over(self) -> None:
        try:
            told = os.read(self._told, INT_BYTES)
        except BlockingIOError:
            return
        assert self._under_way is not None, "a write is over that nobody asked for"
        (_, done), self._under_way = self._under_way, None
        failure = int.from_bytes(told, sys.byteorder) if len(told) == INT_BYTES else errno.EIO
        done(OSError(failure, os.strerror(failure)) if failure else None)

    def close(self) -> None:
        self._compiled.ask_to_end(self._ask)
        self._thread.join()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._told)
        self._close_pipes()

    def _run(self, asked: int, tell: int) -> None:
        self._compiled.carry_out(asked, tell)

    def _new_pipe(self) -> tuple[int, int]:
        pipe = os.pipe()
        self._pipes += pipe
        return pipe

    def _close_pipes(self) -> None:
        for descriptor in self._pipes:
            os.close(descriptor)


def write_fully(descriptor: int, position: int, data: bytes) -> None:
    """Overwrite part of an open file. Raises OSError."""
    written = os.pwrite(descriptor, data, position)
    while written < len(data):
        step = os.pwrite(descriptor, data[written:], position + written)
        if step == 0:
            raise OSError(errno.EIO, "the disk took only part of a write")
        written += step
