"""The environment of a simulation: its clock, network and storage, and the coordinator's process."""

import asyncio
from collections.abc import Callable
from random import Random

from coordinator.cluster.topics import TopicDirectory
from coordinator.errors import LogDamaged, LogError
from coordinator.shard import Shard, ShareState
from protocol.record_batch import decode_batches
from protocol.state_records import SharePartitionKey, decode_record
from tests.simulation.history import History, Violation
from tests.simulation.loop import SimLoop
from tests.simulation.net import Network
from tests.simulation.plan import Plan
from tests.simulation.process import CoordinatorProcess, SimClock, StartStopTimeout
from tests.simulation.storage import JournalStorage

# Every step that no fault delays must end within this number of virtual seconds.
PATIENCE_S = 400.0

# Without faults, the coordinator must become ready within this number of seconds: the longest pause between
# two attempts to load, or to write to a failed disk, and a reserve.
READY_BY_S = 60.0

# The coordinator must close a connection within this number of seconds, even if its client reads nothing.
CLOSED_BY_S = 60.0


# The maximum size of a journal: a number of segments plus a multiple of the live state. The limit is loose,
# because whole files are counted, some files are just created or removed, and small commits have overhead.
SEGMENTS_MAX = 8
LIVE_BYTES_FACTOR_MAX = 8


class World:
    """All parts of a simulation except the clients. Faults happen while `faulty` is True."""

    def __init__(
        self, plan: Plan, loop: SimLoop, rng: Random, storage: JournalStorage, topics: TopicDirectory
    ) -> None:
        self.plan = plan
        self.loop = loop
        self.history = History()
        self.network = Network(loop, Random(rng.getrandbits(64)), plan.net)
        loop.network = self.network
        self.clock = SimClock(loop)
        self.storage = storage
        self.process: CoordinatorProcess | None = None
        # This lock is held during each start and end of the process.
        self.life = asyncio.Lock()
        self.faulty = True
        self.crashes = 0
        self.stops = 0
        self.damages = 0
        self._topics = topics
        self._lives = 0
        self._rng = rng
        self._segment_bytes_max = 0

    async def start(self) -> None:
        """Start a coordinator; retry while the log cannot be opened."""
        while self.process is None:
            self._lives += 1
            plan = self.plan.plan_next_process(self._rng)
            self._segment_bytes_max = max(self._segment_bytes_max, plan.segment_bytes)
            process = CoordinatorProcess(
                self._lives,
                loop=self.loop,
                plan=plan if self.faulty else plan.without_faults(),
                storage=self.storage,
                clock=self.clock,
                topics=self._topics,
            )
            try:
                await process.start(self._limit_s())
            except StartStopTimeout:
                await process.crash()
                self.crashes += 1
            except LogDamaged as error:
                await process.crash()
                self.storage.undo_damage(error)
                self.damages += 1
            except LogError as error:
                if not self.faulty:
                    raise Violation(
                        f"all faults have ended, but the log cannot be opened: {error}"
                    ) from error
                await process.crash()
                await asyncio.sleep(0.1)
            else:
                self.storage.on_log_opened()
                self.process = process

    async def crash(self) -> None:
        """Kill the process. Pending requests of the process cannot take effect later."""
        process, self.process = self.process, None
        assert process is not None
        await process.crash()
        self.history.close_unknown(self.loop.time())
        self.crashes += 1

    async def stop(self) -> None:
        """Stop the process."""
        process, self.process = self.process, None
        assert process is not None
        try:
            await process.stop(self._limit_s())
        except StartStopTimeout:
            await process.crash()
            self.crashes += 1
        self.history.close_unknown(self.loop.time())
        self.stops += 1

    def _limit_s(self) -> float | None:
        """Return the time limit of a start or stop, after which the process is killed; None: no limit."""
        if self.faulty and self._rng.random() < self.plan.nemesis.interrupt_rate:
            return self._rng.expovariate(20.0)
        return None

    def stop_faults(self) -> None:
        """Disable faults."""
        healed = self.plan.without_faults()
        self.faulty = False
        self.network.faults = healed.net
        self.storage.set_fault_plan(healed)

    def resume_faults(self) -> None:
        """Enable faults again."""
        self.faulty = True
        self.network.faults = self.plan.net
        self.storage.set_fault_plan(self.plan)

    async def compare_memory_with_log(self) -> dict[SharePartitionKey, ShareState]:
        """Replay the log, and compare the result with memory; raise Violation for a difference.

        A maintenance job may run at the same time, so the comparison is repeated.
        """
        assert self.process is not None
        runtime = self.process.runtime
        await wait_until(lambda: not runtime.health(), runtime.health, READY_BY_S)
        replayed: dict[SharePartitionKey, ShareState] = {}
        live: dict[SharePartitionKey, ShareState] = {}
        for _ in range(5):
            replayed = await self.process.run_in_process(self._replay_log)
            live = {key: state async for key, state in runtime.share_partitions()}
            if replayed == live:
                return live
            await asyncio.sleep(0.3)
        different = [key for key in {**replayed, **live} if replayed.get(key) != live.get(key)]
        raise Violation(
            "\n  ".join(f"{key}: live {live.get(key)}, replayed {replayed.get(key)}" for key in different)
        )

    async def _replay_log(self) -> dict[SharePartitionKey, ShareState]:
        assert self.process is not None
        partitions = range(self.plan.state_partitions)
        shards = [Shard(partition, self.plan.policy) for partition in partitions]
        async for chunk in self.process.log.read(partitions):
            for partition, batches in chunk:
                for batch in decode_batches(batches):
                    for logged in batch.records:
                        record = decode_record(logged.key, logged.value)
                        assert record is not None
                        shards[partition].replay(record, logged.offset, logged.timestamp_ms)
        return {key: state for shard in shards for key, state in shard.items()}

    async def wait_until_connections_are_closed(self) -> None:
        """Wait until the coordinator must have closed all connections as idle. Raise Violation if one is
        open.

        Request memory must be free, too. No client may send requests in the meantime.
        """
        assert self.process is not None
        listener, limits = self.process.listener, self.plan.server_limits
        await asyncio.sleep(limits.connection_idle_s + limits.frame_s + CLOSED_BY_S)
        if listener.connection_count or listener.held_bytes:
            raise Violation(
                f"no client sends requests, but {listener.connection_count} connections are open, "
                f"and requests occupy {listener.held_bytes} bytes"
            )

    def check_journal_size(self) -> None:
        """Raise Violation if a journal is much larger than its segments and live state explain."""
        assert self.process is not None
        live_bytes = sum(view.live_bytes for view in self.process.runtime.shard_views())
        size_bytes = self.process.log.size_bytes()
        if size_bytes > SEGMENTS_MAX * self._segment_bytes_max + LIVE_BYTES_FACTOR_MAX * live_bytes:
            raise Violation(f"the journal has {size_bytes} bytes for {live_bytes} bytes of live state")


async def wait_until(
    condition: Callable[[], bool], what: Callable[[], object], patience_s: float = 2 * PATIENCE_S
) -> None:
    """Poll a condition; raise Violation after `patience_s`.

    On virtual time, polling costs no real time.
    """
    until_s = asyncio.get_running_loop().time() + patience_s
    while not condition():
        if asyncio.get_running_loop().time() > until_s:
            raise Violation(f"a condition was not met within {patience_s:g} virtual s: {what()}")
        await asyncio.sleep(0.1)
