"""The process that reads a delivery history: a pickled request on stdin, a page as JSON on stdout.

The process ends itself at its limits of time and memory. A failure is one line on stderr.
"""

import asyncio
import json
import pickle
import resource
import signal
import sys

from coordinator.errors import CoordinatorError
from coordinator.operate.history.page import read_page
from coordinator.operate.history.request import HistoryRequest
from protocol.errors import DecodeError

# Below the timeouts of the page and of the command line.
SECONDS_MAX = 25
_MEMORY_BYTES_MAX = 512 << 20


def main() -> None:
    """Answer the request. Raises SystemExit with a message."""
    signal.alarm(SECONDS_MAX)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    request: HistoryRequest = pickle.load(sys.stdin.buffer)
    try:
        page = asyncio.run(read_page(request))
    except (CoordinatorError, DecodeError, OSError) as error:
        raise SystemExit(str(error)) from None
    except MemoryError:
        raise SystemExit(f"the history needs more than {_MEMORY_BYTES_MAX >> 20} MiB of memory") from None
    json.dump(page, sys.stdout)
