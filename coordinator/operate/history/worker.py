"""The program of the process that reads delivery histories, one request after another.

A timer ends the process if a request takes longer than `SECONDS_MAX`. The memory of the process is limited.
"""

import asyncio
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from coordinator.errors import CoordinatorError
from coordinator.operate.history.reads import HistoryRequest, SkipsRequest
from protocol.errors import DecodeError

# Below the timeouts of the page and of the command line, which include the start of the process.
SECONDS_MAX = 25
_MEMORY_BYTES_MAX = 512 << 20


class HistoryResponse(NamedTuple):
    """The result, or the reason why there is none, and the memory of the process after it."""

    result: Any
    problem: str
    resident_bytes: int


def main() -> None:
    """Answer requests until the coordinator closes the connection or ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    with Connection(int(sys.argv[1])) as connection:
        while True:
            try:
                request: HistoryRequest | SkipsRequest = connection.recv()
            except EOFError:
                return
            signal.alarm(SECONDS_MAX)
            connection.send(_make_answer(request))
            signal.alarm(0)


def _make_answer(request: HistoryRequest | SkipsRequest) -> HistoryResponse:
    result: Any = None
    problem = ""
    try:
        result = asyncio.run(request.read())
    except (CoordinatorError, DecodeError, OSError) as error:
        problem = str(error)
    except MemoryError:
        problem = f"the history needs more than {_MEMORY_BYTES_MAX >> 20} MiB of memory"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return HistoryResponse(result, problem, _resident_bytes())


def _resident_bytes() -> int:
    """Return the resident memory; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
