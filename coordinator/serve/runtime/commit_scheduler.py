# cython: annotation_typing=False
"""Schedule the commits of all shards: one callback of the event loop processes every shard that has work.

A shard is scheduled when it receives an operation and none of its appends is in flight. The same run decides
operations of other shards that arrive before it, so the log writes their appends together.

If the log reports its commits, a run also waits for the commit in flight and for the operations that are
expected after it (`coordinator.serve.runtime.group_commit`). Then one run is one commit.

If a C compiler is available, this source is compiled; see `coordinator.compiled_sources`.
"""

import asyncio
from typing import Any

from coordinator import fastpath
from coordinator.cluster.topics import AllTopics, TopicDirectory
from coordinator.fastpath.commit_batch import Commit
from coordinator.fastpath.operation_queue import OperationQueue
from coordinator.log.base import GroupCommitLog, PendingEntries, StateLog
from coordinator.metrics import Metrics
from coordinator.process.clock import Clock
from coordinator.serve.runtime.completion import report_failure
from coordinator.serve.runtime.group_commit import GroupCommitLinger
from coordinator.serve.runtime.limits import RuntimeLimits


class CommitScheduler:
    """Processes scheduled queues in the order in which they were scheduled."""

    __slots__ = (
        "_clock",
        "_gathering_log",
        "_linger",
        "_log",
        "_loop",
        "_metrics",
        "_operations_per_run_max",
        "_run_scheduled",
        "_scheduled",
        "kernel",
        "topics_to_check",
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
        self._operations_per_run_max = limits.operations_per_run_max
        self._scheduled: list[OperationQueue] = []
        self._run_scheduled = False
        self._linger: GroupCommitLinger | None = None
        if isinstance(log, GroupCommitLog) and log.set_commit_callback(self._on_commit_finished):
            self._linger = GroupCommitLinger(self._loop.time)
        # None if every topic exists, so that compiled code need not check.
        self.topics_to_check = None if isinstance(topics, AllTopics) else topics
        # Decides consecutive fast-path writes; None if it was not compiled.
        self.kernel: Any = None
        if fastpath.compiled is not None:
            self.kernel = fastpath.compiled.WriteKernel(self.topics_to_check, limits.request_age_max_s)

    def schedule(self, queue: OperationQueue) -> None:
        """Process this queue in the next iteration of the event loop, or after the commit in flight."""
        self._scheduled.append(queue)
        self._schedule_run()

    def _schedule_run(self) -> None:
        if self._scheduled and not self._run_scheduled and not self._must_wait_for_commit():
            self._run_scheduled = True
            self._loop.call_soon(self._run)

    def _must_wait_for_commit(self) -> bool:
        """Return whether a commit is in flight whose end the log will report."""
        log = self._gathering_log
        return self._linger is not None and log is not None and log.committing

    def _on_commit_finished(self) -> None:
        assert self._linger is not None, "the log reports commits only to a scheduler that lingers"
        self._linger.commit_finished(self._queued_operations())
        if self._scheduled and not self._run_scheduled and not self._must_wait_for_commit():
            self._run_scheduled = True
            self._run()

    def _queued_operations(self) -> int:
        return sum([queue.queued_operations() for queue in self._scheduled])

    def _run(self) -> None:
        if self._linger is None:
            self._run_scheduled = False
            self._process_scheduled()
            self._schedule_run()
        elif self._must_wait_for_commit():
            # The log has started a commit itself.
            self._run_scheduled = False
        else:
            self._run_group_commit(self._linger, self._queued_operations())

    def _run_group_commit(self, linger: GroupCommitLinger, queued: int) -> None:
        """Start a commit if all expected operations have arrived; otherwise wait."""
        if linger.should_wait(queued):
            self._loop.call_soon(self._run)
            return
        self._run_scheduled = False
        log = self._gathering_log
        assert log is not None, "the scheduler lingers only for a log that reports commits"
        behind = log.committing
        decided = self._process_scheduled()
        if log.committing:
            linger.commit_started(decided, behind=behind)
        self._schedule_run()

    def _process_scheduled(self) -> int:
        """Process the scheduled queues; return the number of decided operations.

        A `GroupCommitLog` writes their appends in one commit.
        """
        queues, self._scheduled = self._scheduled, []
        log = self._gathering_log
        if log is None:
            return self._process_queues(queues, None)
        gathered = log.take_pending()
        try:
            return self._process_queues(queues, gathered)
        finally:
            log.flush()

    def _process_queues(self, queues: list[OperationQueue], gathered: PendingEntries | None) -> int:
        accepts_writes = gathered is not None or self._log.health() is None
        commit = Commit(
            self._clock.now_ms(), self._loop.time(), accepts_writes, gathered, self._operations_per_run_max
        )
        kernel = self.kernel
        if kernel is not None:
            kernel.begin(commit.now_ms, commit.now_s, self._log.record_bytes_max)
        for at, queue in enumerate(queues):
            if commit.room <= 0:
                # The other queues wait for the next run, first in order.
                self._scheduled[:0] = queues[at:]
                break
            try:
                queue.process_batch(commit)
            except Exception as failure:
                self._on_batch_failed(queue, failure)
        if kernel is not None:
            self._metrics.write_operations(kernel.end())
        return commit.decided

    def _on_batch_failed(self, queue: OperationQueue, failure: Exception) -> None:
        """Recover a shard whose batch raised an exception; other shards are not affected."""
        self._loop.call_exception_handler({"message": "a batch failed", "exception": failure})
        try:
            queue.batch_failed(failure)
        except Exception as second:
            report_failure("recovery from a failed batch failed", second)
