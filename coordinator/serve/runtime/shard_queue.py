# cython: annotation_typing=False
"""The queue of one shard: execute operations in batches, append each batch once, then send the responses.

A *batch* takes all queued operations. The records of each operation are applied in order, so that the next
operation sees their effect. One append writes the records of the whole batch. Meanwhile, new
operations are queued, so a busy shard makes large appends. Responses are sent when the append is durable.

A read gets its response at once, except in two cases. If a change of its share-partition is queued or in
flight, the read waits until the change is stored, because the response would contain a state that is not
durable. If the lease has expired, the read waits for the next append or for one that renews the lease: an
append at the expected offset proves that no other process was the owner when the read arrived.

The compiled write kernel executes consecutive writes that the API decoded into compiled operations. Compiled
code also answers reads without a record, from `state_to_read`. `Decider` computes the responses and records
of all other operations.

If a C compiler is available, this source is compiled; see `coordinator.compiled_sources`.
"""

import asyncio

from coordinator.errors import LogError, LogFenced, LogOutcomeUnknown, LogUnavailable
from coordinator.fastpath.operation_queue import CommitBatch, CommitContext, OperationQueue, new_batch
from coordinator.log.base import AppendCallback
from coordinator.serve.runtime.decider import ShardServices, is_atomic, work_units
from coordinator.serve.runtime.operations import (
    Operation,
    refuse_all,
    refuse_operation,
    report_failure,
    send_response,
)
from coordinator.serve.runtime.status import ShardStatus
from coordinator.shard import Shard
from protocol.errors import ErrorCode
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.state_records import SharePartitionKey, StateRecord

_ACTIVE = ShardStatus.ACTIVE


class ShardQueue(OperationQueue):
    """Executes the operations of a shard while it is active; `ShardRunner` loads and closes the shard."""

    def __init__(self, state_partition: int, services: ShardServices) -> None:
        """Create a closed queue."""
        metrics, limits = services.metrics, services.limits
        self.state_partition = state_partition
        self.status = ShardStatus.CLOSED
        self.shard = Shard(state_partition, services.policy)
        self._loop = asyncio.get_running_loop()
        self._scheduler = services.scheduler
        self._log = services.log
        self._decider = services.decider
        self._metrics = metrics
        self._append_histograms = (
            metrics.histogram("append_batch_records"),
            metrics.histogram("append_duration_seconds"),
            metrics.append_bytes,
        )
        self._limits = limits
        self._queue_max = limits.queued_operations_max
        self._batch_operations_max = limits.operations_per_append_max
        self._batch_bytes_max = limits.bytes_per_append_max
        self._queue: list[Operation] = []
        self._batch_scheduled = False
        # The append in flight: its records, its operations, and the share-partitions that it changes.
        self._records_in_flight: list[StateRecord | None] | None = None
        self._append_started_s = 0.0
        self._append_bytes = 0
        self._awaiting_append: list[Operation] = []
        self._in_flight_keys: set[SharePartitionKey] = set()
        # Share-partitions with a queued operation: a read of such a share-partition is queued too.
        self._queued_keys: set[SharePartitionKey] = set()
        # The number of operations whose keys are in the two sets above.
        self._in_flight_indexed = self._queued_indexed = 0
        # The batch whose operations are being executed.
        self._batch: CommitBatch | None = None
        self._next_log_offset = 0
        # Set when the append in flight is complete; None if no task waits for that.
        self._append_finished: asyncio.Event | None = None
        # Whether a read arrived after the last renewal of the lease.
        self._reads_arrived = False
        self._append_callback: AppendCallback = self.on_append_done

    def _recover(self, error: LogError, waiting: list[Operation]) -> None:
        """Refuse the waiting operations and load the shard again: memory and log may differ."""
        raise AssertionError("a queue must define how it recovers")

    # Accepting operations.

    def submit(self, operation: Operation) -> None:
        """Take an operation; it is answered exactly once, later or within this call."""
        if self.status is not _ACTIVE or len(self._queue) >= self._queue_max:
            self._queue_or_refuse(operation)
        elif operation.writes or not self._may_read_memory() or not self._answer_read_immediately(operation):
            self._queue.append(operation)
            self._scheduler.operation_arrived()
            if self._records_in_flight is None and not self._batch_scheduled:
                self._schedule_batch()

    def _queue_or_refuse(self, operation: Operation) -> None:
        """Queue an operation for a shard that is loading; refuse it if the shard is closed or full."""
        if self.status is ShardStatus.CLOSED:
            refuse_operation(
                operation,
                ErrorCode.NOT_COORDINATOR,
                "This coordinator does not own the share-partition.",
            )
        elif len(self._queue) >= self._queue_max:
            refuse_operation(
                operation,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "Too many operations wait for this shard; try again.",
            )
        else:
            self._queue.append(operation)

    def _may_read_memory(self) -> bool:
        """Return whether the lease allows reads from memory; False if the log raises an exception."""
        self._reads_arrived = True
        try:
            return self._log.lease_left_s(self.state_partition) > 0
        except Exception as failure:
            report_failure("reading the lease failed", failure)
            return False

    def _has_queued_operation(self, key: SharePartitionKey) -> bool:
        if self._queued_indexed < len(self._queue):
            self._queued_keys.update([operation.key for operation in self._queue[self._queued_indexed :]])
            self._queued_indexed = len(self._queue)
        return key in self._queued_keys

    def _is_key_in_flight(self, key: SharePartitionKey) -> bool:
        self._index_in_flight_keys()
        return key in self._in_flight_keys

    def _index_in_flight_keys(self) -> None:
        """Index the share-partitions of the operations that wait for the append in flight."""
        if self._in_flight_indexed < len(self._awaiting_append):
            self._in_flight_keys.update(
                [operation.key for operation in self._awaiting_append[self._in_flight_indexed :]]
            )
            self._in_flight_indexed = len(self._awaiting_append)

    def _clear_queued_keys(self) -> None:
        """Clear the index of queued share-partitions after the queue was replaced."""
        if self._queued_indexed:
            self._queued_keys.clear()
            self._queued_indexed = 0

    def _clear_in_flight_keys(self) -> None:
        """Clear the index of share-partitions in flight after an append."""
        self._in_flight_keys.clear()
        self._in_flight_indexed = 0

    def _has_pending_change(self, key: SharePartitionKey) -> bool:
        """Return whether a share-partition has a queued or in-flight change."""
        return self._is_key_in_flight(key) or self._has_queued_operation(key)

    def state_to_read(self, key: SharePartitionKey) -> bytes | None:
        """Return the packed state of a share-partition if memory may answer a read of it now."""
        if self.status is not _ACTIVE or len(self._queue) >= self._queue_max:
            return None
        if not self._may_read_memory() or self._has_pending_change(key):
            return None
        return self.shard.packed_state(key)

    def _answer_read_immediately(self, operation: Operation) -> bool:
        """Answer a read; return False if a change is pending or the read writes a record."""
        if self._has_pending_change(operation.key):
            return False
        result = self._decider.decide(self.shard, operation)
        if result is not None:
            if result.records:
                return False
            send_response(operation, result.answer)
        return True

    # Batches.

    def process_batch(self, commit: CommitContext) -> None:
        """Execute the queued operations, and append the records of all of them at once."""
        self._batch_scheduled = False
        operations = self._queue
        if self.status is not _ACTIVE or self._records_in_flight is not None or not operations:
            return
        self._queue = []
        self._clear_queued_keys()
        last = min(len(operations), self._batch_operations_max)
        self._batch = batch = new_batch(
            operations, last, commit.work_left, self._batch_bytes_max, commit.now_ms
        )
        kernel = self._scheduler.kernel if commit.accepts_writes else None
        while True:
            if kernel is not None:
                kernel.decide_writes(self.shard, batch, self._awaiting_append)
            if not batch.may_continue():
                break
            operation = operations[batch.done]
            records = len(batch.records)
            self._process_operation(batch, operation, commit.accepts_writes)
            batch.work_left -= work_units(self.shard, operation, len(batch.records) - records)
            batch.done += 1
        commit.work_left = batch.work_left
        commit.decided += batch.done
        if batch.done < len(operations):
            # The other operations stay first in the queue.
            self._queue = operations[batch.done :] + self._queue
            self._clear_queued_keys()
        self._batch = None
        if batch.records or self._awaiting_append:
            self._append(batch, commit)
        elif self._queue:
            self._schedule_batch()

    def batch_failed(self, failure: Exception) -> None:
        """Recover from a batch that raised an exception, which is a defect.

        The applied records of the batch are not on the log, so the state in memory is discarded. No sent
        response depends on these records.
        """
        self._records_in_flight = None
        self._clear_in_flight_keys()
        waiting, self._awaiting_append = self._awaiting_append, []
        batch, self._batch = self._batch, None
        if batch is not None:
            waiting += batch.operations[batch.done :]
        if self.status is _ACTIVE:
            self._recover(LogUnavailable(f"a batch failed: {failure!r}"), waiting)
        else:
            refuse_all(waiting, ErrorCode.NOT_COORDINATOR, "The shard was closed.")

    def _schedule_batch(self) -> None:
        if not self._batch_scheduled:
            self._batch_scheduled = True
            self._scheduler.schedule(self)

    def _process_operation(self, batch: CommitBatch, operation: Operation, accepts_writes: bool) -> None:
        """Execute one operation; send its response now if the response does not depend on an append."""
        if operation.writes and not accepts_writes:
            refuse_operation(operation, ErrorCode.COORDINATOR_NOT_AVAILABLE, self._log_unavailable_message())
            return
        result = self._decider.decide(self.shard, operation, batch.now_ms)
        if result is None:
            return
        if operation.decide is Shard.write_state or (result.records and operation.decide is Shard.read_state):
            self._metrics.count("write_operations")
        if result.records and not accepts_writes:
            refuse_operation(operation, ErrorCode.COORDINATOR_NOT_AVAILABLE, self._log_unavailable_message())
            return
        encoded = self._decider.encode_records(operation, result)
        if encoded is None:
            return
        for record in result.records:
            self.shard.apply(record, batch.now_ms)
            self._in_flight_keys.add(record.key)
        batch.add(result.records, encoded, is_unit=is_atomic(operation, result))
        if result.records or not self._may_read_memory() or self._is_key_in_flight(operation.key):
            operation.decided = result.answer
            self._awaiting_append.append(operation)
        else:
            send_response(operation, result.answer)

    # Appends.

    def _append(self, batch: CommitBatch, commit: CommitContext) -> None:
        self._records_in_flight = batch.records
        self._append_started_s = commit.now_s
        self._append_bytes = batch.append_bytes
        state_partition, gathered, done = self.state_partition, commit.gathered, self._append_callback
        if gathered is None or not batch.records:
            self._log.append(state_partition, batch.encoded, batch.now_ms, done, batch.units)
            return
        pending, ends, new_append = gathered
        pending.append(new_append(state_partition, ends[state_partition], batch.now_ms, batch.encoded, done))

    def _renew_lease(self) -> None:
        """Renew the lease if that is due and no append is queued or in flight."""
        idle = self.status is _ACTIVE and self._records_in_flight is None and not self._queue
        if idle and self._log.renewal_due(self.state_partition, read=self._reads_arrived):
            self._records_in_flight = []
            self._append_started_s = self._loop.time()
            self._append_bytes = 0
            self._log.append(self.state_partition, [], self._decider.now_ms(), self._append_callback, [])

    def on_append_done(self, base_offset: int, error: LogError | None) -> None:
        """Mark records durable and send the responses; after an error, load the shard again."""
        records, waiting = self._records_in_flight, self._awaiting_append
        assert records is not None, "the log completed an append that was not in flight"
        self._records_in_flight, self._awaiting_append = None, []
        self._clear_in_flight_keys()
        if self._append_finished is not None:
            self._append_finished.set()
            self._append_finished = None
        self._record_append_metrics(len(records), error)
        if error is None and records and base_offset != self._next_log_offset:
            error = LogError(f"an append was stored at {base_offset}, expected {self._next_log_offset}")
        was_active = self.status is _ACTIVE
        if not was_active and error is not None:
            refuse_all(waiting, ErrorCode.NOT_COORDINATOR, f"The shard was closed: {error}")
            return
        if error is not None:
            self._recover(error, waiting)
            return
        if was_active and not self._mark_durable_or_recover(records, base_offset, waiting):
            return
        for operation in waiting:
            try:
                operation.answer_decided()
            except Exception as failure:
                report_failure("answering an operation failed", failure)
        if was_active and self._queue:
            self._schedule_batch()

    def _record_append_metrics(self, records: int, error: LogError | None) -> None:
        seconds = self._loop.time() - self._append_started_s
        record_counts, append_seconds, append_bytes = self._append_histograms
        append_seconds.add(seconds)
        if error is None:
            record_counts.add(records)
            append_bytes.add(self._append_bytes)
        elif not isinstance(error, LogFenced):
            self._metrics.count("append_failures")

    def _mark_durable_or_recover(
        self, records: list[StateRecord | None], base_offset: int, waiting: list[Operation]
    ) -> bool:
        """Mark records durable. After an exception, start to load the shard again and return False."""
        try:
            self._mark_append_durable(records, base_offset)
        except Exception as failure:
            report_failure("marking the records of an append durable failed", failure)
            self._recover(LogOutcomeUnknown(f"marking records durable failed: {failure!r}"), waiting)
            return False
        return True

    def _mark_append_durable(self, records: list[StateRecord | None], base_offset: int) -> None:
        self._reads_arrived = False
        self._next_log_offset = base_offset + len(records)
        if not records:
            return
        for log_offset, record in enumerate(records, base_offset):
            if record is not None:
                self._mark_record_durable(record, log_offset)
        self.shard.mark_updates_durable(self._next_log_offset)

    def _mark_record_durable(self, record: StateRecord, log_offset: int) -> None:
        self.shard.mark_durable(record, log_offset)
        if isinstance(record.value, ShareSnapshotValue):
            # Only the snapshots of maintenance jobs keep the creation time of an earlier snapshot.
            by_job = record.value.create_timestamp != record.value.write_timestamp
            self._metrics.count("snapshots", "job" if by_job else "request")

    def _log_unavailable_message(self) -> str:
        return f"The log accepts no writes: {self._log.health()}"
