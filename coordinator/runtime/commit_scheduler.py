"""The turns that are due, of all shards: one callback of the event loop carries all of them out.

A shard that gets something to do while nothing of it is under way plans a turn.  What arrives for other
shards until the event loop comes to it is decided in the same go, so that their appends travel together, too.

Over a log that takes its time over a commit, a round may also wait for that to be over, and for those who
will come then (`coordinator.runtime.group_commit`). Then a round is a commit, and a turn has all there is.
"""

import asyncio
from typing import Protocol

from coordinator import fastpath
from coordinator.clock import Clock
from coordinator.fastpath.fields import SchedulerFields
from coordinator.log.base import GroupCommitLog, PendingEntries, StateLog
from coordinator.metrics import Metrics
from coordinator.runtime.completion import report_failure
from coordinator.runtime.group_commit import GroupCommitLinger
from coordinator.runtime.limits import RuntimeLimits
from coordinator.runtime.status import Status
from coordinator.topics import AllTopics, TopicDirectory


class SchedulableQueue(Protocol):
    """One whose turn it is."""

    def queued_operations(self) -> int:
        """Return how many operations wait for the turn."""
        ...

    def process_batch(self) -> None:
        """Take the turn; what goes wrong in it is an exception."""
        ...

    def batch_failed(self, failure: Exception) -> None:
        """Recover from a turn that raised this in the middle."""
        ...


class CommitScheduler(SchedulerFields):
    """Plans turns and carries them out, in the order in which they were planned."""

    __slots__ = (
        "_clock",
        "_fast_path",
        "_gathering_log",
        "_linger",
        "_log",
        "_loop",
        "_metrics",
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
        self._gathering_log = log if isinstance(log, GroupCommitLog) else None
        self._clock = clock
        self._metrics = metrics
        self._scheduled: list[SchedulableQueue] = []
        self._run_scheduled = False
        self._linger: GroupCommitLinger | None = None
        if isinstance(log, GroupCommitLog) and log.set_commit_callback(self._on_commit_finished):
            self._linger = GroupCommitLinger(self._loop.time)
        # Takes the turns that begin with a fast-path write.
        self._fast_path = None
        if fastpath.compiled is not None:
            topics_to_ask = None if isinstance(topics, AllTopics) else topics
            self._fast_path = fastpath.compiled.FastPathBatches(
                Status.ACTIVE,
                topics_to_ask,
                limits.request_age_max_s,
                limits.operations_per_append_max,
                limits.bytes_per_append_max,
            )

    def schedule(self, queue: SchedulableQueue) -> None:
        """Let this one take its turn soon: on the next turn of the event loop, or when a commit is over."""
        self._scheduled.append(queue)
        if not self._run_scheduled and not self._must_wait_for_commit():
            self._run_scheduled = True
            self._loop.call_soon(self._run)

    def _must_wait_for_commit(self) -> bool:
        """Tell whether a commit is under way whose end the log will tell of."""
        log = self._gathering_log
        return self._linger is not None and log is not None and log.committing

    def _on_commit_finished(self) -> None:
        assert self._linger is not None, "nobody asked to be told"
        self._linger.commit_finished(self._waiting())
        if self._scheduled and not self._run_scheduled and not self._must_wait_for_commit():
            self._run_scheduled = True
            self._run()

    def _waiting(self) -> int:
        return sum([queue.queued_operations() for queue in self._scheduled])

    def _run(self) -> None:
        if self._linger is None:
            self._run_scheduled = False
            self._process_scheduled()
        elif self._must_wait_for_commit():
            # One of the log's own has begun.
            self._run_scheduled = False
        else:
            self._run_group_commit(self._linger, self._waiting())

    def _run_group_commit(self, linger: GroupCommitLinger, waiting: int) -> None:
        """Begin a commit with all who are expected, or wait for them some more."""
        if linger.should_wait(waiting):
            self._loop.call_soon(self._run)
            return
        self._run_scheduled = False
        log = self._gathering_log
        assert log is not None, "only such a log is gathered for"
        behind = log.committing
        self._process_scheduled()
        if log.committing:
            linger.commit_started(waiting, behind=behind)

    def _process_scheduled(self) -> None:
        """Take the turns that are due; over a log that gathers, their appends are one commit."""
        queues, self._scheduled = self._scheduled, []
        log = self._gathering_log
        if log is None:
            self._process_queues(queues, None)
            return
        gathered = log.take_pending()
        try:
            self._process_queues(queues, gathered)
        finally:
            log.flush()

    def _process_queues(self, queues: list[SchedulableQueue], gathered: PendingEntries | None) -> None:
        fast_path = self._fast_path
        if fast_path is not None:
            accepts_writes = gathered is not None or self._log.health() is None
            record_bytes_max = self._log.record_bytes_max
            fast_path.begin(
                self._clock.now_ms(), self._loop.time(), accepts_writes, record_bytes_max, gathered
            )
            fast_path.process_queues(queues, self._on_batch_failed)
            self._metrics.write_operations(fast_path.taken)
            return
        for queue in queues:
            try:
                queue.process_batch()
            except Exception as failure:
                self._on_batch_failed(queue, failure)

    def _on_batch_failed(self, queue: SchedulableQueue, failure: Exception) -> None:
        """Let one recover whose turn raised; it is not the fault of the others."""
        self._loop.call_exception_handler({"message": "a turn failed", "exception": failure})
        try:
            queue.batch_failed(failure)
        except Exception as second:
            report_failure("recovering from a turn that failed has failed", second)
