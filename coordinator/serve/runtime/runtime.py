"""The runtime: one runner per shard, the loader, the maintenance jobs, and the tick that expires operations.

The runtime owns the log. The whole runtime runs on one event loop. Only the thread of the event loop may call
the runtime's methods, except for methods that are documented otherwise.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection

from coordinator import fastpath
from coordinator.cluster.topics import TopicDirectory
from coordinator.errors import LogError
from coordinator.log.base import SharedLog, StateLog
from coordinator.metrics import Metrics, ShardView
from coordinator.process.clock import Clock
from coordinator.serve.runtime.commit_scheduler import CommitScheduler
from coordinator.serve.runtime.decider import Decider, ShardServices
from coordinator.serve.runtime.limits import RuntimeLimits
from coordinator.serve.runtime.loader import ShardLoader
from coordinator.serve.runtime.maintenance import MaintenanceJobs
from coordinator.serve.runtime.operations import FastPathExecutor, Operation, report_failure
from coordinator.serve.runtime.shard_runner import ShardRunner
from coordinator.serve.runtime.status import ShardStatus
from coordinator.shard import Shard, ShareState, SnapshotPolicy
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

_logger = logging.getLogger(__name__)

# `share_partitions` yields to the event loop after this many share-partitions.
PARTITIONS_PER_SLICE = 2_000


class Runtime:
    """All shards of this process. Call `start` before other methods, and `stop` once."""

    def __init__(
        self,
        *,
        log: StateLog,
        clock: Clock,
        topics: TopicDirectory,
        metrics: Metrics,
        policy: SnapshotPolicy,
        limits: RuntimeLimits,
        state_partitions: int,
        cold_interval_ms: int,
        prune_interval_ms: int,
        may_claim: Callable[[], bool] = lambda: True,
        on_fenced: Callable[[int], None] = lambda state_partition: None,
    ) -> None:
        """Create a runtime that owns no shard.

        `may_claim` returns whether shards may be claimed now. `on_fenced` is called with each shard that
        another process has claimed.
        """
        self.state_partitions = state_partitions
        self.limits = limits
        self._log = log
        self._metrics = metrics
        self._stopping = False
        self._open = False
        self._health_sources: list[Callable[[], list[str]]] = []
        self._loader = ShardLoader(log, metrics, limits, may_claim)
        self._scheduler = scheduler = CommitScheduler(
            log=log, clock=clock, topics=topics, metrics=metrics, limits=limits
        )
        decider = Decider(log=log, clock=clock, topics=topics, limits=limits)
        services = ShardServices(scheduler, log, decider, metrics, policy, limits)
        self._runners = [
            ShardRunner(partition, services, reload=self._loader.request_load, on_fenced=on_fenced)
            for partition in range(state_partitions)
        ]
        self.jobs = MaintenanceJobs(
            self._runners,
            log=log,
            clock=clock,
            metrics=metrics,
            limits=limits,
            cold_interval_ms=cold_interval_ms,
            prune_interval_ms=prune_interval_ms,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._resigning: dict[int, asyncio.Task[None]] = {}
        # For shards that are elected again during their release: the longest wait for the other owner's
        # release record.
        self._release_waits_s: dict[int, float] = {}

    async def start(self, *, elect_all: bool = True) -> None:
        """Open the log. With `elect_all`, own all shards and start to load them.

        Raises LogError if the log cannot be opened. After LogUnavailable, the call may be repeated.
        """
        await self._log.open()
        self._open = True
        self._tasks = [
            asyncio.create_task(self._loader.run(), name="loader"),
            asyncio.create_task(self.jobs.run(), name="jobs"),
            asyncio.create_task(self._tick(), name="ticker"),
        ]
        if elect_all:
            for state_partition in range(self.state_partitions):
                self.elect(state_partition)

    def observe_loads(self, loaded: Callable[[Shard], None]) -> None:
        """Call `loaded` with each shard that was loaded, before it is served."""
        self._loader.on_loaded = loaded

    # Ownership.

    def elect(self, state_partition: int, *, release_expected: bool = False) -> None:
        """Own a shard from now on and load it. A shard that is already owned is not affected.

        With `release_expected`, the current owner gets `release_wait_s` to complete its append and to release
        the shard.
        """
        runner = self._runners[state_partition]
        if self._stopping or runner.elected:
            return
        runner.elected = True
        release_wait_s = self.limits.release_wait_s if release_expected else 0.0
        if state_partition in self._resigning:
            self._release_waits_s[state_partition] = release_wait_s
        else:
            self._loader.request_load(runner, release_wait_s)

    def resign(self, state_partition: int) -> None:
        """Stop owning a shard: complete its append in flight, release it in the log, and discard its state.

        Resigning is complete when the state partition is no longer in `resigning_shards`.
        """
        runner = self._runners[state_partition]
        was_open = runner.status is not ShardStatus.CLOSED
        runner.close("The shard moves to another coordinator.")
        if was_open and state_partition not in self._resigning:
            task = asyncio.create_task(self._resign_shard(runner), name=f"resign shard {state_partition}")
            self._resigning[state_partition] = task
        elif not was_open:
            runner.failure = None

    async def _resign_shard(self, runner: ShardRunner) -> None:
        state_partition = runner.state_partition
        try:
            await self._loader.cancel_load(runner)
            await runner.wait_for_append()
            runner.discard_state()
            if isinstance(self._log, SharedLog):
                await self._log.release(state_partition)
        except LogError as error:
            # The next owner waits until this lease has ended, and then claims the shard.
            _logger.info(
                "Shard %d has no release record, so its next owner waits for the lease: %s",
                state_partition,
                error,
            )
        finally:
            del self._resigning[state_partition]
            release_wait_s = self._release_waits_s.pop(state_partition, 0.0)
            if runner.elected and not self._stopping:
                self._loader.request_load(runner, release_wait_s)

    @property
    def resigning_shards(self) -> Collection[int]:
        return self._resigning.keys()

    def owns(self, state_partition: int) -> bool:
        """Return whether this process should own a shard, loaded or not."""
        return self._runners[state_partition].elected

    def outdated_partitions(self) -> Collection[int]:
        """Return the shards without state, because they are not loaded yet or could not be loaded."""
        return [
            runner.state_partition
            for runner in self._runners
            if runner.elected and runner.status is not ShardStatus.ACTIVE
        ]

    def owned_shards(self) -> list[int]:
        """Return the shards that this process should own, loaded or not."""
        return [runner.state_partition for runner in self._runners if runner.elected]

    def mark_not_ready(self) -> None:
        """Report from now on that this coordinator is not ready, because it will stop."""
        self._stopping = True

    async def stop(self) -> None:
        """Release and close all shards, and close the log after the appends in flight.

        Queued operations are refused with NOT_COORDINATOR. To complete them first, call `Listener.drain`.
        """
        self._stopping = True
        if isinstance(self._log, SharedLog):
            await self._release_all()
        tasks = [*self._tasks, *self._resigning.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for runner in self._runners:
            runner.close()
        await self._log.close()

    async def _release_all(self) -> None:
        """Release all shards in the log, so that their next owners do not wait for the leases."""
        for shard in self.owned_shards():
            self.resign(shard)
        if self._resigning:
            await asyncio.wait(self._resigning.values(), timeout=self.limits.release_timeout_s)

    def submit(self, operation: Operation) -> None:
        """Queue an operation in the shard of its share-partition."""
        self._runners[state_partition(operation.key, self.state_partitions)].submit(operation)

    def fast_path_executor(self) -> FastPathExecutor | None:
        """Return the executor of fast-path requests, or None without the compiled module."""
        if fastpath.compiled is None:
            return None
        requests: FastPathExecutor = fastpath.compiled.FastPathExecutor(
            self._runners,
            asyncio.get_running_loop().time,
            *self._metrics.request_histograms(),
            self._scheduler.topics_to_check,
        )
        return requests

    async def _tick(self) -> None:
        """Expire operations, renew leases, and measure the lag of the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + self.limits.tick_s
            await asyncio.sleep(self.limits.tick_s)
            self._metrics.set_event_loop_lag(max(0.0, loop.time() - due_s))
            for runner in self._runners:
                try:
                    runner.expire_operations()
                except Exception as failure:
                    report_failure(f"expiring operations of shard {runner.state_partition} failed", failure)

    # Queries.

    @property
    def can_serve(self) -> bool:
        """True if this process could serve shards, because the log is available. Callable from any thread.

        Shards that failed to load do not count: their next owner would read the same log, and the healthy
        shards would move too.
        """
        return self._log.health() is None and not self._stopping

    @property
    def initial_load_done(self) -> bool:
        """True when every owned shard was loaded once, or another process has claimed it during the load."""
        return self._open and all(
            runner.status is ShardStatus.ACTIVE
            or (runner.status is ShardStatus.CLOSED and (not runner.elected or runner.failure is not None))
            for runner in self._runners
        )

    def add_health_source(self, source: Callable[[], list[str]]) -> None:
        """Add the reasons of another component to `health`."""
        self._health_sources.append(source)

    def health(self) -> list[str]:
        reasons = [reason for source in self._health_sources for reason in source()]
        if self._stopping:
            reasons.append("The coordinator is stopping.")
        loading = sum(runner.status is ShardStatus.LOADING for runner in self._runners)
        if loading:
            reasons.append(f"{loading} of {len(self.owned_shards())} shards are loading.")
        failures = {runner.failure for runner in self._runners if runner.status is ShardStatus.FAILED}
        reasons.extend(f"Shards failed to load: {failure}" for failure in sorted(filter(None, failures)))
        fenced = [
            runner for runner in self._runners if runner.status is ShardStatus.CLOSED and runner.failure
        ]
        if fenced:
            reasons.append(f"{len(fenced)} shards are closed: {fenced[0].failure}.")
        overdue = sum(runner.append_overdue for runner in self._runners)
        if overdue:
            reasons.append(f"The log has not confirmed the appends of {overdue} shards in time.")
        log_health = self._log.health()
        if log_health is not None:
            reasons.append(log_health)
        return reasons

    def appends_in_flight(self) -> int:
        return sum(runner.append_in_flight for runner in self._runners)

    def shard_views(self) -> list[ShardView]:
        return [
            ShardView(
                state_partition=runner.state_partition,
                status=str(runner.status),
                failure=runner.failure,
                owner_epoch=runner.owner_epoch,
                share_partitions=len(runner.shard),
                start_log_offset=self._log.start_offset(runner.state_partition),
                end_log_offset=runner.next_log_offset,
                redundant_offset=runner.shard.redundant_offset,
                load_ms=runner.load_ms,
                loaded_records=runner.loaded_records,
                live_bytes=runner.shard.live_bytes,
                state_batches=runner.shard.state_batches,
            )
            for runner in self._runners
        ]

    async def share_partitions(self) -> AsyncIterator[tuple[SharePartitionKey, ShareState]]:
        """Iterate over all states; other callbacks of the event loop run in between.

        Each state is current when it is yielded. Share-partitions that are created or deleted meanwhile may
        be missing.
        """
        visited = 0
        for runner in self._runners:
            for key in runner.shard.share_partitions():
                state = runner.shard.state(key)
                if state is not None:
                    yield key, state
                visited += 1
                if visited % PARTITIONS_PER_SLICE == 0:
                    await asyncio.sleep(0)

    def share_partition(self, key: SharePartitionKey) -> ShareState | None:
        return self._runners[state_partition(key, self.state_partitions)].shard.state(key)
