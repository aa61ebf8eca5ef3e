"""What failed: how it is logged, what those who wait are told, and when the journal tries again by itself.

A disk that fails raises OSError. Whatever else is raised on the way to it, for want of memory or by a defect,
counts as the same, so that nothing stops for ever: what was tried has failed, and is tried again.
"""

import logging
from collections.abc import Sequence

from coordinator.errors import LogOutcomeUnknown, LogUnavailable
from coordinator.log.journal.pending import Append, tell

# While the disk refuses, it is tried again this often; less often each time that it lets a segment begin and
# then fails the first commit, because every try leaves a segment behind.
PROBE_S = 1.0
PROBE_DOUBLINGS_MAX = 5


def reason(error: Exception) -> str:
    """Return why something failed, for a person; an error that no disk has is told with its kind."""
    return str(error) if isinstance(error, OSError) else repr(error)


def log_failure(logger: logging.Logger, level: int, what: str, error: Exception) -> None:
    """Log that something failed; where in the code only if no disk has such an error."""
    if isinstance(error, OSError):
        logger.log(level, "%s: %s", what, reason(error))
    else:
        logger.error("%s: %s", what, reason(error), exc_info=error)


def probe_delay_s(failures: int) -> float:
    """Return how long to wait after so many commits in a row that failed."""
    return PROBE_S * 2.0 ** min(max(failures - 1, 0), PROBE_DOUBLINGS_MAX)


def fail_appends(pending: Sequence[Append], doubtful: int, why: str) -> None:
    """Refuse appends; of the first ones, which are doubtful, nobody knows whether they are there."""
    for place, append in enumerate(pending):
        kind = LogOutcomeUnknown if place < doubtful else LogUnavailable
        tell(append, kind(why))
