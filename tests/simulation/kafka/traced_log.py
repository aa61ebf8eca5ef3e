"""Record the events of leases in the logs of coordinators, and check them against the model `tests.model`."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import Any

from coordinator.log.base import AppendCallback, LoggedBatch, Unit
from coordinator.log.kafka import KafkaLog
from tests.model.lease_trace import LeaseTrace, NotInModel
from tests.model.leases import CLAIM, RELEASE, RENEWAL, WRITE
from tests.simulation.kafka.brokers import SimBrokers
from tests.simulation.kafka.raw_log import read_records

_KINDS = {32_000: CLAIM, 32_001: RELEASE, 32_002: RENEWAL}


class LeaseTraces:
    """The traces of all state partitions; `report` is called for an event that the model does not allow."""

    def __init__(self, brokers: SimBrokers, lease_s: float, report: Callable[[NotInModel], None]) -> None:
        self.loop = brokers.loop
        self._traces = [LeaseTrace(lease_s, self.loop.time()) for _ in brokers.partitions]
        self._report = report
        for number, partition in enumerate(brokers.partitions):
            partition.on_commit = partial(self._on_commit, number)
            partition.on_prune = partial(self.add_event, number, LeaseTrace.check_prune)

    def _on_commit(self, number: int, writer: str, batch: bytes) -> None:
        record = read_records([(writer, batch)])[0]
        kind = _KINDS.get(record.key_type, WRITE)
        self.add_event(
            number, LeaseTrace.add_commit, self.now_s, kind, record.owner_epoch, record.record.offset
        )

    @property
    def now_s(self) -> float:
        """The virtual time in seconds."""
        return self.loop.time()

    def add_event(self, number: int, event: Callable[..., Any], *args: Any) -> Any:
        """Add an event to the trace of a state partition; report it if the model does not allow it."""
        try:
            return event(self._traces[number], *args)
        except NotInModel as violation:
            violation.args = (f"state partition {number} at {self.now_s:.6f}: {violation}",)
            self._report(violation)
            return None


class TracedLog(KafkaLog):
    """A log of the coordinator `name`, which records events. `clock_rate` is the speed of its clock."""

    traces: LeaseTraces
    name: str
    clock_rate: float

    async def acquire_ownership(self, state_partition: int, *args: Any) -> int:
        owner_epoch = await super().acquire_ownership(state_partition, *args)
        ownership = self._ownerships.get(state_partition)
        assert ownership is not None
        sent_s = ownership.proven_s / self.clock_rate
        self._add_event_now(
            state_partition, LeaseTrace.add_claim, owner_epoch, ownership.claim_offset, sent_s
        )
        return owner_epoch

    async def read(self, state_partitions: Collection[int]) -> AsyncIterator[list[LoggedBatch]]:
        """Read state partitions, and trace that this verifies the claims, even if the reader stops early."""
        partitions = list(state_partitions)
        try:
            async for chunk in super().read(partitions):
                yield chunk
        finally:
            for partition in partitions:
                self._trace_verification(partition)

    def _trace_verification(self, state_partition: int) -> None:
        ownership = self._ownerships.get(state_partition)
        if ownership is not None and ownership.verified:
            known = self._add_event(state_partition, LeaseTrace.owner_epoch, self.name)
            if known != ownership.owner_epoch:
                self._add_event_now(state_partition, LeaseTrace.check_ownership, ownership.next_offset)

    async def release(self, state_partition: int) -> None:
        self._add_event_now(state_partition, LeaseTrace.add_resignation)
        await super().release(state_partition)

    def append(
        self,
        state_partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        done: AppendCallback,
        units: Sequence[Unit] = (),
    ) -> None:
        sent_s, kind = self.traces.now_s, WRITE if records else RENEWAL
        wait = self._add_event(state_partition, LeaseTrace.remaining_wait_ticks, sent_s, self.name)

        def on_appended(base_offset: int, error: Any) -> None:
            ownership = self._ownerships.get(state_partition)
            if error is None and ownership is not None:
                end = ownership.next_offset
                begin = base_offset if records else end - 1
                # Each batch of a split append is sent after the previous one is acknowledged.
                split_s = ownership.proven_s / self.clock_rate
                times = sent_s, split_s
                self._add_event_now(
                    state_partition, LeaseTrace.check_acknowledgement, kind, begin, end, times, wait
                )
            done(base_offset, error)

        super().append(state_partition, records, timestamp_ms, on_appended, units)

    def lease_left_s(self, state_partition: int) -> float:
        """Return for how many more seconds reads may be answered from memory."""
        left_s = super().lease_left_s(state_partition)
        if left_s > 0:
            next_offset = self.end_offset(state_partition)
            self._add_event_now(state_partition, LeaseTrace.check_read, next_offset)
        return left_s

    def _add_event_now(self, state_partition: int, event: Callable[..., Any], *args: Any) -> None:
        self._add_event(state_partition, event, self.traces.now_s, self.name, *args)

    def _add_event(self, state_partition: int, event: Callable[..., Any], *args: Any) -> Any:
        return self.traces.add_event(state_partition, event, *args)
