"""Group commit of one shard: decide queued operations in order, append their records together, then answer.

Operations queue in a mailbox. A *turn* takes all of them, decides each in order and applies its records at
once, so that the next operation sees them. One append carries the records of the whole turn. Meanwhile the
mailbox fills again, so a busy shard makes large appends and an idle one appends at once, without a timer.

A read is answered at once unless its share-partition has a change in flight or the lease is over. Without a
lease it waits for the next append, or for one that is made to renew the lease: if that is in the log, no
other process was the owner when the read arrived.
The compiled module (`coordinator.fastpath`), if present, executes turns that begin with a fast-path write.
"""

import asyncio
import logging

from coordinator import fastpath
from coordinator.clock import Clock
from coordinator.errors import LogError, LogOutcomeUnknown, LogUnavailable
from coordinator.fastpath.fields import ShardFields
from coordinator.log.base import AppendCallback, StateLog
from coordinator.metrics import Metrics
from coordinator.runtime.commit_batch import CommitBatch, Encoded, is_unit, size_bytes, unit_bytes
from coordinator.runtime.commit_scheduler import CommitScheduler
from coordinator.runtime.completion import answer, answer_all, refuse, refuse_all, report_failure
from coordinator.runtime.limits import RuntimeLimits
from coordinator.runtime.operations import Operation
from coordinator.runtime.status import Status
from coordinator.shard import CoordinatorResult, RequestContext, Shard, SnapshotPolicy
from coordinator.topics import TopicDirectory
from protocol.errors import ErrorCode
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.state_records import SharePartitionKey, StateRecord, encode_record

_logger = logging.getLogger(__name__)


class ShardQueue(ShardFields):
    """The half of a `ShardRunner` that carries operations out, while the shard is there to do it."""

    __slots__ = (
        "_clock",
        "_in_flight_seen",
        "_limits",
        "_log",
        "_loop",
        "_metrics",
        "_queued_keys",
        "_topics",
        "_undecided",
    )

    def __init__(
        self,
        state_partition: int,
        *,
        scheduler: CommitScheduler,
        log: StateLog,
        clock: Clock,
        topics: TopicDirectory,
        metrics: Metrics,
        policy: SnapshotPolicy,
        limits: RuntimeLimits,
    ) -> None:
        self.state_partition = state_partition
        self.status = Status.CLOSED
        self.shard = Shard(state_partition, policy)
        self._loop = asyncio.get_running_loop()
        self._scheduler = scheduler
        self._log = log
        self._clock = clock
        self._topics = topics
        self._metrics = metrics
        self._limits = limits
        self._queue: list[Operation] = []
        self._batch_scheduled = False
        # The append under way: its records, who waits for it, and the share-partitions it changes.
        self._records_in_flight: list[StateRecord | None] | None = None
        self._append_started_s = 0.0
        self._append_bytes = 0
        self._awaiting: list[tuple[Operation, CoordinatorResult]] = []
        self._in_flight_keys: set[SharePartitionKey] = set()
        # Share-partitions with an operation in the mailbox: a read of one has to queue behind it.
        self._queued_keys: set[SharePartitionKey] = set()
        # Only reads ask for these two: so many of who waits and of the mailbox have been looked at for them.
        self._in_flight_seen = self._queued_indexed = 0
        # What a turn that failed had not come to, or failed at.
        self._undecided: list[Operation] = []
        self._next_log_offset = 0
        # Is set when the append under way is over; only there when somebody waits for that.
        self._append_finished: asyncio.Event | None = None
        # Whether a read was answered since the lease was renewed last.
        self._reads_come = False
        self._callback: AppendCallback = self._on_append_done
        if fastpath.compiled is not None:
            self._callback = fastpath.compiled.AppendCallback(
                self, Status.ACTIVE, self._loop.time, *metrics.append_histograms()
            )

    # Operations come in.

    def submit(self, operation: Operation) -> None:
        """Take an operation; it is answered exactly once, later or within this call."""
        if self.status is Status.CLOSED:
            refuse(
                operation,
                ErrorCode.NOT_COORDINATOR,
                "This coordinator does not own the share-partition.",
            )
        elif len(self._queue) >= self._limits.queued_operations_max:
            refuse(
                operation,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "Too many operations wait for this shard; try again.",
            )
        elif self.status is not Status.ACTIVE:
            self._queue.append(operation)
        elif operation.writes or not self._is_leased() or not self._answer_read_immediately(operation):
            self._queue.append(operation)
            if self._records_in_flight is None:
                self._schedule_batch()

    def _is_leased(self) -> bool:
        """Tell whether reads may be answered from memory; if that cannot be told, they may not."""
        self._reads_come = True
        try:
            return self._log.lease_left_s(self.state_partition) > 0
        except Exception as failure:
            report_failure("looking at the lease failed", failure)
            return False

    def _is_queued(self, key: SharePartitionKey) -> bool:
        self._queued_keys.update(operation.key for operation in self._queue[self._queued_indexed :])
        self._queued_indexed = len(self._queue)
        return key in self._queued_keys

    def _is_in_flight(self, key: SharePartitionKey) -> bool:
        self._index_in_flight_keys()
        return key in self._in_flight_keys

    def _index_in_flight_keys(self) -> None:
        """Note what those who wait change: whoever waits has records, or asked for what has."""
        self._in_flight_keys.update(operation.key for operation, _ in self._awaiting[self._in_flight_seen :])
        self._in_flight_seen = len(self._awaiting)

    def _clear_queued_keys(self) -> None:
        """Note that the mailbox is another one now."""
        self._queued_keys.clear()
        self._queued_indexed = 0

    def _clear_in_flight_keys(self) -> None:
        """Note that no append is under way."""
        self._in_flight_keys.clear()
        self._in_flight_seen = 0

    def _answer_read_immediately(self, operation: Operation) -> bool:
        """Answer a read of a share-partition that nothing under way or waiting changes; else False."""
        if self._is_in_flight(operation.key) or self._is_queued(operation.key):
            return False
        result = self._decide(operation)
        if result is not None:
            if result.records:
                return False
            answer(operation, result.answer)
        return True

    # Turns.

    def queued_operations(self) -> int:
        """Return how many operations wait for the turn."""
        return len(self._queue)

    def process_batch(self) -> None:
        """Decide what waits, apply it, and append it in one go."""
        self._batch_scheduled = False
        if self.status is not Status.ACTIVE or self._records_in_flight is not None or not self._queue:
            return
        operations, self._queue = self._queue, []
        self._clear_queued_keys()
        limits = self._limits
        batch = CommitBatch(self._clock.now_ms(), self._log.health() is None)
        done = 0
        try:
            for operation in operations[: limits.operations_per_append_max]:
                self._process_operation(batch, operation)
                done += 1
                if batch.append_bytes >= limits.bytes_per_append_max:
                    break
        except BaseException:
            self._undecided = operations[done:]
            raise
        self._put_back(operations[done:])
        if batch.records or self._awaiting:
            self._append(batch)
        elif self._queue:
            self._schedule_batch()

    def batch_failed(self, failure: Exception) -> None:
        """Recover from a turn that raised this in the middle: a defect of ours.

        What it had applied is not on the log, so memory is thrown away; nobody was answered from it.
        """
        self._records_in_flight = None
        self._clear_in_flight_keys()
        waiting, self._awaiting = self._awaiting, []
        undecided, self._undecided = self._undecided, []
        waiting += [(operation, CoordinatorResult((), None)) for operation in undecided]
        if self.status is Status.ACTIVE:
            self._recover(LogUnavailable(f"a turn failed: {failure!r}"), waiting)
        else:
            self._fail_all(waiting, ErrorCode.NOT_COORDINATOR, "The shard was closed.")

    def _put_back(self, operations: list[Operation]) -> None:
        """Queue operations for which an append has no room in front of those that arrived meanwhile."""
        if operations:
            self._queue[:0] = operations
            self._clear_queued_keys()

    def _schedule_batch(self) -> None:
        if not self._batch_scheduled:
            self._batch_scheduled = True
            self._scheduler.schedule(self)

    def _process_operation(self, batch: CommitBatch, operation: Operation) -> None:
        """Decide one operation and apply it; answer it now if there is nothing to wait for."""
        if operation.writes and not batch.accepts_writes:
            refuse(operation, ErrorCode.COORDINATOR_NOT_AVAILABLE, self._log_unavailable_message())
            return
        result = self._decide(operation, batch.now_ms)
        if result is None:
            return
        if operation.decide is Shard.write_state or (result.records and operation.decide is Shard.read_state):
            self._metrics.write_operations(1)
        if result.records and not batch.accepts_writes:
            refuse(operation, ErrorCode.COORDINATOR_NOT_AVAILABLE, self._log_unavailable_message())
            return
        encoded = self._encode_records(operation, result)
        if encoded is None:
            return
        for record in result.records:
            self.shard.apply(record, batch.now_ms)
            self._in_flight_keys.add(record.key)
        batch.add(result.records, encoded, is_unit=is_unit(operation, result))
        if result.records or not self._is_leased() or self._is_in_flight(operation.key):
            self._awaiting.append((operation, result))
        else:
            answer(operation, result.answer)

    def _decide(self, operation: Operation, now_ms: int | None = None) -> CoordinatorResult | None:
        """Decide one operation; None if it is dropped or already answered."""
        if operation.origin is not None and operation.origin.disconnected:
            return None
        if self._loop.time() - operation.received_s > self._limits.request_age_max_s:
            # Its sender has given up by now and may have written something else since.
            refuse(
                operation,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "The request waited too long; try again.",
            )
            return None
        key, now_ms = operation.key, self._clock.now_ms() if now_ms is None else now_ms
        try:
            context = RequestContext(now_ms, self._topics.contains(key.topic_id, key.partition))
            return operation.decide(self.shard, key, operation.unit, context)
        except Exception:
            # Deciding changes nothing, so a defect in it harms this one request only.
            _logger.exception("deciding an operation on %s failed", key)
            refuse(
                operation,
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "The coordinator failed to decide this operation.",
            )
            return None

    def _encode_records(self, operation: Operation, result: CoordinatorResult) -> list[Encoded] | None:
        """Encode an operation's records; None if they cannot be stored, and it was refused.

        An append of what is too large would fail, and take the whole shard's memory along.
        """
        try:
            encoded = list(map(encode_record, result.records))
        except Exception:
            _logger.exception("records of an operation on %s cannot be encoded", operation.key)
            refuse(operation, ErrorCode.UNKNOWN_SERVER_ERROR, "The coordinator cannot store this.")
            return None
        largest = (
            unit_bytes(encoded) if is_unit(operation, result) else max(map(size_bytes, encoded), default=0)
        )
        if largest > self._log.record_bytes_max:
            # Kafka's answer, too.
            refuse(operation, ErrorCode.UNKNOWN_SERVER_ERROR, "The log takes no record that is so large.")
            return None
        return encoded

    # Appends.

    def _append(self, batch: CommitBatch) -> None:
        self._records_in_flight = batch.records
        self._append_started_s = self._loop.time()
        self._append_bytes = batch.append_bytes
        self._log.append(self.state_partition, batch.encoded, batch.now_ms, self._callback, batch.units)

    def _renew_lease(self) -> None:
        """Renew the lease if that is due, and no append does it anyway."""
        idle = self.status is Status.ACTIVE and self._records_in_flight is None and not self._queue
        if idle and self._log.renewal_due(self.state_partition, read=self._reads_come):
            self._append(CommitBatch(self._clock.now_ms(), accepts_writes=True))

    def _on_append_done(self, base_offset: int, error: LogError | None) -> None:
        """Settle what became durable and answer for it; or throw memory away."""
        records, waiting = self._records_in_flight, self._awaiting
        assert records is not None, "the log answered an append that nobody made"
        self._records_in_flight, self._awaiting = None, []
        self._clear_in_flight_keys()
        if self._append_finished is not None:
            self._append_finished.set()
            self._append_finished = None
        seconds = self._loop.time() - self._append_started_s
        self._metrics.append_done(len(records), self._append_bytes, seconds, error)
        if error is None and records and base_offset != self._next_log_offset:
            error = LogError(f"an append landed at {base_offset}, expected {self._next_log_offset}")
        if self.status is not Status.ACTIVE:
            if error is None:
                answer_all(waiting)
            else:
                self._fail_all(waiting, ErrorCode.NOT_COORDINATOR, f"The shard was closed: {error}")
            return
        if error is not None:
            self._recover(error, waiting)
            return
        if not self._settle_or_recover(records, base_offset, waiting):
            return
        answer_all(waiting)
        if self._queue:
            self._schedule_batch()

    def _settle_or_recover(
        self,
        records: list[StateRecord | None],
        base_offset: int,
        waiting: list[tuple[Operation, CoordinatorResult]],
    ) -> bool:
        """Settle durable records; False: that failed, and the shard is loaded again from its log."""
        try:
            self._mark_durable(records, base_offset)
        except Exception as failure:
            report_failure("settling the records of an append failed", failure)
            self._recover(LogOutcomeUnknown(f"settling failed: {failure!r}"), waiting)
            return False
        return True

    def _mark_durable(self, records: list[StateRecord | None], base_offset: int) -> None:
        self._reads_come = False
        self._next_log_offset = base_offset + len(records)
        if not records:
            return
        if records.count(None) < len(records):
            for log_offset, record in enumerate(records, base_offset):
                if record is not None:
                    self._mark_record_durable(record, log_offset)
        self.shard.mark_updates_durable(self._next_log_offset)

    def _mark_record_durable(self, record: StateRecord, log_offset: int) -> None:
        self.shard.mark_durable(record, log_offset)
        if isinstance(record.value, ShareSnapshotValue):
            # Only a job leaves the creation time of the state as it was.
            by_job = record.value.create_timestamp != record.value.write_timestamp
            self._metrics.snapshot_written("job" if by_job else "request")

    @staticmethod
    def _fail_all(waiting: list[tuple[Operation, CoordinatorResult]], code: ErrorCode, message: str) -> None:
        refuse_all((operation for operation, _ in waiting), code, message)

    def _log_unavailable_message(self) -> str:
        return f"The log takes no writes: {self._log.health()}"

    # What the other half does.

    def _recover(self, error: LogError, waiting: list[tuple[Operation, CoordinatorResult]]) -> None:
        """Answer that nothing is known to be stored, and load the shard again from its log, if it is ours."""
        raise NotImplementedError
