"""The process that reads a delivery history: a pickled request on stdin, a page as JSON on stdout.

It runs with low priority and ends itself at its limits of time and memory. A failure is one line on stderr.
"""

import asyncio
import json
import os
import pickle
import resource
import signal
import sys

from coordinator.errors import CoordinatorError
from coordinator.operate.history.page import read_page
from coordinator.operate.history.request import HistoryRequest
from protocol.errors import DecodeError

SECONDS_MAX = 20
_MEMORY_BYTES_MAX = 512 << 20
_NICENESS = 10


def main() -> None:
    """Answer the request. Raises SystemExit with a message."""
    signal.alarm(SECONDS_MAX)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    os.nice(_NICENESS)
    request: HistoryRequest = pickle.load(sys.stdin.buffer)
    try:
        page = asyncio.run(read_page(request))
    except (CoordinatorError, DecodeError, OSError) as error:
        raise SystemExit(str(error)) from None
    except MemoryError:
        raise SystemExit(f"the history needs more than {_MEMORY_BYTES_MAX >> 20} MiB of memory") from None
    json.dump(page, sys.stdout)


if __name__ == "__main__":
    main()
