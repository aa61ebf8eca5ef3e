"""The runtime: one runner for each shard, the loader, the jobs, and the ticker that expires waits.

It owns the log.  Everything runs on one event loop; nothing here is called from another thread.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection

from coordinator import fastpath
from coordinator.clock import Clock
from coordinator.errors import LogError
from coordinator.log.base import SharedLog, StateLog
from coordinator.metrics import Metrics
from coordinator.runtime.commit_scheduler import CommitScheduler
from coordinator.runtime.completion import report_failure
from coordinator.runtime.decider import Decider
from coordinator.runtime.limits import RuntimeLimits
from coordinator.runtime.loader import Loader
from coordinator.runtime.maintenance import MaintenanceJobs
from coordinator.runtime.operations import FastPathWrites, Operation
from coordinator.runtime.shard_runner import ShardRunner
from coordinator.runtime.status import Status
from coordinator.shard import ShareState, SnapshotPolicy
from coordinator.state_view import ShardView
from coordinator.topics import TopicDirectory
from protocol.messages import write_share_group_state
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

_logger = logging.getLogger(__name__)

# Share-partitions that are visited before other work on the event loop runs.
VIEW_SLICE = 2_000


class Runtime:
    """All shards of this process. `start` before use, `stop` once."""

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
        """Make a runtime that has no shard yet.

        `may_claim` tells whether shards may be claimed now; `on_fenced` is told of a shard that another
        process has claimed.
        """
        self.state_partitions = state_partitions
        self.limits = limits
        self._log = log
        self._metrics = metrics
        self._stopping = False
        self._open = False
        self._health_sources: list[Callable[[], list[str]]] = []
        self._loader = Loader(log, metrics, limits, may_claim)
        scheduler = CommitScheduler(log=log, clock=clock, topics=topics, metrics=metrics, limits=limits)
        decider = Decider(log=log, clock=clock, topics=topics, limits=limits)
        self._runners = [
            ShardRunner(
                partition,
                scheduler=scheduler,
                log=log,
                decider=decider,
                metrics=metrics,
                policy=policy,
                limits=limits,
                reload=self._loader.request_load,
                on_fenced=on_fenced,
            )
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
        # For those that are elected again while they resign: how long the owner until then is waited for.
        self._release_waits_s: dict[int, float] = {}

    async def start(self, *, elect_all: bool = True) -> None:
        """Open the log, and begin to load every shard unless somebody else will elect.

        Raises LogError when the log cannot be opened; after LogUnavailable this may be called again.
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

    # Ownership.

    def elect(self, state_partition: int, *, release_expected: bool = False) -> None:
        """Own a shard from now on, and load it; one that is ours already goes on as it is.

        With `release_expected` its owner until now is given some time to finish and to release it.
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
        """Own a shard no more: let its append under way finish, release it in the log, and forget it.

        It is over when the state partition is not among `resigning`.
        """
        runner = self._runners[state_partition]
        was_open = runner.status is not Status.CLOSED
        runner.close("The shard moves to another coordinator.")
        if was_open and state_partition not in self._resigning:
            task = asyncio.create_task(self._resign(runner), name=f"resign shard {state_partition}")
            self._resigning[state_partition] = task
        elif not was_open:
            runner.failure = None

    async def _resign(self, runner: ShardRunner) -> None:
        state_partition = runner.state_partition
        try:
            await self._loader.cancel_load(runner)
            await runner.wait_for_append()
            runner.discard_state()
            if isinstance(self._log, SharedLog):
                await self._log.release(state_partition)
        except LogError as error:
            # Whoever comes next waits for our lease to end, and takes it.
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
    def resigning(self) -> Collection[int]:
        """The shards that are being given away right now."""
        return self._resigning.keys()

    def owns(self, state_partition: int) -> bool:
        """Tell whether this process should own a shard, loaded or not."""
        return self._runners[state_partition].elected

    def owned_shards(self) -> list[int]:
        """Return the shards that this process should own, loaded or not."""
        return [runner.state_partition for runner in self._runners if runner.elected]

    def mark_not_ready(self) -> None:
        """Say from now on that this coordinator is not ready: it is about to stop."""
        self._stopping = True

    async def stop(self) -> None:
        """Close every shard, and the log when the appends under way are through.

        Operations that still wait are answered NOT_COORDINATOR; whoever wants them finished waits for
        the answers first (`Listener.drain`).
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
        """Let whoever comes next know that nothing of ours is under way, if the log takes that soon."""
        for owned in self.owned_shards():
            self.resign(owned)
        if self._resigning:
            await asyncio.wait(self._resigning.values(), timeout=self.limits.release_timeout_s)

    def submit(self, operation: Operation) -> None:
        """Hand an operation to the shard of its share-partition."""
        self._runners[state_partition(operation.key, self.state_partitions)].submit(operation)

    def fast_path_writes(self) -> FastPathWrites | None:
        """Return what carries fast-path writes out, where there is such a thing."""
        if fastpath.compiled is None:
            return None
        writes: FastPathWrites = fastpath.compiled.FastPathWrites(
            self._runners,
            asyncio.get_running_loop().time,
            *self._metrics.request_histogram(write_share_group_state.API_KEY),
        )
        return writes

    async def _tick(self) -> None:
        """Expire waits, and measure how late the event loop is."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + self.limits.tick_s
            await asyncio.sleep(self.limits.tick_s)
            self._metrics.event_loop_lag(max(0.0, loop.time() - due_s))
            for runner in self._runners:
                try:
                    runner.expire_operations()
                except Exception as failure:
                    report_failure(f"expiring operations of shard {runner.state_partition} failed", failure)

    # Look.

    @property
    def can_serve(self) -> bool:
        """True if shards would be served here: the log as a whole is well. For any thread.

        A shard that failed to load does not count: who has it next would have the same log to read, and all
        that is well would move with it.
        """
        return self._log.health() is None and not self._stopping

    @property
    def initial_load_done(self) -> bool:
        """True as soon as every shard is past its first load; one that waits for its turn is not."""
        return self._open and all(
            runner.status is Status.ACTIVE
            or (runner.status is Status.CLOSED and (not runner.elected or runner.failure is not None))
            for runner in self._runners
        )

    def add_health_source(self, part: Callable[[], list[str]]) -> None:
        """Add to `health` what a part outside of the runtime says."""
        self._health_sources.append(part)

    def health(self) -> list[str]:
        """Return why this coordinator is not ready, one sentence each; nothing when it is."""
        reasons = [reason for part in self._health_sources for reason in part()]
        if self._stopping:
            reasons.append("The coordinator is stopping.")
        loading = sum(runner.status is Status.LOADING for runner in self._runners)
        if loading:
            reasons.append(f"{loading} of {len(self.owned_shards())} shards are loading.")
        failures = {runner.failure for runner in self._runners if runner.status is Status.FAILED}
        reasons.extend(f"Shards failed to load: {failure}" for failure in sorted(filter(None, failures)))
        fenced = [runner for runner in self._runners if runner.status is Status.CLOSED and runner.failure]
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
        """Return the number of appends that the log has not confirmed yet."""
        return sum(runner.append_in_flight for runner in self._runners)

    def shard_views(self) -> list[ShardView]:
        """Return what there is to see of every shard, cheap at any size of state."""
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
        """Iterate over all states, letting other work on the loop run in between.

        Each state is as of the moment when it is yielded; keys that come or go meanwhile may be missed.
        """
        looked_at = 0
        for runner in self._runners:
            for key in runner.shard.share_partitions():
                state = runner.shard.state(key)
                if state is not None:
                    yield key, state
                looked_at += 1
                if looked_at % VIEW_SLICE == 0:
                    await asyncio.sleep(0)

    def share_partition(self, key: SharePartitionKey) -> ShareState | None:
        """Return the state of one share-partition, or None."""
        return self._runners[state_partition(key, self.state_partitions)].shard.state(key)
