"""The limit of open files and sockets of this process.

Some open files are reserved: the journal needs files for new segments, and health checks need connections.
"""

import logging
import resource
from contextlib import suppress

_logger = logging.getLogger(__name__)

# The maximum number of HTTP connections. A low limit of open files reduces it.
HTTP_CONNECTIONS_MAX = 500
_FILES_PER_CONNECTION = 8
# Number of open files reserved for HTTP, segments of the journal, outgoing connections, and libraries.
FILES_KEPT_BACK = HTTP_CONNECTIONS_MAX + 128


def raise_open_file_limit(wanted: int) -> int:
    """Raise the limit of open files as far as the system allows; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def http_connection_limit() -> int:
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files == resource.RLIM_INFINITY:
        return HTTP_CONNECTIONS_MAX
    return min(HTTP_CONNECTIONS_MAX, open_files // _FILES_PER_CONNECTION)


def connection_limit(connections_max: int) -> int:
    """Return how many connections to accept, after raising the limit of open files; log if it is too low."""
    wanted = max(connections_max + FILES_KEPT_BACK, HTTP_CONNECTIONS_MAX * _FILES_PER_CONNECTION)
    open_files = raise_open_file_limit(wanted)
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
