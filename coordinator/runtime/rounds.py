"""The turns that are due, of all shards: one callback of the event loop carries all of them out.

A shard that gets something to do while nothing of it is under way plans a turn.  What arrives for other
shards until the event loop comes to it is decided in the same go, so that their appends travel together, too.

Over a log that takes its time over a commit, a round may also wait for that to be over, and for those who
will come then (`coordinator.runtime.gathering`). Then a round is a commit, and a turn has all there is.
"""

import asyncio
from typing import Protocol

from coordinator import hot
from coordinator.clock import Clock
from coordinator.hot.fields import RoundsFields
from coordinator.log.base import Gathered, GatheringLog, StateLog
from coordinator.metrics import Metrics
from coordinator.runtime.completion import report_failure
from coordinator.runtime.gathering import GroupCommitLinger
from coordinator.runtime.limits import RuntimeLimits
from coordinator.runtime.status import Status
from coordinator.topics import EveryTopic, TopicDirectory


class Due(Protocol):
    """One whose turn it is."""

    def waiting(self) -> int:
        """Return how many operations wait for the turn."""
        ...

    def turn(self) -> None:
        """Take the turn; what goes wrong in it is an exception."""
        ...

    def turn_failed(self, failure: Exception) -> None:
        """Recover from a turn that raised this in the middle."""
        ...


class Rounds(RoundsFields):
    """Plans turns and carries them out, in the order in which they were planned."""

    __slots__ = (
        "_clock",
        "_gathering",
        "_gathering_log",
        "_log",
        "_loop",
        "_metrics",
        "_plain",
    )

    def __init__(
        self,
        *,
        log: StateLog,
        clock: Clock,
        topics: TopicDirectory,
        metrics: Metrics,
        limits: RuntimeLimits,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._gathering_log = log if isinstance(log, GatheringLog) else None
        self._clock = clock
        self._metrics = metrics
        self._due: list[Due] = []
        self._planned = False
        self._gathering: GroupCommitLinger | None = None
        if isinstance(log, GatheringLog) and log.tell_of_commits(self._commit_over):
            self._gathering = GroupCommitLinger(self._loop.time)
        # Takes the turns that begin with a plain write.
        self._plain = None
        if hot.compiled is not None:
            topics_to_ask = None if isinstance(topics, EveryTopic) else topics
            self._plain = hot.compiled.PlainTurns(
                Status.ACTIVE,
                topics_to_ask,
                limits.request_age_max_s,
                limits.operations_per_append_max,
                limits.bytes_per_append_max,
            )

    def plan(self, due: Due) -> None:
        """Let this one take its turn soon: on the next turn of the event loop, or when a commit is over."""
        self._due.append(due)
        if not self._planned and not self._waits_for_commit():
            self._planned = True
            self._loop.call_soon(self._go)

    def _waits_for_commit(self) -> bool:
        """Tell whether a commit is under way whose end the log will tell of."""
        log = self._gathering_log
        return self._gathering is not None and log is not None and log.committing

    def _commit_over(self) -> None:
        assert self._gathering is not None, "nobody asked to be told"
        self._gathering.over(self._waiting())
        if self._due and not self._planned and not self._waits_for_commit():
            self._planned = True
            self._go()

    def _waiting(self) -> int:
        return sum([due.waiting() for due in self._due])

    def _go(self) -> None:
        if self._gathering is None:
            self._planned = False
            self._go_now()
        elif self._waits_for_commit():
            # One of the log's own has begun.
            self._planned = False
        else:
            self._go_together(self._gathering, self._waiting())

    def _go_together(self, gathering: GroupCommitLinger, waiting: int) -> None:
        """Begin a commit with all who are expected, or wait for them some more."""
        if gathering.awaits_more(waiting):
            self._loop.call_soon(self._go)
            return
        self._planned = False
        log = self._gathering_log
        assert log is not None, "only such a log is gathered for"
        behind = log.committing
        self._go_now()
        if log.committing:
            gathering.began(waiting, behind=behind)

    def _go_now(self) -> None:
        """Take the turns that are due; over a log that gathers, their appends are one commit."""
        all_due, self._due = self._due, []
        log = self._gathering_log
        if log is None:
            self._carry_out(all_due, None)
            return
        gathered = log.gather()
        try:
            self._carry_out(all_due, gathered)
        finally:
            log.flush()

    def _carry_out(self, all_due: list[Due], gathered: Gathered | None) -> None:
        plain = self._plain
        if plain is not None:
            accepts_writes = gathered is not None or self._log.health() is None
            record_bytes_max = self._log.record_bytes_max
            plain.begin(self._clock.now_ms(), self._loop.time(), accepts_writes, record_bytes_max, gathered)
            plain.carry_out(all_due, self._failed)
            self._metrics.write_operations(plain.taken)
            return
        for due in all_due:
            try:
                due.turn()
            except Exception as failure:
                self._failed(due, failure)

    def _failed(self, due: Due, failure: Exception) -> None:
        """Let one recover whose turn raised; it is not the fault of the others."""
        self._loop.call_exception_handler({"message": "a turn failed", "exception": failure})
        try:
            due.turn_failed(failure)
        except Exception as second:
            report_failure("recovering from a turn that failed has failed", second)
