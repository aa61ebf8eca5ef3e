"""When a round should wait for more operations.

Theory of operation.  A broker has one request in flight on a connection, so whoever was answered asks again
at once.  If a commit begins with what is there when the last one is over, it carries those who came during
the last one, and leaves out those who were just answered; and so it goes on, half of the callers always
waiting for the other half: two syncs for each request.  So a round may *gather*: it waits until as many
operations are there as were under way or waiting at the end of the last commit, until everybody who is
expected is there.  One connection never waits, for it is the only one.  Time in which nothing arrives is
bounded, by a part of what a commit takes and by `IDLE_S_MAX`.

For brokers that is nearly always better.  But it depends on the callers (at random times nobody can be
expected) and on the disk (a shared one may be faster for who asks it without a pause).  So it is tried now
and then: some commits go one way and some the other, in turn, and rounds gather unless an operation takes
clearly less without, of the time in which there is any.
"""

from collections.abc import Callable

# Time in which nothing arrives: so much of what a commit takes, and never more than this.
IDLE_SHARE = 0.5
IDLE_S_MAX = 0.00025
# A trial is so many blocks, one way and the other in turn, so that both meet the same weather; in each block
# the first commits do not count. Then so many commits go the way that is better: enough for less than one in
# a hundred to have gone the other, so that a 99th percentile says nothing of trials.
BLOCK_COMMITS = 16
SETTLING_COMMITS = 4
TRIAL_BLOCKS = 16
STAY_COMMITS = 16_384
# What the last commit has to say in a mean; and at most so many times the mean. A disk that stalls once must
# not decide; one on which gathering leads to stalls again and again must.
LAST_SHARE = 1 / 16
OUTLIER = 16.0
# Without gathering an operation has to take less than so much of what it takes with it.
CLEARLY_LESS = 0.9


class Gathering:
    """The rule, for a log that takes its time over a commit. `waiting`: operations that are in none yet."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        # Operations of the commit under way, and those that were appended behind it.
        self._under_way = self._behind = 0
        self._began_s = 0.0
        self._commit_s = 0.0
        # Since when there is anything to commit.
        self._busy_since_s: float | None = None
        self._expected = self._seen = 0
        self._looked_s = self._idle_s = 0.0
        self._gathers = True
        # Blocks of the trial that are over, and commits since then.
        self._blocks = self._commits = 0
        self._turn_s = 0.0
        # What commits of the trial took and how many operations they answered, by whether rounds gathered.
        self._took_s = {False: 0.0, True: 0.0}
        self._answers = {False: 0, True: 0}

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
            self._began_s = self._time()

    def over(self, waiting: int) -> None:
        """Note that a commit is over, and that those in it are answered; the one behind it has begun."""
        now_s = self._time()
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
        now_s = self._time()
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
        self._turn_s = _mean(self._turn_s, took_s)
        self._commits += 1
        if self._blocks == TRIAL_BLOCKS:
            if self._commits >= STAY_COMMITS:
                self._blocks = self._commits = 0
                self._gathers = True
                self._took_s, self._answers = {False: 0.0, True: 0.0}, {False: 0, True: 0}
            return
        if self._commits > SETTLING_COMMITS:
            self._took_s[self._gathers] += min(took_s, self._turn_s * OUTLIER)
            self._answers[self._gathers] += answered
        if self._commits >= BLOCK_COMMITS:
            self._blocks, self._commits = self._blocks + 1, 0
            self._gathers = not self._gathers if self._blocks < TRIAL_BLOCKS else self._is_no_worse()

    def _is_no_worse(self) -> bool:
        """Compare what one operation took with gathering and without."""
        gathering_s, plain_s = (self._took_s[way] / self._answers[way] for way in (True, False))
        return plain_s >= gathering_s * CLEARLY_LESS


def _mean(mean: float, last: float) -> float:
    return mean + (min(last, mean * OUTLIER) - mean) * LAST_SHARE if mean else last
