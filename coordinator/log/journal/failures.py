"""Log failures of the journal, fail the pending appends, and compute the delay before a retry.

A failing disk raises OSError. Any other exception, for example from a lack of memory or a defect, is handled
like an OSError: the operation failed and is retried.
"""

import logging
from collections.abc import Sequence

from coordinator.errors import LogOutcomeUnknown, LogUnavailable
from coordinator.log.journal.pending import Append, call_done

# Initial delay before a retry. The delay doubles each time the first commit of a new segment fails, because
# each such retry leaves a segment on the disk.
RETRY_S = 1.0
RETRY_DELAY_DOUBLINGS_MAX = 5


def error_reason(error: Exception) -> str:
    """Return the text of an error for a log message; other errors than OSError include their type."""
    return str(error) if isinstance(error, OSError) else repr(error)


def log_failure(logger: logging.Logger, level: int, message: str, error: Exception) -> None:
    """Log a failure; errors other than OSError include the traceback."""
    if isinstance(error, OSError):
        logger.log(level, "%s: %s", message, error_reason(error))
    else:
        logger.error("%s: %s", message, error_reason(error), exc_info=error)


def retry_delay_s(failures: int) -> float:
    """Return the delay in seconds before the next retry, after `failures` failed commits in a row."""
    return RETRY_S * 2.0 ** min(max(failures - 1, 0), RETRY_DELAY_DOUBLINGS_MAX)


def fail_appends(pending: Sequence[Append], unconfirmed: int, reason: str) -> None:
    """Fail all pending appends; the first `unconfirmed` ones with LogOutcomeUnknown."""
    for index, append in enumerate(pending):
        error_class = LogOutcomeUnknown if index < unconfirmed else LogUnavailable
        call_done(append, error_class(reason))
