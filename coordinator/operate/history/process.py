"""Read delivery histories in a separate process, so that decoding a log does not delay brokers.

Decoding on a thread would hold the interpreter lock, and decoding on the event loop would delay writes. The
process has its own limits of time and memory (`worker`).
"""

import asyncio
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from coordinator.errors import CoordinatorError
from coordinator.log.other_process import LogLocation
from coordinator.operate.history.request import HistoryRequest
from coordinator.operate.history.worker import SECONDS_MAX
from protocol.state_records import SharePartitionKey

# The priority is lowered before the imports, which take most of the processor time of a short log.
_PROGRAM = "import os; os.nice(5); from coordinator.operate.history.worker import main; main()"
COMMAND = [sys.executable, "-P", "-c", _PROGRAM]

# Opens the log of a state partition for another process.
OpenLog = Callable[[int], AbstractContextManager[LogLocation]]


class HistoryUnavailable(CoordinatorError):
    """The log could not be read within the limits."""


class HistoryProcess:
    """Runs a process for each request; the caller limits the number of concurrent requests to one."""

    def __init__(self, open_log: OpenLog) -> None:
        self._open_log = open_log
        self._running: subprocess.Popen[bytes] | None = None

    async def read(
        self, state_partition: int, key: SharePartitionKey, offset: int | None, before: int | None, limit: int
    ) -> bytes:
        """Return a page as JSON. Raises CoordinatorError."""
        with self._open_log(state_partition) as log:
            request = HistoryRequest(log, state_partition, key, offset, before, limit)
            return await asyncio.to_thread(self._run, pickle.dumps(request))

    @property
    def is_running(self) -> bool:
        """True while a process reads a log."""
        return self._running is not None

    def close(self) -> None:
        """Stop the process, if one is running."""
        if self._running is not None:
            self._running.kill()

    def _run(self, request: bytes) -> bytes:
        pipe = subprocess.PIPE
        with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            self._running = process
            try:
                page, problem = process.communicate(request)
            finally:
                self._running = None
        if process.returncode == -signal.SIGALRM:
            raise HistoryUnavailable(
                f"the log takes longer than {SECONDS_MAX} s to read; use share-coordinator recovery explain"
            )
        if process.returncode:
            lines = problem.decode(errors="replace").strip().splitlines()
            raise HistoryUnavailable(lines[-1] if lines else f"the reader ended with {process.returncode}")
        return page
