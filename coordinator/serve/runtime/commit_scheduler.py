# cython: annotation_typing=False
"""Schedule the commits of all shards: one event-loop callback, a *run*, processes all queues.

A shard is scheduled when it receives an operation and none of its appends is in flight. Operations of other
shards that arrive before the run are processed in the same run, so the log writes all appends together.

If the log reports the end of its commits, a run also waits for the commit in flight and for the operations
that are expected after that commit (`coordinator.serve.runtime.group_commit`). With a log that reports its
commits, each run makes one commit.

If a C compiler is available, this source is compiled; see `coordinator.compiled_sources`.
"""

import asyncio
from typing import Any

from coordinator import fastpath
from coordinator.cluster.topics import EveryTopicExists, TopicDirectory
from coordinator.fastpath.operation_queue import CommitContext, OperationQueue
from coordinator.log.base import GroupCommitLog, StateLog
from coordinator.metrics import Metrics
from coordinator.process.clock import Clock
from coordinator.serve.runtime.group_commit import GroupCommitLinger
from coordinator.serve.runtime.limits import RuntimeLimits
from coordinator.serve.runtime.operations import report_failure


class CommitScheduler:
    """Processes scheduled queues in the order in which they were scheduled."""

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
        self._group_commit_log = log if isinstance(log, GroupCommitLog) else None
        self._clock = clock
        self._metrics = metrics
        self._work_per_run_max = limits.work_per_run_max
        self._scheduled: list[OperationQueue] = []
        self._run_scheduled = False
        self._linger: GroupCommitLinger | None = None
        if isinstance(log, GroupCommitLog) and log.set_commit_callback(self._on_commit_finished):
            self._linger = GroupCommitLinger(self._schedule_run)
        # None if all topics are assumed to exist, so that compiled code makes no check.
        self.topics_to_check = None if isinstance(topics, EveryTopicExists) else topics
        # The compiled code that executes consecutive fast-path writes, or None without it.
        self.kernel: Any = None
        if fastpath.compiled is not None:
            self.kernel = fastpath.compiled.WriteKernel(self.topics_to_check, limits.request_age_max_s)

    def schedule(self, queue: OperationQueue) -> None:
        """Process this queue in the next iteration of the event loop, or after the commit in flight."""
        self._scheduled.append(queue)
        self._schedule_run()

    def operation_arrived(self) -> None:
        """Count an operation that was added to a queue; the caller then calls `schedule`."""
        linger = self._linger
        if linger is not None and linger.missing:
            linger.operation_arrived()

    def _schedule_run(self) -> None:
        if self._scheduled and not self._run_scheduled and not self._must_wait():
            self._run_scheduled = True
            self._loop.call_soon(self._run)

    def _must_wait(self) -> bool:
        """Return whether the next run waits for the commit in flight or for expected operations."""
        if self._linger is None:
            return False
        log = self._group_commit_log
        return (log is not None and log.committing) or self._linger.must_wait()

    def _on_commit_finished(self) -> None:
        assert self._linger is not None, "the log reports commits only to a scheduler that lingers"
        self._linger.commit_finished()
        if self._scheduled and not self._run_scheduled and not self._must_wait():
            self._run()

    def _run(self) -> None:
        self._run_scheduled = False
        if self._must_wait():
            # The log has started a commit by itself. The next run starts when that commit ends.
            return
        decided = self._process_scheduled()
        log = self._group_commit_log
        if self._linger is not None and log is not None and log.committing:
            self._linger.commit_started(decided)
        self._schedule_run()

    def _process_scheduled(self) -> int:
        """Process the scheduled queues of shards; return the number of executed operations.

        A `GroupCommitLog` writes the appends of all queues in one commit.
        """
        queues, self._scheduled = self._scheduled, []
        log, kernel = self._group_commit_log, self.kernel
        gathered = None if log is None else log.take_pending_entries()
        try:
            accepts_writes = gathered is not None or self._log.health() is None
            commit = CommitContext(
                self._clock.now_ms(), self._loop.time(), accepts_writes, gathered, self._work_per_run_max
            )
            if kernel is not None:
                kernel.begin(commit.now_ms, commit.now_s, self._log.record_bytes_max)
            for at, queue in enumerate(queues):
                if commit.work_left <= 0:
                    # The remaining queues are processed first in the next run.
                    self._scheduled = queues[at:] + self._scheduled
                    break
                try:
                    queue.process_batch(commit)
                except Exception as failure:
                    self._on_batch_failed(queue, failure)
            if kernel is not None:
                self._metrics.count("write_operations", by=kernel.end())
            return commit.decided
        finally:
            if log is not None:
                log.flush()

    def _on_batch_failed(self, queue: OperationQueue, failure: Exception) -> None:
        """Recover a shard whose batch raised an exception; other shards are not affected."""
        self._loop.call_exception_handler({"message": "a batch failed", "exception": failure})
        try:
            queue.batch_failed(failure)
        except Exception as second:
            report_failure("recovery from a failed batch failed", second)
