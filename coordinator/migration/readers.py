"""Reads a log from outside, without owning or changing anything; somebody else may be writing to it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from coordinator.errors import LogUnavailable
from coordinator.kafka.cluster import Cluster
from coordinator.log.claims import Validity, is_claim, is_mark, is_release, owner_of
from coordinator.log.journal import check_free
from coordinator.log.journal.inspect import dump, verify
from coordinator.log.kafka.offsets import OffsetFinder
from coordinator.log.kafka.replay import Replay
from coordinator.migration.errors import MigrationRefused
from coordinator.migration.fold import Fold, Folded
from protocol.errors import DecodeError
from protocol.record_batch import LogRecord, decode_batches

# What is told of long work: what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]

# Batches that are folded before the event loop gets its turn.
SLICE_BATCHES = 128


class LogReader(Protocol):
    """A log that can be folded."""

    async def fold(self, progress: Progress) -> Folded | None:
        """Fold the log as it is now; None if it does not exist. Raises LogError and MigrationRefused."""
        ...

    async def ends(self) -> tuple[int, ...]:
        """Return where the log of each state partition ends now."""
        ...

    async def check_free(self) -> None:
        """Raise LogLocked if somebody keeps all others out, now. Changes nothing."""
        ...


class _Extent(NamedTuple):
    starts: dict[int, int]
    ends: dict[int, int]

    @property
    def records(self) -> int:
        return sum(self.ends.values()) - sum(self.starts.values())


class TopicReader:
    """A topic: one of ours, or that of Kafka's own coordinator."""

    def __init__(self, topic: str, connect: Callable[[str], Cluster], *, timeout_s: float) -> None:
        """Read `topic`; `connect` makes a cluster for a topic, which is not connected yet."""
        self.topic = topic
        self._connect = connect
        self._timeout_s = timeout_s

    async def partitions(self) -> int | None:
        """Return how many partitions the topic has; None if there is no such topic. Never creates it."""
        cluster = self._connect(self.topic)
        try:
            shape = await cluster.describe_topic()
        finally:
            await cluster.close()
        return None if shape is None else shape.partitions

    async def fold(self, progress: Progress) -> Folded | None:
        """Fold the records that count up to what is committed now."""
        partitions = await self.partitions()
        if partitions is None:
            return None
        cluster = self._connect(self.topic)
        try:
            await cluster.connect()
            extent = await self._extent(cluster, partitions)
            return await self._fold(cluster, extent, progress)
        finally:
            await cluster.close()

    async def ends(self) -> tuple[int, ...]:
        """Return the high watermarks."""
        partitions = await self.partitions()
        if partitions is None:
            raise LogUnavailable(f"topic {self.topic} is gone")
        cluster = self._connect(self.topic)
        try:
            await cluster.connect()
            return tuple((await self._extent(cluster, partitions)).ends.values())
        finally:
            await cluster.close()

    async def check_free(self) -> None:
        """Do nothing: who claims a topic is found when it is folded."""

    async def _extent(self, cluster: Cluster, partitions: int) -> _Extent:
        ends = OffsetFinder(cluster, ("ends",), cluster.list_ends, timeout_s=self._timeout_s)
        starts = OffsetFinder(cluster, ("starts",), cluster.list_starts, timeout_s=self._timeout_s)
        try:
            # Ends first: a start that moves afterwards only shortens what is read.
            found_ends = await asyncio.gather(*map(ends.find, range(partitions)))
            found_starts = await asyncio.gather(*map(starts.find, range(partitions)))
        finally:
            ends.close()
            starts.close()
        return _Extent(dict(enumerate(found_starts)), dict(enumerate(found_ends)))

    async def _fold(self, cluster: Cluster, extent: _Extent, progress: Progress) -> Folded:
        starts, ends = extent
        taking = _Taking(extent)
        looked_at = read = 0
        async for chunk in Replay(cluster, timeout_s=self._timeout_s).batches(starts, ends):
            for partition, batch_bytes in chunk:
                try:
                    read += taking.take(partition, batch_bytes)
                except DecodeError as error:
                    raise MigrationRefused(
                        f"{self.topic}-{partition} is damaged at log offset "
                        f"{int.from_bytes(batch_bytes[:8])}: {error}"
                    ) from error
                looked_at += 1
                if looked_at % SLICE_BATCHES == 0:
                    progress(f"reading {self.topic}", read, extent.records)
                    await asyncio.sleep(0)
        progress(f"reading {self.topic}", extent.records, extent.records)
        return taking.fold.folded(tuple(ends.values()), taking.owners)


class _Taking:
    """The rule of ownership applied to batches as they come, and who owns what at the end of them."""

    def __init__(self, extent: _Extent) -> None:
        self.fold = Fold(len(extent.ends))
        self.owners: dict[int, str] = {}
        self._starts = extent.starts
        self._validity = {partition: Validity() for partition in extent.ends}

    def take(self, partition: int, batch_bytes: bytes) -> int:
        """Take the next batch of a partition and return its number of records. Raises DecodeError."""
        count = 0
        for batch in decode_batches(batch_bytes):
            count += len(batch.records)
            if not batch.is_control:
                for record in batch.records:
                    self._take(partition, record)
        return count

    def _take(self, partition: int, record: LogRecord) -> None:
        validity = self._validity[partition]
        if record.offset < self._starts[partition] or not validity.counts(record):
            return
        if is_claim(record):
            self.owners[partition] = owner_of(record)
        elif is_release(record):
            self.owners.pop(partition, None)
        elif not is_mark(record):
            if validity.owner_epoch is not None:
                # The claim may have been pruned; after a release there are no records without a new claim.
                self.owners.setdefault(partition, "somebody unknown")
            self.fold.take(partition, record)


class JournalReader:
    """A journal, whether or not a coordinator is at work on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def fold(self, progress: Progress) -> Folded | None:
        """Fold the commits that count. Raises LogDamaged for damage before the tail."""
        if not self.folder.is_dir():
            return None
        return await asyncio.to_thread(self._fold, progress)

    async def ends(self) -> tuple[int, ...]:
        """Return the end offsets."""
        return tuple((await asyncio.to_thread(verify, self.folder)).end_offsets)

    async def check_free(self) -> None:
        """See whether a coordinator has the lock."""
        check_free(self.folder)

    def _fold(self, progress: Progress) -> Folded | None:
        report = verify(self.folder)
        if report.damage is not None:
            raise report.damage
        if not report.segments:
            return None
        what, records = f"reading {self.folder}", sum(segment.records for segment in report.segments)
        fold = Fold(report.state_partitions)
        read = 0
        for number, dumped in enumerate(dump(self.folder)):
            for record in dumped.batch.records:
                fold.take(dumped.state_partition, record)
            read += len(dumped.batch.records)
            if number % SLICE_BATCHES == 0:
                progress(what, min(read, records), records)
        progress(what, records, records)
        return fold.folded(tuple(report.end_offsets), {})
