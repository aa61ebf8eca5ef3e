"""When a round should wait for more operations.

Theory of operation.  A broker has one request in flight on a connection, so whoever was answered asks again
at once.  If a commit begins with what is there when the last one is over, it carries those who came during
the last one, and leaves out those who were just answered; and so it goes on, half of the callers always
waiting for the other half: two syncs for each request.  So a round may *gather*: it waits until as many
operations are there as were under way or waiting at the end of the last commit, until everybody who is
expected is there.  One connection never waits, for it is the only one.  Time in which nothing arrives is
bounded, by a part of what a commit takes and by `IDLE_S_MAX`.

Whether that is better depends on the callers (at random times nobody can be expected; the requests of very
many take longer than the disk, which should not rest meanwhile) and on the disk (a shared one may be faster
for who asks it without a pause).  So it is tried: now and then some commits go the other way, and the way on
which an operation takes less of the time in which there is any stays; without a clear difference, rounds go
as soon as they can.
"""

from collections.abc import Callable

# Time in which nothing arrives: so much of what a commit takes, and never more than this.
IDLE_SHARE = 0.5
IDLE_S_MAX = 0.00025
# So many commits go the way that seems better, then so many the other one. The first of them do not count.
STAY_COMMITS = 480
TRIAL_COMMITS = 32
SETTLING_COMMITS = 4
# What the last commit has to say in a mean; and at most so many times the mean: a disk stalls now and then.
LAST_SHARE = 1 / 16
OUTLIER = 4.0
# Gathering has to come below so much of what an operation takes without.
CLEARLY_LESS = 0.95


class Gathering:
    """The rule, for a log that takes its time over a commit. `waiting`: operations that are in none yet."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # Operations of the commit under way, and those that were appended behind it.
        self._under_way = self._behind = 0
        self._began_s = 0.0
        self._commit_s = 0.0
        # Since when there is anything to commit.
        self._busy_since_s: float | None = None
        self._expected = self._seen = 0
        self._looked_s = self._idle_s = 0.0
        self._gathers = self._tries = False
        self._commits_left = TRIAL_COMMITS
        self._commits = 0
        # What a commit takes and how many it answers, by whether rounds gather.
        self._takes_s = {False: 0.0, True: 0.0}
        self._answers = {False: 0.0, True: 0.0}

    @property
    def gathers(self) -> bool:
        """True while rounds wait for the end of a commit, and then for more."""
        return self._gathers

    def began(self, operations: int, *, behind: bool) -> None:
        """Note that operations are on their way to the disk, or behind the commit that is."""
        if behind:
            self._behind += operations
        else:
            self._under_way += operations
            self._began_s = self._monotonic()

    def over(self, waiting: int) -> None:
        """Note that a commit is over, and that those in it are answered; the one behind it has begun."""
        now_s = self._monotonic()
        answered, self._under_way, self._behind = self._under_way, self._behind, 0
        if answered and self._busy_since_s is not None:
            self._commit_s = _mean(self._commit_s, now_s - self._began_s)
            self._learn(now_s - self._busy_since_s, answered)
        self._began_s = now_s
        self._busy_since_s = now_s if waiting or self._under_way else None
        self._expected = answered + waiting if self._gathers else 0
        self._seen, self._looked_s, self._idle_s = waiting, now_s, 0.0

    def awaits_more(self, waiting: int) -> bool:
        """Say whether these should wait. If so it has to be asked again, on each turn of the event loop."""
        now_s = self._monotonic()
        if self._busy_since_s is None:
            self._busy_since_s = self._looked_s = now_s
        if waiting >= self._expected:
            self._expected = 0
            return False
        if waiting == self._seen:
            self._idle_s += now_s - self._looked_s
        self._looked_s, self._seen = now_s, waiting
        if self._idle_s > min(self._commit_s * IDLE_SHARE, IDLE_S_MAX):
            self._expected = 0
        return self._expected > 0

    def _learn(self, took_s: float, answered: int) -> None:
        way = self._gathers
        self._commits += 1
        if self._commits > SETTLING_COMMITS:
            self._takes_s[way] = _mean(self._takes_s[way], took_s)
            self._answers[way] = _mean(self._answers[way], answered)
        if self._commits < self._commits_left:
            return
        self._commits = 0
        self._gathers = self._is_better() if self._tries else not way
        self._tries = not self._tries
        self._commits_left = TRIAL_COMMITS if self._tries else STAY_COMMITS

    def _is_better(self) -> bool:
        """Compare what one operation takes, over all commits: small ones must not count for more."""
        gathering_s, plain_s = (self._takes_s[way] / self._answers[way] for way in (True, False))
        return gathering_s < plain_s * CLEARLY_LESS


def _mean(mean: float, last: float) -> float:
    return mean + (min(last, mean * OUTLIER) - mean) * LAST_SHARE if mean else last
