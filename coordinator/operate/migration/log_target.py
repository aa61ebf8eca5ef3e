"""Write migrated state to a log of this project: a state topic or a journal.

Each share-partition becomes one ShareSnapshot in the state partition of its hash.  The snapshot epoch
continues that of the source, as for a cold snapshot, so that the newest snapshot has the highest epoch.  If a
state is replaced, a tombstone precedes the snapshot in the same batch.  The tombstone clears the old leader
and state epochs, and both records become durable together or not at all.

The target is read again after it is locked or claimed, because from then on no other process can write to it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from coordinator.errors import LogError
from coordinator.log.base import SharedLog, StateLog
from coordinator.operate.migration.fold import ComparableState, LogFold
from coordinator.operate.migration.plan import (
    LookupResult,
    MigrationAction,
    MigrationDifference,
    MigrationPlan,
    MigrationTarget,
)
from coordinator.operate.migration.readers import LogReader, Progress
from coordinator.process.clock import Clock
from coordinator.shard import ShareState
from coordinator.shard.state import next_snapshot
from protocol.record_batch import decode_batches
from protocol.routing import state_partition as routed_to
from protocol.state_records import SharePartitionKey, StateRecord, encode_record

# The display name of the owner in claims that a migration writes.
OWNER = "share-coordinator migrate"

# Maximum size of an append, below Kafka's default max.message.bytes of 1 MiB, which the target topic may
# have.
APPEND_BYTES_MAX = 256 << 10

_Records = list[tuple[bytes, bytes | None]]


class LogTarget(MigrationTarget):
    """A state topic or a journal as a target.

    `make_log` makes the log for a number of state partitions; `state_partitions` is used if the log does not
    exist yet.  If `only` is given, the target is these state partitions of the log.
    """

    def __init__(
        self,
        reader: LogReader,
        make_log: Callable[[int], StateLog],
        *,
        state_partitions: int,
        clock: Clock,
        only: Sequence[int] | None = None,
    ) -> None:
        self._reader = reader
        self._make_log = make_log
        self._state_partitions = state_partitions
        self._clock = clock
        self._only = only

    @property
    def _target_partitions(self) -> Sequence[int]:
        return range(self._state_partitions) if self._only is None else self._only

    async def lookup(
        self, wanted: Mapping[SharePartitionKey, ComparableState], progress: Progress
    ) -> LookupResult:
        folded = await self._reader.fold(progress)
        if folded is None:
            return LookupResult({})
        self._state_partitions = folded.state_partitions
        others = {number: owner for number, owner in folded.owners.items() if owner != OWNER}
        return LookupResult(folded.comparable_states(), owners=others)

    async def check_unlocked(self) -> None:
        """Raise LogLocked if a coordinator locks a journal; `lookup` reports the owners of a topic."""
        await self._reader.check_unlocked()

    async def apply_plan(
        self,
        states: Mapping[SharePartitionKey, ShareState],
        plan_for: Callable[[LookupResult], MigrationPlan],
        progress: Progress,
    ) -> list[MigrationDifference]:
        """Append the records of the plan. Raises LogError; records appended before the error stay."""
        log = self._make_log(self._state_partitions)
        try:
            await log.open()
            if isinstance(log, SharedLog):
                await asyncio.gather(*map(log.acquire_ownership, self._target_partitions))
            plan = plan_for(await self._read_existing_states(log))
            if isinstance(log, SharedLog):
                await asyncio.sleep(max(map(log.earlier_leases_left_s, self._target_partitions)))
            await self._append_plan_records(log, states, plan, progress)
            if isinstance(log, SharedLog):
                await asyncio.gather(*map(log.release, self._target_partitions))
        finally:
            await log.close()
        return []

    async def _read_existing_states(self, log: StateLog) -> LookupResult:
        fold = LogFold(self._state_partitions)
        async for chunk in log.read(self._target_partitions):
            for state_partition, batch_bytes in chunk:
                for batch in decode_batches(batch_bytes):
                    for record in batch.records:
                        fold.add_record(state_partition, record)
        return LookupResult(fold.make_folded_log((), {}).comparable_states())

    async def _append_plan_records(
        self,
        log: StateLog,
        states: Mapping[SharePartitionKey, ShareState],
        plan: MigrationPlan,
        progress: Progress,
    ) -> None:
        keys_of: defaultdict[int, list[SharePartitionKey]] = defaultdict(list)
        for key in plan.keys_with_action(
            MigrationAction.COPY, MigrationAction.REPLACE, MigrationAction.DELETE
        ):
            keys_of[routed_to(key, self._state_partitions)].append(key)
        total = sum(map(len, keys_of.values()))
        done = 0

        async def write_state_partition(state_partition: int) -> None:
            nonlocal done
            for count, records in _combine_appends(
                self._make_records(states, plan, key) for key in keys_of[state_partition]
            ):
                await _append_and_wait(log, state_partition, records, self._clock.now_ms())
                done += count
                progress("writing", done, total)

        await asyncio.gather(*map(write_state_partition, keys_of))

    def _make_records(
        self, states: Mapping[SharePartitionKey, ShareState], plan: MigrationPlan, key: SharePartitionKey
    ) -> _Records:
        """Return the records for one share-partition, which are appended atomically."""
        step = plan.steps[key]
        records = [] if step is MigrationAction.COPY else [encode_record(StateRecord(key, None))]
        if step is not MigrationAction.DELETE:
            snapshot = next_snapshot(states[key], now_ms=self._clock.now_ms())
            records.append(encode_record(StateRecord(key, snapshot)))
        return records


def _combine_appends(pieces: Iterable[_Records]) -> Iterator[tuple[int, _Records]]:
    """Combine share-partitions' records into appends of at most APPEND_BYTES_MAX; yield (count, append)."""
    count, records, size_bytes = 0, list[tuple[bytes, bytes | None]](), 0
    for piece in pieces:
        piece_bytes = sum(len(key) + len(value or b"") for key, value in piece)
        if records and size_bytes + piece_bytes > APPEND_BYTES_MAX:
            yield count, records
            count, records, size_bytes = 0, [], 0
        count += 1
        records.extend(piece)
        size_bytes += piece_bytes
    if records:
        yield count, records


async def _append_and_wait(log: StateLog, state_partition: int, records: _Records, now_ms: int) -> None:
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_appended(base_offset: int, error: LogError | None) -> None:
        if error is not None:
            durable.set_exception(error)
        else:
            durable.set_result(None)

    log.append(state_partition, records, now_ms, on_appended)
    await durable
