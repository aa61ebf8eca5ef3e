"""Loading: a shard's state is rebuilt by replaying its log, in slices between which others are served.

All shards that wait to be loaded are loaded in one pass over the log: the journal holds every shard's
records in one sequence, and after a failed group commit many shards load at once.

In a log that several processes can write to, each load begins with an ownership of its own: the claim is in
the log before it is read, so that nothing counts which is not seen.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from coordinator.errors import LogError, LogFenced
from coordinator.log.base import SharedLog, StateLog
from coordinator.metrics import Metrics
from coordinator.runtime.limits import RuntimeLimits
from coordinator.runtime.replay import FINISHED_TOGETHER, Replay, give_memory_back, replays_of
from coordinator.runtime.shard_runner import ShardRunner
from coordinator.runtime.turns import Status
from coordinator.shard import Shard
from protocol.errors import DecodeError

_logger = logging.getLogger(__name__)

# How long a shard that is given away while it is claimed may take to be claimed all the same.
CLAIM_WAIT_S = 1.0


class Loader:
    """Loads the shards that ask for it, one pass over the log at a time. Runs as one task."""

    def __init__(
        self,
        log: StateLog,
        metrics: Metrics,
        limits: RuntimeLimits,
        may_claim: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make a loader that claims shards only while `may_claim` (a lease).

        Without that, who was away for long would take its shards back from those whom they were given to
        meanwhile: that they read from a broker which is cut off is bounded by our lease, not by theirs.
        """
        self._may_claim = may_claim
        self._log = log
        self._shared = log if isinstance(log, SharedLog) else None
        self._metrics = metrics
        self._limits = limits
        self._owning: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, ShardRunner] = {}
        self._asked = asyncio.Event()
        self._backoff_s = limits.reload_backoff_first_s
        # What is said of a burst of loads: it lasts until nothing is about to be read.
        self._claiming: set[int] = set()
        self._reading = False
        self._burst_began_s: float | None = None
        self._burst_shards = self._burst_records = 0

    def ask(self, runner: ShardRunner, release_wait_s: float = 0.0) -> None:
        """Load this shard in the next pass; wait so long at most for its owner until now to release it."""
        runner.begin_loading()
        self._burst_goes_on()
        if self._shared is None:
            self._pass_on(runner)
            return
        # Each by itself: one whose partition has no leader must not keep the others from loading.
        partition = runner.state_partition
        self._claiming.add(partition)
        owning = asyncio.get_running_loop().create_task(self._own(self._shared, runner, release_wait_s))
        self._owning[partition] = owning
        owning.add_done_callback(partial(self._owned, partition))

    def _burst_goes_on(self) -> None:
        if self._burst_began_s is None:
            self._burst_began_s = asyncio.get_running_loop().time()

    def _claims_again(self, runner: ShardRunner) -> None:
        """Note that a shard which could not be claimed is about to be: the burst is not over."""
        runner.begin_loading()
        self._burst_goes_on()
        self._claiming.add(runner.state_partition)

    def _owned(self, partition: int, owning: "asyncio.Task[None]") -> None:
        if self._owning.get(partition, owning) is owning:
            self._owning.pop(partition, None)
            self._claimed(partition)

    def _claimed(self, partition: int) -> None:
        """Note that a claim succeeded or not; it may be what the end of a burst waited for."""
        self._claiming.discard(partition)
        self._say_loaded()

    async def leave(self, runner: ShardRunner) -> None:
        """Load this shard no more: it was closed. A pass that is under way drops what it read of it."""
        self._waiting.pop(runner.state_partition, None)
        owning = self._owning.pop(runner.state_partition, None)
        if owning is not None:
            # A claim that is on its way is better made, and then released, than left for the next owner.
            try:
                await asyncio.wait({owning}, timeout=CLAIM_WAIT_S)
            finally:
                owning.cancel()
            await asyncio.gather(owning, return_exceptions=True)

    def _is_wanted(self, runner: ShardRunner) -> bool:
        """Tell whether a claim under way is still meant to be loaded.

        One that was left is not, even if its shard was elected again: that election gets a claim of its own.
        """
        return runner.elected and self._owning.get(runner.state_partition) is asyncio.current_task()

    async def _own(self, log: SharedLog, runner: ShardRunner, release_wait_s: float) -> None:
        """Own a shard before it is read; close it if somebody else takes it at the same time."""
        backoff_s = self._limits.reload_backoff_first_s
        partition = runner.state_partition
        while True:
            if not self._may_claim():
                runner.failed("nothing was heard of the others for too long to claim it")
                self._claimed(partition)
                while self._is_wanted(runner) and not self._may_claim():  # noqa: ASYNC110
                    await asyncio.sleep(self._limits.tick_s)
                if not self._is_wanted(runner):
                    return
                self._claims_again(runner)
            try:
                runner.owner_epoch = await log.own(partition, release_wait_s, self._may_claim)
            except LogFenced as error:
                runner.fenced(error)
                return
            except Exception as error:
                _complain(f"shard {partition} cannot be owned", error)
                runner.failed(str(error))
                self._claimed(partition)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self._limits.reload_backoff_max_s)
                if not self._is_wanted(runner):
                    return
                self._claims_again(runner)
            else:
                if self._is_wanted(runner):
                    self._pass_on(runner)
                return

    def _pass_on(self, runner: ShardRunner) -> None:
        self._waiting[runner.state_partition] = runner
        self._asked.set()

    async def run(self) -> None:
        """Load for ever; a pass that fails is tried again after a growing pause."""
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                runners, self._waiting = self._waiting, {}
                if runners:
                    self._reading = True
                    await self._try_to_load(runners)
                    self._reading = False
                self._say_loaded()
        finally:
            for owning in list(self._owning.values()):
                owning.cancel()

    async def _try_to_load(self, runners: dict[int, ShardRunner]) -> None:
        # One that was closed a moment ago is about to leave.
        runners = {partition: one for partition, one in runners.items() if one.status is Status.LOADING}
        for runner in runners.values():
            runner.begin_loading()
        shards = {partition: runner.shard for partition, runner in runners.items()}
        try:
            await self._load(runners, shards)
            self._backoff_s = self._limits.reload_backoff_first_s
        except Exception as error:
            _complain(f"loading {len(runners)} shards failed", error)
            failed = [runner for partition, runner in runners.items() if runner.shard is shards[partition]]
            for runner in failed:
                runner.failed(str(error))
            await asyncio.sleep(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, self._limits.reload_backoff_max_s)
            # A damaged one is looked at again, because an operator may have put the file back.
            for runner in failed:
                if runner.elected and runner.shard is shards[runner.state_partition]:
                    self.ask(runner)

    async def _load(self, runners: dict[int, ShardRunner], shards: dict[int, Shard]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        records = dict.fromkeys(runners, 0)
        replays = replays_of(shards)
        slice_left = self._limits.load_slice_batches
        with _collector_paused():
            async for chunk in self._log.read(runners):
                for state_partition, batch in chunk:
                    records[state_partition] += replays[state_partition].take(batch)
                    slice_left -= 1
                    if slice_left == 0:
                        slice_left = self._limits.load_slice_batches
                        await asyncio.sleep(0)
            await _finish(replays)
        give_memory_back()
        load_s = loop.time() - began_s
        for state_partition, runner in runners.items():
            runner.loaded(
                shards[state_partition],
                self._log.end_offset(state_partition),
                records[state_partition],
                round(load_s * 1000),
            )
            self._metrics.shard_loaded(state_partition, records[state_partition], load_s)
        self._burst_shards += len(runners)
        self._burst_records += sum(records.values())

    def _say_loaded(self) -> None:
        """Say at the end of a burst what it came to, claims included: shards of a topic come one by one."""
        busy = self._waiting or self._claiming or self._reading
        if busy or self._burst_began_s is None:
            return
        took_s = asyncio.get_running_loop().time() - self._burst_began_s
        if self._burst_shards:
            _logger.info(
                "loaded shards",
                extra={
                    "shards": self._burst_shards,
                    "records": self._burst_records,
                    "seconds": round(took_s, 3),
                },
            )
        self._burst_began_s = None
        self._burst_shards = self._burst_records = 0


def _complain(what: str, error: Exception) -> None:
    """Say that something failed; where in the code only if that should not have been possible."""
    unexpected = not isinstance(error, LogError | DecodeError)
    _logger.error("%s: %s", what, error, exc_info=error if unexpected else None)


async def _finish(replays: dict[int, Replay]) -> None:
    """Finish replays, and drop them with the memory they took."""
    while replays:
        _, replay = replays.popitem()
        while not replay.finish(FINISHED_TOGETHER):  # noqa: ASYNC110
            await asyncio.sleep(0)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking a heap that only grows."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
