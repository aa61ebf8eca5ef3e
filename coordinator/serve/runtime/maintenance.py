"""Periodic jobs: snapshots of cold state, pruning and compaction.

Each job is an operation in the queue of its shard, and is executed in order, like the operations of clients.
A job creates few records in one step and pauses after each step. Clients therefore wait a few ms, and the job
takes about a quarter of the time of the event loop, or more while the log grows. Source:
ShareCoordinatorService.setupPeriodicJobs of Kafka 4.4 for cold snapshots and pruning.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from coordinator.log.base import SharedLog, StateLog
from coordinator.metrics import Metrics
from coordinator.process.clock import Clock
from coordinator.serve.runtime.limits import RuntimeLimits
from coordinator.serve.runtime.operations import AwaitableOperation
from coordinator.serve.runtime.shard_runner import ShardRunner
from coordinator.serve.runtime.status import ShardStatus
from coordinator.shard import CoordinatorResult, RequestContext, Shard, SnapshotLimits
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.state_records import SharePartitionKey, StateRecord

_logger = logging.getLogger(__name__)

_MakeRecords = Callable[[Shard, int], list[StateRecord]]

# A job affects many share-partitions, so its operation has no key.
_NO_KEY = SharePartitionKey("", bytes(16), -1)


class MaintenanceJobs:
    """The periodic jobs of all shards of this process."""

    def __init__(
        self,
        runners: Sequence[ShardRunner],
        *,
        log: StateLog,
        clock: Clock,
        metrics: Metrics,
        limits: RuntimeLimits,
        cold_interval_ms: int,
        prune_interval_ms: int,
    ) -> None:
        self._runners = runners
        self._log = log
        self._clock = clock
        self._metrics = metrics
        self._limits = limits
        self._snapshot_limits = SnapshotLimits(limits.job_records_max, limits.job_bytes_max)
        self._cold_interval_ms = cold_interval_ms
        self._prune_interval_ms = prune_interval_ms

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_job_periodically(self._cold_interval_ms / 1000, self.snapshot_cold))
            tasks.create_task(self._run_job_periodically(self._prune_interval_ms / 1000, self.prune))
            tasks.create_task(self._run_job_periodically(self._limits.compaction_interval_s, self.compact))

    @staticmethod
    async def _run_job_periodically(interval_s: float, job: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await job()
            except Exception:
                # A failed job is retried at its next interval, and the other jobs continue.
                _logger.exception("A periodic job failed. It is retried at its next interval.")

    async def snapshot_cold(self) -> None:
        """Snapshot states that were idle for an interval and whose old records prevent pruning."""
        for runner in self._active_runners():
            await self._run_job_until_done(
                runner,
                lambda shard, now_ms: shard.snapshot_cold(
                    now_ms=now_ms, interval_ms=self._cold_interval_ms, limits=self._snapshot_limits
                ),
            )

    async def prune(self) -> None:
        for runner in self._active_runners():
            self._prune_log(runner)

    def _prune_log(self, runner: ShardRunner) -> None:
        log_offset = runner.shard.redundant_offset
        if log_offset > self._log.start_offset(runner.state_partition):
            self._log.prune(runner.state_partition, log_offset)
            self._metrics.prune_offsets[runner.state_partition] = log_offset

    async def compact(self) -> None:
        """Snapshot the states whose old records prevent the deletion of the oldest segments, and prune.

        If there are no such segments, this job does nothing. A journal that accepts no writes is always
        pruned, because its disk may be full.
        """
        size_before = self._log.size_bytes()
        live_bytes = sum(runner.shard.live_bytes for runner in self._runners)
        is_stuck = not isinstance(self._log, SharedLog) and self._log.health() is not None
        if is_stuck or self._log.prune_offsets_freeing_storage(live_bytes):
            await self.prune()
        ends = {each.state_partition: self._log.end_offset(each.state_partition) for each in self._runners}
        while pinned := self._log.prune_offsets_freeing_storage(live_bytes):
            if all(before > ends[state_partition] for state_partition, before in pinned.items()):
                # All states have new snapshots and the log is not smaller, so another pass would not help.
                return
            for runner in self._active_runners():
                before = pinned.get(runner.state_partition)
                if before is not None:
                    await self._snapshot_and_prune(runner, before, size_before)
            if self._log.prune_offsets_freeing_storage(live_bytes) == pinned:
                # A snapshot could not be written now; it is retried at the next interval.
                return

    async def _snapshot_and_prune(self, runner: ShardRunner, before: int, size_before: int) -> None:
        await self._run_job_until_done(
            runner,
            lambda shard, now_ms: shard.snapshot_before(before, now_ms=now_ms, limits=self._snapshot_limits),
            size_before,
        )
        self._prune_log(runner)

    def _active_runners(self) -> list[ShardRunner]:
        return [runner for runner in self._runners if runner.status is ShardStatus.ACTIVE]

    async def _run_job_until_done(
        self, runner: ShardRunner, make_records: _MakeRecords, size_before: int | None = None
    ) -> None:
        """Run the steps of a job until one creates no records.

        The pauses get shorter as the log grows above `size_before`, so that a job that frees storage is not
        outrun by clients.
        """

        def decide(
            shard: Shard, _: SharePartitionKey, unit: object, context: RequestContext
        ) -> CoordinatorResult:
            records = make_records(shard, context.now_ms)
            return CoordinatorResult(records, self._part_of_step(records))

        while True:
            job = AwaitableOperation(decide, _NO_KEY)
            runner.submit(job)
            part, _ = await job.outcome
            if not part:
                return
            size_bytes = self._log.size_bytes()
            growth = 1.0 if size_before is None else max(1.0, size_bytes / max(1, size_before))
            await asyncio.sleep(self._limits.job_pause_s * part / growth)

    def _part_of_step(self, records: Sequence[StateRecord]) -> float:
        """Return the size of a step, relative to the limits of a step; 0 if it has no records."""
        values = [record.value for record in records if isinstance(record.value, ShareSnapshotValue)]
        size_bytes = sum(len(value.state_batches) for value in values)
        return max(len(records) / self._limits.job_records_max, size_bytes / self._limits.job_bytes_max)
