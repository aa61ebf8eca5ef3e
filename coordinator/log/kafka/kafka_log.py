"""The state log in a Kafka topic: one partition of the topic for each state partition.

Several processes can write to the topic, so an owner first claims a state partition (`acquire_ownership`). A
reader gets only records that `coordinator.log.claims` accepts, so offsets have gaps where claims and records
of fenced owners are. An ownership permits appends once `read` has reached its claim and found it accepted.

`prune_offsets_freeing_storage` is always empty, because periodic snapshots advance the pruning offset.
`size_bytes` covers the offsets between start and end that this process has read or written.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from coordinator.errors import LogDamaged, LogError, LogRefused, LogUnavailable
from coordinator.log.base import AppendCallback, AppendReporter, LoggedBatch, Unit
from coordinator.log.claims import FencingFilter, encode_claim, encode_release, encode_renewal
from coordinator.log.kafka.appends import Appender
from coordinator.log.kafka.batches import record_bytes_max
from coordinator.log.kafka.limits import KafkaLogLimits
from coordinator.log.kafka.offsets import OffsetFinder
from coordinator.log.kafka.ownership import OwnerInLastRecord, Ownership, ProducerIdAllocator, read_tail_owner
from coordinator.log.kafka.ownerships import Ownerships
from coordinator.log.kafka.pruning import Pruner
from coordinator.log.kafka.replay import PartitionReader, keep_valid_records
from coordinator.log.kafka.sizes import PartitionSize
from coordinator.log.kafka.topic import BATCH_BYTES_MAX, BatchLimits, TopicConfig, ensure_topic
from coordinator.process.clock import Clock, seconds_since_boot
from protocol.errors import DecodeError
from protocol.record_batch import next_offset_at

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

_logger = logging.getLogger(__name__)

# Bytes of fetched batches that are checked before the caller and other callbacks continue: about 2 ms.
CHUNK_BYTES = 64 << 10
# The channels of requests for end offsets. Each read of the log waits for a request for end offsets. With
# only one channel, a read would first wait for the request in flight.
END_CHANNELS = ("ends 1", "ends 2", "ends 3")
# The interval between checks whether the previous owner has released the log.
RELEASE_POLL_S = 0.02
# The brokers of a starting cluster register one by one. A topic that is created too early would permanently
# have too few replicas.
BROKERS_START_TIMEOUT_S = 15.0


class KafkaLog(AppendReporter):
    """A `SharedLog` in a topic; `coordinator.log.base` describes the interface."""

    def __init__(
        self,
        cluster: "Brokers",
        topic_config: TopicConfig,
        *,
        owner: str,
        clock: Clock,
        limits: KafkaLogLimits | None = None,
        prune_failed: Callable[[str], None] = lambda reason: None,
        monotonic: Callable[[], float] = seconds_since_boot,
    ) -> None:
        """Create a closed log. `owner` is the name of this process in its claims, for display.

        `monotonic` measures leases and must advance while the machine is suspended.
        """
        self._cluster = cluster
        self._topic_config = topic_config
        self._owner = owner
        self._clock = clock
        self._limits = limits or KafkaLogLimits()
        self._prune_failed = prune_failed
        self._monotonic = monotonic
        self._open = False
        self._few_brokers_from_s = float("-inf")
        self._batch_bytes = BatchLimits(BATCH_BYTES_MAX, BATCH_BYTES_MAX)
        self._ownerships = Ownerships(topic_config.partitions, monotonic)
        self._start_offsets = [0] * topic_config.partitions
        self._end_offsets = [0] * topic_config.partitions
        self._sizes: defaultdict[int, PartitionSize] = defaultdict(PartitionSize)

    @property
    def record_bytes_max(self) -> int:
        """Maximum size of a record in bytes, according to the known batch limit of the topic."""
        return record_bytes_max(self._batch_bytes.accepted_max)

    async def open(self) -> None:
        """Connect to the cluster, and create or check the topic. Raises ConfigError and LogUnavailable."""
        limits, cluster = self._limits, self._cluster
        now_s = asyncio.get_running_loop().time
        try:
            await cluster.connect()
        except LogUnavailable:
            self._few_brokers_from_s = now_s() + BROKERS_START_TIMEOUT_S
            raise
        self._batch_bytes = await ensure_topic(
            cluster,
            self._topic_config,
            timeout_s=limits.start_timeout_s,
            allow_few_brokers=now_s() >= self._few_brokers_from_s,
        )
        self._topic_id = cluster.pin_topic_id()
        wait_s = limits.append_timeout_s
        self._replay = PartitionReader(cluster, timeout_s=wait_s)
        self._end_finder = OffsetFinder(cluster, END_CHANNELS, cluster.list_end_offsets, timeout_s=wait_s)
        self._start_finder = OffsetFinder(cluster, ("starts",), cluster.list_start_offsets, timeout_s=wait_s)
        self._producer_ids = ProducerIdAllocator(cluster, self._topic_config.name, timeout_s=wait_s)
        self._pruner = Pruner(cluster, self._prune_failed, self._may_prune)
        self._appender = Appender(
            cluster,
            self._replay,
            self._end_finder,
            monotonic=self._monotonic,
            batch_bytes_max=self._batch_bytes.split_max,
            request_timeout_s=limits.request_timeout_s,
            append_timeout_s=wait_s,
        )
        self._open = True

    async def close(self) -> None:
        """Wait for the outcome of appends in flight, up to the close timeout; then close all connections."""
        if self._open:
            self._open = False
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.close_timeout_s):
                    await self._appender.wait_until_idle()
                    await self._pruner.close()
            for client in (self._appender, self._end_finder, self._start_finder):
                client.close()
        await self._cluster.close()

    async def acquire_ownership(
        self,
        state_partition: int,
        release_wait_s: float = 0.0,
        may_claim: Callable[[], bool] = lambda: True,
    ) -> int:
        """Write a claim with a higher owner epoch than any that this process knows; return the owner epoch.

        The last record of the log determines the owner epoch. If a fenced owner wrote that record, the epoch
        may be too low. With an epoch that is too low, the claim is not accepted, which the next `read`
        detects.
        """
        self._check_open()
        producer = await self._producer_ids.get(state_partition)
        self._ownerships.drop(state_partition)
        self._pruner.cancel(state_partition)
        last = await self._wait_for_release(state_partition, release_wait_s)
        owner_epoch = self._ownerships.next_owner_epoch(state_partition, last, producer)
        ownership = Ownership(state_partition, owner_epoch, producer, self._limits.lease_s)
        claim = encode_claim(state_partition, self._owner, ownership.lease_ms, self._topic_id)
        if not may_claim():
            raise LogUnavailable(f"state partition {state_partition} may be assigned to another process")
        ownership.claim_offset = await self._append_ownership_record(ownership, claim, at_any_offset=True)
        ownership.lease_offset, ownership.claimed_s = ownership.claim_offset, self._monotonic()
        self._ownerships.add(ownership)
        return owner_epoch

    async def release(self, state_partition: int) -> None:
        """Write a release as the last record of this ownership; later appends fail with LogFenced.

        If two processes claimed the same owner epoch, only one of them owns the log. Therefore, an unverified
        claim is checked first, by reading the log. A release states that no earlier lease lasts, so it is
        written after those leases have ended.
        """
        self._check_open()
        ownership = self._ownerships.get(state_partition)
        try:
            if ownership is not None and not ownership.verified and ownership.lost is None:
                async for _ in self.read((state_partition,)):
                    pass
        finally:
            self._ownerships.drop(state_partition)
        if ownership is None or not ownership.verified or ownership.lost is not None:
            return
        while (wait_s := ownership.serve_from_s - self._monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(wait_s)
        self._end_offsets[state_partition] = ownership.next_offset
        release = encode_release(state_partition)
        await self._append_ownership_record(ownership, release, at_any_offset=False)
        self._end_offsets[state_partition] = ownership.next_offset

    def _check_open(self) -> None:
        if not self._open:
            raise LogUnavailable("the log is not open")
        reason = self._cluster.recreated_reason()
        if reason is not None:
            raise LogRefused(reason)

    async def _append_ownership_record(
        self, ownership: Ownership, record: tuple[bytes, bytes], *, at_any_offset: bool
    ) -> int:
        appended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_appended(base_offset: int, error: LogError | None) -> None:
            if error is not None:
                appended.set_exception(error)
            else:
                appended.set_result(base_offset)

        now_ms = self._clock.now_ms()
        self._appender.append(
            ownership, [record], now_ms, on_appended, self._add_batch_size, at_any_offset=at_any_offset
        )
        # If the caller is cancelled, the append continues. Retrieve its exception, so that asyncio does not
        # log it.
        appended.add_done_callback(lambda appended: appended.cancelled() or appended.exception())
        return await asyncio.shield(appended)

    async def _wait_for_release(self, state_partition: int, release_wait_s: float) -> OwnerInLastRecord:
        """Return the owner in the last record; wait up to `release_wait_s` for its release."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + release_wait_s
        seen_end, last = -1, OwnerInLastRecord()
        while True:
            end = await self._end_finder.find(state_partition)
            if end != seen_end:
                start = await self._start_finder.find(state_partition)
                last = await read_tail_owner(self._replay, state_partition, start, end)
                seen_end = end
            if last.owner_epoch == 0 or last.is_release or loop.time() >= until_s:
                return last
            await asyncio.sleep(RELEASE_POLL_S)

    async def read(self, state_partitions: Collection[int]) -> AsyncIterator[list[LoggedBatch]]:
        """Yield all valid batches. Verify the claims of this process for these state partitions."""
        self._check_open()
        partitions = list(state_partitions)
        if not partitions:
            return
        await self._pruner.wait_until_idle(partitions)
        claims = {partition: self._ownerships.get(partition) for partition in partitions}
        ends = dict(zip(partitions, await self._find_offsets(self._end_finder, partitions), strict=True))
        starts = dict(zip(partitions, await self._find_offsets(self._start_finder, partitions), strict=True))
        fencing_filter = {partition: FencingFilter() for partition in partitions}
        sizes = {partition: PartitionSize() for partition in partitions}
        state_ends = dict.fromkeys(partitions, 0)
        async for chunk in self._replay.batches(starts, ends):
            valid_batches: list[LoggedBatch] = []
            chunk_bytes = 0
            for logged in chunk:
                partition, batch_bytes = logged
                sizes[partition].add(int.from_bytes(batch_bytes[:8]), len(batch_bytes))
                try:
                    kept = keep_valid_records(batch_bytes, fencing_filter[partition], starts[partition])
                except DecodeError as error:
                    raise self.make_damage_error(partition, batch_bytes, error) from error
                valid_batches.extend(LoggedBatch(partition, batch) for batch in kept)
                state_ends[partition] = next_offset_at(kept[-1], 0) if kept else state_ends[partition]
                chunk_bytes += len(batch_bytes)
                if chunk_bytes >= CHUNK_BYTES:
                    yield valid_batches
                    valid_batches, chunk_bytes = [], 0
                    await asyncio.sleep(0)
            if valid_batches:
                yield valid_batches
        for partition in partitions:
            ownership = claims[partition]
            self._end_offsets[partition] = max(self._end_offsets[partition], ends[partition])
            self._start_offsets[partition] = max(self._start_offsets[partition], starts[partition])
            if ownership is None or not ownership.verified:
                self._sizes[partition] = sizes[partition]
            if ownership is not None:
                place = (ends[partition], state_ends[partition])
                self._ownerships.verify(ownership, fencing_filter[partition], *place, self._topic_id)

    async def _find_offsets(self, finder: OffsetFinder, partitions: Sequence[int]) -> list[int]:
        return await asyncio.gather(*(finder.find(partition) for partition in partitions))

    def append(
        self,
        state_partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        done: AppendCallback,
        units: Sequence[Unit] = (),
    ) -> None:
        """Send the records to the leader of the partition. Without records, send a renewal of the lease."""
        ownership = self._ownerships.get(state_partition)
        refusal: LogError | None
        try:
            self._check_open()
            refusal = self._ownerships.append_error(state_partition)
        except LogUnavailable as error:
            refusal = error
        if refusal is not None:
            asyncio.get_running_loop().call_soon(done, self.end_offset(state_partition), refusal)
            return
        assert ownership is not None
        if not records:
            self._renew_lease(ownership, timestamp_ms, done)
            return
        self._appender.append(ownership, records, timestamp_ms, done, self._on_batch_stored, units=units)

    def _renew_lease(self, ownership: Ownership, timestamp_ms: int, done: AppendCallback) -> None:
        def on_appended(base_offset: int, error: LogError | None) -> None:
            if error is None:
                ownership.lease_offset = base_offset
                self._prune(ownership)
                base_offset = ownership.next_offset
            done(base_offset, error)

        renewal = encode_renewal(ownership.state_partition, ownership.lease_ms)
        self._appender.append(ownership, [renewal], timestamp_ms, on_appended, self._on_batch_stored)

    def _on_batch_stored(self, state_partition: int, log_offset: int, batch: bytes) -> None:
        self._add_batch_size(state_partition, log_offset, batch)
        self._append_observer((batch,), 0)

    def _add_batch_size(self, state_partition: int, log_offset: int, batch: bytes) -> None:
        self._sizes[state_partition].add(log_offset, len(batch))

    def earlier_leases_left_s(self, state_partition: int) -> float:
        return self._ownerships.earlier_leases_left_s(state_partition)

    def lease_left_s(self, state_partition: int) -> float:
        return self._ownerships.lease_left_s(state_partition)

    def renewal_due(self, state_partition: int, *, read: bool) -> bool:
        return self._ownerships.renewal_due(state_partition, read=read)

    def prune(self, state_partition: int, before_offset: int) -> None:
        """Delete the records below an offset.

        A record with this owner's epoch and lease must remain. If no such record is at or above the offset,
        the deletion waits for the next renewal.
        """
        start_offset = min(before_offset, self.end_offset(state_partition))
        if start_offset <= self._start_offsets[state_partition]:
            return
        self._start_offsets[state_partition] = start_offset
        self._sizes[state_partition].subtract_below(start_offset)
        ownership = self._ownerships.get(state_partition)
        if ownership is not None:
            ownership.prune_before = start_offset
            self._prune(ownership)

    def _prune(self, ownership: Ownership) -> None:
        if ownership.prune_before is None or not self._may_prune(ownership.state_partition):
            return
        before_offset = ownership.prunable_offset(ownership.prune_before)
        if before_offset <= ownership.lease_offset:
            ownership.prune_before = None
            self._pruner.prune(ownership.state_partition, before_offset)

    def _may_prune(self, state_partition: int) -> bool:
        """Return whether a recent append has confirmed that the log has not lost records.

        A truncated log may lack the later records that make the records to be deleted redundant.
        """
        return self.lease_left_s(state_partition) > 0

    def start_offset(self, state_partition: int) -> int:
        """Return the offset from which records are retained, as known from reading and pruning."""
        return self._start_offsets[state_partition]

    def end_offset(self, state_partition: int) -> int:
        """Return the offset of the next record, as known from reading and appending."""
        ownership = self._ownerships.get(state_partition)
        return self._end_offsets[state_partition] if ownership is None else ownership.next_offset

    def prune_offsets_freeing_storage(self, live_bytes: int) -> Mapping[int, int]:
        return {}

    def health(self) -> str | None:
        if not self._open:
            return "The log is not open yet."
        return self._cluster.recreated_reason() or self._cluster.unreachable_reason()

    def size_bytes(self) -> int:
        return sum(size.total_bytes for size in self._sizes.values())

    def make_damage_error(self, state_partition: int, batch_bytes: bytes, error: DecodeError) -> LogDamaged:
        place = f"{self._topic_config.name}-{state_partition} at log offset {int.from_bytes(batch_bytes[:8])}"
        return LogDamaged(place, 0, str(error), "restore the topic from another replica or a backup")
