"""Read the log in a separate process, so that decoding does not delay brokers.

Decoding on a thread would hold the interpreter lock, and decoding on the event loop would delay writes. The
process starts with the first request, because most coordinators never need a history. The process serves
further requests until it has been idle for some minutes, because a start takes more processor time than
reading a short log.
"""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from multiprocessing.connection import Pipe
from typing import Any

from coordinator.errors import CoordinatorError
from coordinator.log.other_process import LogLocation
from coordinator.observe.signals.losses import LoggedSkips
from coordinator.operate.history.worker import SECONDS_MAX, HistoryRequest, HistoryResponse, SkipsRequest
from protocol.state_records import SharePartitionKey

# The priority is lowered before the imports, which take most of the processor time of the first request.
_PROGRAM = "import os; os.nice(5); from coordinator.operate.history.worker import main; main()"
COMMAND = [sys.executable, "-P", "-c", _PROGRAM]

# The process ends when it has had no request for `IDLE_S`, or uses more memory than `RESIDENT_BYTES_MAX`
# after a request.
IDLE_S = 300.0
RESIDENT_BYTES_MAX = 128 << 20

# Opens the log of a state partition for another process.
OpenLog = Callable[[int], AbstractContextManager[LogLocation]]


class HistoryUnavailable(CoordinatorError):
    """The log could not be read within the limits."""


class HistoryProcess:
    """A process that reads one history at a time; the caller limits the number of waiting requests."""

    def __init__(self, open_log: OpenLog) -> None:
        self._open_log = open_log
        self._worker_lock = threading.Lock()
        self._worker: _Worker | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def read_history(
        self, state_partition: int, key: SharePartitionKey, offset: int | None, before: int | None, limit: int
    ) -> dict[str, Any]:
        """Return a page of a delivery history as values for JSON. Raises CoordinatorError."""
        page: dict[str, Any] = await self._request_from_worker(
            state_partition,
            lambda log: HistoryRequest(log, state_partition, key, offset, before, limit),
        )
        return page

    async def read_skips(
        self, state_partition: int, from_offsets: Mapping[SharePartitionKey, int]
    ) -> Mapping[SharePartitionKey, LoggedSkips]:
        """Return the skips of share-partitions (see `SkipsRequest`). Raises CoordinatorError."""
        found: Mapping[SharePartitionKey, LoggedSkips] = await self._request_from_worker(
            state_partition, lambda log: SkipsRequest(log, state_partition, from_offsets)
        )
        return found

    async def _request_from_worker(
        self, state_partition: int, make_request: Callable[[LogLocation], HistoryRequest | SkipsRequest]
    ) -> Any:
        self._cancel_idle_timer()
        try:
            with self._open_log(state_partition) as log:
                return await asyncio.to_thread(self._send_request, make_request(log))
        finally:
            loop = asyncio.get_running_loop()
            self._cancel_idle_timer()
            self._idle_timer = loop.call_later(IDLE_S, loop.run_in_executor, None, self._end_idle_worker)

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None if no worker runs."""
        worker = self._worker
        return None if worker is None else worker.process.pid

    def close(self) -> None:
        """End the process, also while it reads a log; later requests fail."""
        self._is_closed = True
        self._cancel_idle_timer()
        if self._worker is not None:
            self._worker.process.kill()
        with self._worker_lock:
            self._end_worker()

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _end_idle_worker(self) -> None:
        # A request that holds the lock starts the timer again.
        if self._worker_lock.acquire(blocking=False):
            try:
                self._end_worker()
            finally:
                self._worker_lock.release()

    def _end_worker(self) -> int:
        worker, self._worker = self._worker, None
        return 0 if worker is None else worker.terminate()

    def _send_request(self, request: HistoryRequest | SkipsRequest) -> Any:
        with self._worker_lock:
            if self._worker is not None and self._worker.process.poll() is not None:
                self._end_worker()
            worker = self._worker = self._worker or _Worker()
            if self._is_closed:
                self._end_worker()
                raise HistoryUnavailable("the coordinator stops")
            try:
                worker.connection.send(request)
                answer: HistoryResponse = worker.connection.recv()
            except (EOFError, OSError):
                raise HistoryUnavailable(_describe_exit(self._end_worker())) from None
            if answer.resident_bytes > RESIDENT_BYTES_MAX:
                self._end_worker()
        if answer.problem:
            raise HistoryUnavailable(answer.problem)
        return answer.result


class _Worker:
    """A running process and the connection to it."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            fd = theirs.fileno()
            self.process = subprocess.Popen([*COMMAND, str(fd)], pass_fds=[fd], stderr=subprocess.DEVNULL)

    def terminate(self) -> int:
        """End the process, unless it has ended; return its exit code."""
        self.connection.close()
        if self.process.poll() is None:
            self.process.kill()
        return self.process.wait()


def _describe_exit(exit_code: int) -> str:
    if exit_code == -signal.SIGALRM:
        return f"the log takes longer than {SECONDS_MAX} s to read; use share-coordinator recovery explain"
    return f"the reader ended with {exit_code}"
