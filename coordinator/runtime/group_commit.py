"""Decide when a group commit begins, over a log whose commits take time.

A broker has one request in flight on a connection, so a client that was answered sends its next request at
once.  If a commit began with the operations that are there when the last one ends, it would leave those
clients out, and each request would wait for two syncs: half of the clients always wait for the other half.
So one commit is under way at a time, and the next one begins when as many operations wait as the last
commit answered and left behind.  If no operation arrives for half the time that the last commit took, or for
`LINGER_S`, it begins without the others.

The rule knows the last commit only: a client alone never waits, and latency does not depend on earlier load.
"""

from collections.abc import Callable

# Longer than a network in one data centre takes from a response to the next request of the same client.
LINGER_S = 0.00025
LINGER_SHARE = 0.5


class GroupCommitLinger:
    """The operations that the next commit waits for."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        # Operations of the commit under way, and those that were appended after it began.
        self._under_way = self._behind = 0
        self._expected = self._seen = 0
        self._began_s = self._arrived_s = self._linger_s = 0.0

    def commit_started(self, operations: int, *, behind: bool) -> None:
        """Note the operations of a commit; `behind`: of the one after the commit under way."""
        if behind:
            self._behind += operations
        else:
            self._under_way += operations
            self._began_s = self._time()

    def commit_finished(self, waiting: int) -> None:
        """Note that the commit under way has ended and its operations are answered."""
        now_s = self._time()
        answered, self._under_way, self._behind = self._under_way, self._behind, 0
        self._linger_s = min(LINGER_S, (now_s - self._began_s) * LINGER_SHARE)
        self._expected = answered + waiting
        self._seen, self._began_s, self._arrived_s = waiting, now_s, now_s

    def should_wait(self, waiting: int) -> bool:
        """Tell whether the next commit should wait; ask again on each turn of the event loop."""
        now_s = self._time()
        if waiting != self._seen:
            self._seen, self._arrived_s = waiting, now_s
        if waiting >= self._expected or now_s - self._arrived_s > self._linger_s:
            self._expected = 0
        return self._expected > 0
