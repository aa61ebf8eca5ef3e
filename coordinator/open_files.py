"""How many files and sockets this process may have open.

Connections that take all of it would take the journal's next segment along, and the probes over HTTP: so some
are kept back from them.
"""

import logging
import resource
from contextlib import suppress

_logger = logging.getLogger(__name__)

# Connections over HTTP at a time; where there are few open files, one for so many of them.
HTTP_CONNECTIONS_MAX = 500
_FILES_PER_CONNECTION = 8
# For what is no connection from brokers: HTTP, segments of the journal, connections of our own, libraries.
FILES_KEPT_BACK = HTTP_CONNECTIONS_MAX + 128


def raise_open_files(wanted: int) -> int:
    """Have the system allow so many open files, as far as it lets us; return how many it does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def http_connections_to_accept() -> int:
    """Return how many connections over HTTP there is room for."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files == resource.RLIM_INFINITY:
        return HTTP_CONNECTIONS_MAX
    return min(HTTP_CONNECTIONS_MAX, open_files // _FILES_PER_CONNECTION)


def connections_to_accept(connections_max: int) -> int:
    """Return how many connections there is room for, at most so many; fewer are a warning."""
    wanted = max(connections_max + FILES_KEPT_BACK, HTTP_CONNECTIONS_MAX * _FILES_PER_CONNECTION)
    open_files = raise_open_files(wanted)
    accepted = min(connections_max, max(open_files - FILES_KEPT_BACK, open_files // 2))
    if accepted < connections_max:
        _logger.warning(
            "max.connections=%d, but the system allows %d open files (ulimit -n). At most %d connections "
            "are accepted.",
            connections_max,
            open_files,
            accepted,
        )
    return accepted
