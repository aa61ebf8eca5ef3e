"""A journal that takes no writes: what those who wait are told, and when it tries again by itself."""

from collections.abc import Sequence

from coordinator.errors import LogOutcomeUnknown, LogUnavailable
from coordinator.log.journal.pending import Append, tell

# While the disk refuses, it is tried again this often; less often each time that it lets a segment begin and
# then fails the first commit, because every try leaves a segment behind.
PROBE_S = 1.0
PROBE_DOUBLINGS_MAX = 5


def probe_delay_s(failures: int) -> float:
    """Return how long to wait after so many commits in a row that failed."""
    return PROBE_S * 2.0 ** min(max(failures - 1, 0), PROBE_DOUBLINGS_MAX)


def refuse_all(pending: Sequence[Append], doubtful: int, why: str) -> None:
    """Refuse appends; of the first ones, which are doubtful, nobody knows whether they are there."""
    for place, append in enumerate(pending):
        kind = LogOutcomeUnknown if place < doubtful else LogUnavailable
        tell(append, kind(why))
