"""Read and fold a log without owning or changing it, even while a coordinator writes to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coordinator.errors import LogUnavailable
from coordinator.log.claims import FencingFilter, claim_owner_name, is_claim, is_ownership_record, is_release
from coordinator.log.journal import RealDisk, check_not_locked
from coordinator.log.journal.inspect import dump_journal, verify_journal
from coordinator.log.kafka.offsets import OffsetFinder
from coordinator.log.kafka.replay import PartitionReader
from coordinator.operate.migration.fold import FoldedLog, LogFold, MigrationRefused
from protocol.errors import DecodeError
from protocol.record_batch import LogRecord, decode_batches

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

# Progress callback: description, amount done, total amount.
Progress = Callable[[str, int, int], None]

# Number of batches that are folded before the event loop runs other tasks.
SLICE_BATCHES = 128


class LogReader:
    """Reads a log and folds its records to states. The default methods are those of a log without a lock."""

    async def fold(self, progress: Progress) -> FoldedLog | None:
        """Return the folded log, None if it does not exist. Raises LogError and MigrationRefused."""
        raise NotImplementedError

    async def end_offsets(self) -> tuple[int, ...]:
        raise NotImplementedError

    async def check_unlocked(self) -> None:
        """Raise LogLocked if another process locks the log. Changes nothing."""

    def exclude_writers(self) -> AbstractContextManager[None]:
        """Return a context manager that excludes other writers, if that is possible without changing the log.
        If it is not possible, the migration detects changes afterwards.
        """
        return nullcontext()


class _OffsetBounds(NamedTuple):
    partitions: int
    starts: dict[int, int]
    ends: dict[int, int]

    @property
    def record_count(self) -> int:
        return sum(self.ends.values()) - sum(self.starts.values())

    @property
    def all_end_offsets(self) -> tuple[int, ...]:
        return tuple(self.ends.get(number, 0) for number in range(self.partitions))


class TopicReader(LogReader):
    """Reads a state topic or Kafka's __share_group_state. `fold` returns the owners of its claims."""

    def __init__(
        self,
        topic: str,
        connect: "Callable[[str], Brokers]",
        *,
        timeout_s: float,
        only: Sequence[int] | None = None,
    ) -> None:
        """Read `topic`; `connect` makes a cluster client that is not connected yet.

        If `only` is given, read these state partitions, as if all other partitions were empty.
        """
        self.topic = topic
        self._connect = connect
        self._timeout_s = timeout_s
        self._only = only

    async def fold(self, progress: Progress) -> FoldedLog | None:
        """Fold the valid records up to the high watermarks."""
        async with self._open_topic() as opened:
            return None if opened is None else await self._fold_topic(*opened, progress)

    async def end_offsets(self) -> tuple[int, ...]:
        async with self._open_topic() as opened:
            if opened is None:
                raise LogUnavailable(f"topic {self.topic} is gone")
            return opened[1].all_end_offsets

    @asynccontextmanager
    async def _open_topic(self) -> AsyncIterator[tuple["Brokers", _OffsetBounds] | None]:
        """Connect and find the offsets of all partitions; None without the topic, which is not created."""
        cluster = self._connect(self.topic)
        try:
            shape = await cluster.describe_topic()
            if shape is None:
                yield None
            else:
                await cluster.connect()
                yield cluster, await self._find_offset_bounds(cluster, shape.partitions)
        finally:
            await cluster.close()

    async def _find_offset_bounds(self, cluster: "Brokers", partitions: int) -> _OffsetBounds:
        ends = OffsetFinder(cluster, ("ends",), cluster.list_end_offsets, timeout_s=self._timeout_s)
        starts = OffsetFinder(cluster, ("starts",), cluster.list_start_offsets, timeout_s=self._timeout_s)
        numbers = range(partitions) if self._only is None else self._only
        try:
            # Query the end offsets first: if a start offset moves afterwards, only fewer records are read.
            found_ends = await asyncio.gather(*map(ends.find, numbers))
            found_starts = await asyncio.gather(*map(starts.find, numbers))
        finally:
            ends.close()
            starts.close()
        return _OffsetBounds(
            partitions,
            dict(zip(numbers, found_starts, strict=True)),
            dict(zip(numbers, found_ends, strict=True)),
        )

    async def _fold_topic(self, cluster: "Brokers", bounds: _OffsetBounds, progress: Progress) -> FoldedLog:
        topic_fold = _TopicFold(bounds)
        looked_at = read = 0
        async for chunk in PartitionReader(cluster, timeout_s=self._timeout_s).batches(
            bounds.starts, bounds.ends
        ):
            for partition, batch_bytes in chunk:
                try:
                    read += topic_fold.add_batch(partition, batch_bytes)
                except DecodeError as error:
                    raise MigrationRefused(
                        f"{self.topic}-{partition} is damaged at log offset "
                        f"{int.from_bytes(batch_bytes[:8])}: {error}"
                    ) from error
                looked_at += 1
                if looked_at % SLICE_BATCHES == 0:
                    progress(f"reading {self.topic}", read, bounds.record_count)
                    await asyncio.sleep(0)
        progress(f"reading {self.topic}", bounds.record_count, bounds.record_count)
        return topic_fold.fold.make_folded_log(bounds.all_end_offsets, topic_fold.owners)


class _TopicFold:
    """Folds the records of a topic except those of fenced owners, and tracks the owner of each partition."""

    def __init__(self, bounds: _OffsetBounds) -> None:
        self.fold = LogFold(bounds.partitions)
        self.owners: dict[int, str] = {}
        self._starts = bounds.starts
        self._fencing_filters = {partition: FencingFilter() for partition in bounds.ends}

    def add_batch(self, partition: int, batch_bytes: bytes) -> int:
        """Fold the next batch of a partition; return its number of records. Raises DecodeError."""
        count = 0
        for batch in decode_batches(batch_bytes):
            count += len(batch.records)
            if not batch.is_control:
                for record in batch.records:
                    self._fold_record(partition, record)
        return count

    def _fold_record(self, partition: int, record: LogRecord) -> None:
        fencing_filter = self._fencing_filters[partition]
        if record.offset < self._starts[partition] or not fencing_filter.accepts(record):
            return
        if is_claim(record):
            self.owners[partition] = claim_owner_name(record)
        elif is_release(record):
            self.owners.pop(partition, None)
        elif not is_ownership_record(record):
            if fencing_filter.owner_epoch is not None:
                # The claim of this owner was pruned, so its name is not known.
                self.owners.setdefault(partition, "an unknown owner")
            self.fold.add_record(partition, record)


class JournalReader(LogReader):
    """Reads a journal, even while a coordinator writes to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def fold(self, progress: Progress) -> FoldedLog | None:
        """Fold the valid commits. Raises LogDamaged for damage before the tail."""
        if not self.folder.is_dir():
            return None
        return await asyncio.to_thread(self._fold_journal, progress)

    async def end_offsets(self) -> tuple[int, ...]:
        return tuple((await asyncio.to_thread(verify_journal, self.folder)).end_offsets)

    async def check_unlocked(self) -> None:
        """Raise LogLocked if a coordinator holds the journal's lock."""
        check_not_locked(self.folder)

    @contextmanager
    def exclude_writers(self) -> Iterator[None]:
        """Hold the journal's lock. Raises LogLocked if a coordinator holds the journal's lock."""
        disk = RealDisk(self.folder)
        disk.lock()
        try:
            yield
        finally:
            disk.unlock()

    def _fold_journal(self, progress: Progress) -> FoldedLog | None:
        report = verify_journal(self.folder)
        if report.damage is not None:
            raise report.damage
        if not report.segments:
            return None
        what, records = f"reading {self.folder}", sum(segment.records for segment in report.segments)
        fold = LogFold(report.state_partitions)
        read = 0
        for number, dumped in enumerate(dump_journal(self.folder)):
            for record in dumped.batch.records:
                fold.add_record(dumped.state_partition, record)
            read += len(dumped.batch.records)
            if number % SLICE_BATCHES == 0:
                progress(what, min(read, records), records)
        progress(what, records, records)
        return fold.make_folded_log(tuple(report.end_offsets), {})
