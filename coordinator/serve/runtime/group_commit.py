"""Decide when a group commit starts, for a log whose commits take time.

A broker has one request in flight per connection, and sends the next one after the response. If a commit
started with the operations that are queued when the last commit ends, it would miss the next requests of the
clients that just got their responses. Each request would then wait for two syncs: its own and the one
before. So one commit is in flight at a time. The next one starts when as many operations are queued as the
last commit completed and left in the queue. If no operation arrives for half the duration of the last commit,
or for `LINGER_S`, it starts without the missing ones.

The rule depends on the last commit only: a single client never waits, and earlier load has no effect.
"""

from collections.abc import Callable

# More than a round trip in one data centre, from a response to the next request of the same client.
LINGER_S = 0.00025
LINGER_SHARE = 0.5


class GroupCommitLinger:
    """Counts the operations for which the next commit waits."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        # Operations of the commit in flight, and of appends after its start.
        self._under_way = self._behind = 0
        self._expected = self._seen = 0
        self._began_s = self._arrived_s = self._linger_s = 0.0

    def commit_started(self, operations: int, *, behind: bool) -> None:
        """Record the operations of a commit; with `behind`, of the commit after the one in flight."""
        if behind:
            self._behind += operations
        else:
            self._under_way += operations
            self._began_s = self._time()

    def commit_finished(self, waiting: int) -> None:
        """Record the end of the commit in flight, whose operations have their responses."""
        now_s = self._time()
        answered, self._under_way, self._behind = self._under_way, self._behind, 0
        self._linger_s = min(LINGER_S, (now_s - self._began_s) * LINGER_SHARE)
        self._expected = answered + waiting
        self._seen, self._began_s, self._arrived_s = waiting, now_s, now_s

    def should_wait(self, waiting: int) -> bool:
        """Return whether the next commit should wait; called once per iteration of the event loop."""
        now_s = self._time()
        if waiting != self._seen:
            self._seen, self._arrived_s = waiting, now_s
        if waiting >= self._expected or now_s - self._arrived_s > self._linger_s:
            self._expected = 0
        return self._expected > 0
