"""Load shards: rebuild their state by replaying the log.

All waiting shards are loaded in one pass over the log, because the journal contains all shards in one
sequence, and after a failed group commit many shards load at once. A shard that cannot be loaded does not
delay the others.

In a log that several processes can write to, each load begins with a claim. The log is read after the claim
is stored: earlier records are read, and readers ignore later records of earlier owners. In a topic, a single
shard's partition may be unavailable. Shards of a topic therefore wait for each other only briefly.
"""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from coordinator.errors import LogError, LogFenced, LogUnavailable
from coordinator.log.base import LoggedBatch, SharedLog, StateLog
from coordinator.metrics import Metrics
from coordinator.process.freed_memory import trim_heap
from coordinator.serve.runtime.limits import RuntimeLimits
from coordinator.serve.runtime.replay import make_replays
from coordinator.serve.runtime.shard_runner import ShardRunner
from coordinator.serve.runtime.status import ShardStatus
from coordinator.shard import Shard
from protocol.errors import DecodeError

_logger = logging.getLogger(__name__)

# How long to wait for a claim in progress after this process resigned its shard.
CLAIM_WAIT_S = 1.0
# The first pause before `may_claim` is checked again; each later pause is twice as long.
LEASE_PAUSE_FIRST_S = 0.01
# The longest time without data in a pass over several shards of a shared log. After it, the pass fails and
# each shard is read separately. This time is much shorter than the time that a request waits for its shard.
PASS_STALL_S = 2.0


class ShardLoader:
    """Loads the requested shards together, in one pass over the log at a time. Runs as one task.

    In a shared log, the next pass starts concurrently if a pass takes longer than `PASS_STALL_S`. A pass over
    several shards fails if it receives no data for `PASS_STALL_S`. Each shard of a failed pass is then loaded
    in a separate pass, until it has been loaded once.
    """

    def __init__(
        self,
        log: StateLog,
        metrics: Metrics,
        limits: RuntimeLimits,
        may_claim: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create a loader that claims shards only while `may_claim` returns True.

        A coordinator without contact to its group must not take shards back from their new owners.
        """
        self._may_claim = may_claim
        # Called with each loaded shard, before it is served.
        self.on_loaded: Callable[[Shard], None] = lambda shard: None
        self._log = log
        self._shared = log if isinstance(log, SharedLog) else None
        self._metrics = metrics
        self._limits = limits
        self._claims: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, ShardRunner] = {}
        self._load_requested = asyncio.Event()
        self._loaded_separately: set[int] = set()
        self._backoffs_s: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # A burst of loads lasts from the first request until no load is pending.
        self._pending: set[int] = set()
        self._burst_began_s = 0.0
        self._burst_shards = self._burst_records = 0

    def request_load(self, runner: ShardRunner, release_wait_s: float = 0.0) -> None:
        """Load this shard in the next pass; its owner has `release_wait_s` to release it."""
        self._begin_load(runner)
        if self._shared is None:
            self._queue_shard_for_pass(runner)
            return
        # Claim each shard separately, because a partition without a leader must not delay the others.
        partition = runner.state_partition
        claim_task = asyncio.get_running_loop().create_task(self._claim(self._shared, runner, release_wait_s))
        self._claims[partition] = claim_task
        claim_task.add_done_callback(partial(self._on_claim_task_done, partition))

    def _begin_load(self, runner: ShardRunner) -> None:
        runner.begin_loading()
        if not self._pending:
            self._burst_began_s = asyncio.get_running_loop().time()
        self._pending.add(runner.state_partition)

    def _end_load(self, partition: int) -> None:
        """Record that a load has succeeded, failed or been cancelled; log a summary after the last one.

        There is one summary for many shards, because the shards of a topic are loaded one by one.
        """
        self._pending.discard(partition)
        if self._pending or not self._burst_shards:
            return
        took_s = asyncio.get_running_loop().time() - self._burst_began_s
        _logger.info(
            "Loaded shards.",
            extra={
                "shards": self._burst_shards,
                "records": self._burst_records,
                "seconds": round(took_s, 3),
            },
        )
        self._burst_shards = self._burst_records = 0

    def _on_claim_task_done(self, partition: int, claim_task: "asyncio.Task[None]") -> None:
        if self._claims.get(partition) is claim_task:
            del self._claims[partition]

    async def cancel_load(self, runner: ShardRunner) -> None:
        """Stop loading this shard, because it was closed. A pass in progress ignores its records."""
        self._end_load(runner.state_partition)
        self._waiting.pop(runner.state_partition, None)
        claim_task = self._claims.pop(runner.state_partition, None)
        if claim_task is not None:
            # A claim that was sent may still be stored, so wait for it; `Runtime` releases the shard
            # afterwards.
            try:
                await asyncio.wait({claim_task}, timeout=CLAIM_WAIT_S)
            finally:
                claim_task.cancel()
            await asyncio.gather(claim_task, return_exceptions=True)

    def _is_claim_needed(self, runner: ShardRunner) -> bool:
        """Return whether a claim in progress is still needed.

        A cancelled claim is not needed, even if its shard was elected again, because that election makes a
        new claim.
        """
        return runner.elected and self._claims.get(runner.state_partition) is asyncio.current_task()

    async def _claim(self, log: SharedLog, runner: ShardRunner, release_wait_s: float) -> None:
        """Claim a shard before it is read; close it if another owner claims it at the same time.

        A coordinator that resigned sends no claim, because the claim would fence the next owner.
        """
        backoff_s = self._limits.reload_backoff_first_s
        partition = runner.state_partition

        def is_claim_allowed() -> bool:
            return self._may_claim() and self._is_claim_needed(runner)

        while True:
            if not await self._wait_until_claim_is_allowed(runner):
                return
            try:
                runner.owner_epoch = await log.acquire_ownership(partition, release_wait_s, is_claim_allowed)
            except LogFenced as error:
                if self._is_claim_needed(runner):
                    self._end_load(partition)
                    runner.handle_fenced(error)
                return
            except Exception as error:
                if not self._is_claim_needed(runner):
                    return
                _log_failure(f"shard {partition} cannot be claimed", error)
                runner.loading_failed(str(error))
                self._end_load(partition)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self._limits.reload_backoff_max_s)
                if not self._is_claim_needed(runner):
                    return
                self._begin_load(runner)
            else:
                if self._is_claim_needed(runner):
                    self._queue_shard_for_pass(runner)
                return

    async def _wait_until_claim_is_allowed(self, runner: ShardRunner) -> bool:
        """Wait until `may_claim` returns True; return whether this claim is still needed.

        At startup, a process is elected a moment before it may claim. Only a wait of more than `tick_s` fails
        the load.
        """
        pause_s = LEASE_PAUSE_FIRST_S
        while not self._may_claim():
            if pause_s >= self._limits.tick_s:
                runner.loading_failed("without contact to its group, a coordinator claims no shards")
                self._end_load(runner.state_partition)
            await asyncio.sleep(pause_s)
            if not self._is_claim_needed(runner):
                return False
            pause_s = min(2 * pause_s, self._limits.tick_s)
        if runner.status is ShardStatus.FAILED:
            self._begin_load(runner)
        return True

    def _queue_shard_for_pass(self, runner: ShardRunner) -> None:
        self._waiting[runner.state_partition] = runner
        self._load_requested.set()

    async def run(self) -> None:
        """Load shards until cancelled; failed loads are retried after increasing pauses."""
        try:
            while True:
                await self._load_requested.wait()
                self._load_requested.clear()
                runners, self._waiting = self._waiting, {}
                for partition in self._loaded_separately & runners.keys():
                    self._start_task(self._run_pass({partition: runners.pop(partition)}))
                if runners:
                    timeout_s = None if self._shared is None else PASS_STALL_S
                    await asyncio.wait({self._start_task(self._run_pass(runners))}, timeout=timeout_s)
        finally:
            for task in (*self._claims.values(), *self._tasks):
                task.cancel()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a task in addition to those in progress; it is cancelled when `run` ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_pass(self, runners: dict[int, ShardRunner]) -> None:
        """Load shards in one pass over the log, and schedule retries of those that fail."""
        # Skip shards that were closed since their load was requested.
        runners = {
            partition: runner for partition, runner in runners.items() if runner.status is ShardStatus.LOADING
        }
        for runner in runners.values():
            runner.begin_loading()
        shards = {partition: runner.shard for partition, runner in runners.items()}
        try:
            failed = await self._load_shards(runners, shards)
        except Exception as error:
            if self._shared is not None and len(runners) > 1:
                # Separate passes show which shard fails, with its own traceback.
                _logger.warning(
                    "Loading %d shards in one pass failed; loading them one by one: %s", len(runners), error
                )
            else:
                _log_failure(f"loading {len(runners)} shards failed", error)
            failed = dict.fromkeys(runners, error)
        # In a shared log, separate passes show which shards caused a common failure.
        retry_separately = self._shared is not None and len(failed) == len(runners) > 1
        if retry_separately:
            self._loaded_separately.update(failed)
        for partition, reason in failed.items():
            runner, shard = runners[partition], shards[partition]
            # A shard that was closed in the meantime is not retried.
            if runner.shard is not shard or runner.status is not ShardStatus.LOADING:
                continue
            if retry_separately:
                self.request_load(runner)
            else:
                runner.loading_failed(str(reason))
                self._end_load(partition)
                self._start_task(self._retry_load_after_pause(runner, shard))

    async def _retry_load_after_pause(self, runner: ShardRunner, shard: Shard) -> None:
        """Load a shard again after a pause, unless it was closed or elected again in the meantime.

        A damaged shard is retried too, because an operator may have restored the file.
        """
        partition = runner.state_partition
        backoff_s = self._backoffs_s.get(partition, self._limits.reload_backoff_first_s)
        self._backoffs_s[partition] = min(2 * backoff_s, self._limits.reload_backoff_max_s)
        await asyncio.sleep(backoff_s)
        if runner.elected and runner.shard is shard:
            self.request_load(runner)

    async def _load_shards(
        self, runners: dict[int, ShardRunner], shards: dict[int, Shard]
    ) -> dict[int, Exception]:
        """Load shards; return those that cannot be replayed. Raises the exceptions of reading the log."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        records = dict.fromkeys(runners, 0)
        replays = make_replays(shards)
        failed: dict[int, Exception] = {}
        slice_bytes = 0
        with _garbage_collection_paused():
            async for chunk in self._read_log(runners):
                for state_partition, batch in chunk:
                    if state_partition in failed:
                        continue
                    try:
                        records[state_partition] += replays[state_partition].replay_batches(batch)
                    except Exception as error:
                        failed[state_partition] = error
                    slice_bytes += len(batch)
                    if slice_bytes >= self._limits.load_slice_bytes:
                        slice_bytes = 0
                        await asyncio.sleep(0)
        # Delete the last references to the ids that the replays share.
        replays.clear()
        trim_heap()
        load_s = loop.time() - began_s
        for state_partition, runner in runners.items():
            if state_partition in failed:
                _log_failure(f"shard {state_partition} cannot be replayed", failed[state_partition])
            else:
                loaded = partial(
                    self._finish_load, runner, shards[state_partition], records[state_partition], load_s
                )
                self._serve_after_earlier_leases(state_partition, loaded)
        return failed

    def _serve_after_earlier_leases(self, state_partition: int, loaded: Callable[[], None]) -> None:
        """Serve a shard when no earlier owner can answer reads from its memory."""
        if self._shared is None or self._shared.earlier_leases_left_s(state_partition) <= 0:
            loaded()
        else:
            self._start_task(self._wait_for_leases(self._shared, state_partition, loaded))

    async def _wait_for_leases(
        self, log: SharedLog, state_partition: int, loaded: Callable[[], None]
    ) -> None:
        while (wait_s := log.earlier_leases_left_s(state_partition)) > 0:  # noqa: ASYNC110
            await asyncio.sleep(wait_s)
        loaded()

    async def _read_log(self, runners: dict[int, ShardRunner]) -> AsyncIterator[list[LoggedBatch]]:
        """Read the log; raise LogUnavailable early if one shard may delay the others."""
        chunks = self._log.read(runners)
        stalled_s = PASS_STALL_S if self._shared is not None and len(runners) > 1 else None
        while True:
            timeout = asyncio.timeout(stalled_s)
            try:
                async with timeout:
                    chunk = await anext(chunks, None)
            except TimeoutError:
                if not timeout.expired():
                    raise
                raise LogUnavailable("the log returned no records in time") from None
            if chunk is None:
                return
            yield chunk

    def _finish_load(self, runner: ShardRunner, shard: Shard, records: int, load_s: float) -> None:
        partition = runner.state_partition
        if runner.shard is not shard or runner.status is not ShardStatus.LOADING:
            return
        self.on_loaded(shard)
        runner.finish_loading(shard, self._log.end_offset(partition), records, round(load_s * 1000))
        self._metrics.histogram("shard_load_duration_seconds").add(load_s)
        self._loaded_separately.discard(partition)
        self._backoffs_s.pop(partition, None)
        self._burst_shards += 1
        self._burst_records += records
        self._end_load(partition)


def _log_failure(what: str, error: Exception) -> None:
    """Log a failure, with a traceback only for unexpected exceptions."""
    unexpected = not isinstance(error, LogError | DecodeError)
    _logger.error("%s: %s", what, error, exc_info=error if unexpected else None)


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause the garbage collector, which would traverse a growing heap repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
