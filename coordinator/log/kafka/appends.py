"""Append records to owned state partitions, and determine the outcome of each append.

An append is sent as one batch, or as several if the topic accepts only small batches. Each batch waits until
the previous one is in the log.

The appender sends the identical batch until a broker reports its outcome. A broker recognises a batch that it
already has by producer id, producer epoch and sequence. An append succeeds only at the expected offset. At
any other offset, another process has written to the log, or the log was truncated. The appender then reads
the records in between to see whether a later claim fenced this process.

The expected offset alone does not prove that the log still has the earlier records. An unclean leader
election may have lost them, and another process may have written as many. Kafka rejects the next append only
if both processes have the same producer id. Therefore the first append to each new leader succeeds only after
a read has found this owner's previous record at its offset.

When an append times out, its outcome is unknown, even if the batch is in the log: before Kafka 3.7, readers
see a batch that a single replica has. A new claim determines the outcome: the response to the claim proves
that the replicas have all earlier batches, and readers ignore a batch of an older claim after the new one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coordinator.cluster.kafka.broker_results import ProduceResult
from coordinator.errors import LogError, LogFenced, LogOutcomeUnknown, LogRefused, LogUnavailable
from coordinator.log.base import AppendCallback, Unit
from coordinator.log.claims import FencingFilter
from coordinator.log.kafka.batches import Record, encode_owner_batch, split_records
from coordinator.log.kafka.offsets import OffsetFinder
from coordinator.log.kafka.ownership import Leader, Ownership
from coordinator.log.kafka.partition_batcher import PartitionBatcher
from coordinator.log.kafka.replay import PartitionReader
from protocol.errors import DecodeError, ErrorCode, kafka_error
from protocol.record_batch import RecordBatch, decode_batches

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

_logger = logging.getLogger(__name__)

# A broker answers an append after its followers have it, and delays later requests on the connection. Six
# channels were the best number in a test with three brokers: 3 channels achieved 6 to 18 % fewer writes per
# second, and 12 channels no more.
CHANNELS = tuple(f"append {number}" for number in range(1, 7))
REQUEST_BYTES_MAX = 8 << 20

_FENCED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
# Errors with which a broker rejects a batch without appending it; the broker would reject the batch again.
_REFUSED: dict[int, str] = {
    ErrorCode.MESSAGE_TOO_LARGE: "the batch is larger than max.message.bytes of the topic",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the batch is larger than a segment of the topic",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "clients may not write to this topic",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this client is not authorized to write to the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this client is not authorized to write with a producer id",
    ErrorCode.INVALID_RECORD: "the broker rejected the records as invalid",
    ErrorCode.INVALID_TIMESTAMP: "the clock of this host is ahead of the broker's by more than "
    "message.timestamp.after.max.ms of the topic",
}
# The broker's producer state differs from that of this process. Whether the batch was appended can only be
# determined by reading the log.
_PRODUCER_STATE_DIFFERS = {
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}
# Errors that prove that this attempt appended nothing. After any other error, the batch may have been
# appended.
_NOT_APPENDED = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_ID}

_StoredCallback = Callable[[int, int, bytes], None]


class AppendInFlight:
    """One append, and its batch in flight.

    `on_stored` is called with the state partition, the offset and the bytes of each batch in the log. `done`
    is called once, after the last batch or after the first one that fails.
    """

    __slots__ = (
        "at_any_offset",
        "attempts",
        "base_offset",
        "batch",
        "count",
        "deadline_s",
        "done",
        "is_partly_stored",
        "leader",
        "may_be_appended",
        "on_stored",
        "ownership",
        "remaining_batches",
        "sent_s",
        "size_bytes",
        "state_partition",
        "timestamp_ms",
    )

    def __init__(
        self,
        ownership: Ownership,
        timestamp_ms: int,
        done: AppendCallback,
        on_stored: _StoredCallback,
        *,
        at_any_offset: bool,
    ) -> None:
        self.ownership = ownership
        self.state_partition = ownership.state_partition
        self.timestamp_ms = timestamp_ms
        self.done = done
        self.on_stored = on_stored
        self.at_any_offset = at_any_offset
        self.base_offset = ownership.next_offset
        # True if an earlier batch is in the log.
        self.is_partly_stored = False
        # The records of the batches that follow the one in flight.
        self.remaining_batches: Iterator[list[Record]] | None = None

    def start_batch(self, batch: bytes, count: int, *, sent_s: float, deadline_s: float) -> None:
        self.batch = batch
        self.count = count
        self.size_bytes = len(batch)
        self.sent_s = sent_s
        self.deadline_s = deadline_s
        self.attempts = 0
        # The leader that received the latest attempt.
        self.leader: Leader | None = None
        # True after an attempt that may have appended the batch without a known result.
        self.may_be_appended = False


class Appender:
    """Sends appends and determines their outcomes. `done` of an append is called once, by the event loop."""

    def __init__(
        self,
        cluster: "Brokers",
        replay: PartitionReader,
        ends: OffsetFinder,
        *,
        monotonic: Callable[[], float],
        batch_bytes_max: int,
        request_timeout_s: float,
        append_timeout_s: float,
    ) -> None:
        """`batch_bytes_max` is the size above which an append is split."""
        self._monotonic = monotonic
        self._cluster = cluster
        self._replay = replay
        self._end_offsets = ends
        self._batch_bytes_max = batch_bytes_max
        self._request_timeout_ms = round(request_timeout_s * 1000)
        self._append_timeout_s = append_timeout_s
        self._loop = asyncio.get_running_loop()
        self._in_flight = 0
        self._idle_event = asyncio.Event()
        self._log_checks: set[asyncio.Task[None]] = set()
        self._batcher: PartitionBatcher[AppendInFlight, ProduceResult] = PartitionBatcher(
            cluster,
            channels=CHANNELS,
            request_bytes_max=REQUEST_BYTES_MAX,
            send=self._send_batches,
            handle_result=self._handle_produce_result,
            on_no_response=_mark_outcome_unknown,
            on_timeout=self._handle_timeout,
        )

    def append(
        self,
        ownership: Ownership,
        records: Sequence[Record],
        timestamp_ms: int,
        done: AppendCallback,
        on_stored: _StoredCallback,
        *,
        units: Sequence[Unit] = (),
        at_any_offset: bool = False,
    ) -> None:
        """Send records with the ownership's next sequence.

        With `at_any_offset`, the append succeeds at any offset, because the offset of a claim is not known in
        advance. If a later batch fails, the earlier ones are in the log. After such a failure, the shard must
        be loaded again before the next append.
        """
        self._in_flight += 1
        append = AppendInFlight(ownership, timestamp_ms, done, on_stored, at_any_offset=at_any_offset)
        batch = encode_owner_batch(ownership, records, timestamp_ms)
        if len(batch) > self._batch_bytes_max:
            append.remaining_batches = split_records(records, units, self._batch_bytes_max)
            self._send_next_batch(append)
        else:
            self._send_batch(append, batch, len(records))

    def _send_next_batch(self, append: AppendInFlight) -> bool:
        """Send the next batch of a split append; return False if there is none."""
        records = next(append.remaining_batches, None) if append.remaining_batches is not None else None
        if records is not None:
            batch = encode_owner_batch(append.ownership, records, append.timestamp_ms)
            self._send_batch(append, batch, len(records))
        return records is not None

    def _send_batch(self, append: AppendInFlight, batch: bytes, count: int) -> None:
        deadline_s = self._loop.time() + self._append_timeout_s
        append.start_batch(batch, count, sent_s=self._monotonic(), deadline_s=deadline_s)
        self._batcher.submit(append)

    async def wait_until_idle(self) -> None:
        while self._in_flight:
            self._idle_event.clear()
            await self._idle_event.wait()

    def close(self) -> None:
        """Stop. `done` of the appends in flight is not called."""
        self._batcher.close()
        for task in self._log_checks:
            task.cancel()

    def _send_batches(
        self, node: int, channel: str, appends: list[AppendInFlight]
    ) -> Awaitable[Mapping[int, ProduceResult]]:
        for append in appends:
            append.leader = (node, self._cluster.leader_epoch(append.state_partition))
        batches = [(append.state_partition, append.batch) for append in appends]
        return self._cluster.produce(node, channel, batches, self._request_timeout_ms)

    def _handle_produce_result(self, append: AppendInFlight, produced: ProduceResult) -> str | None:
        """Handle a broker's result for one batch; return why it must be sent again, or None."""
        ownership, code = append.ownership, produced.error_code
        if code == ErrorCode.NONE:
            if not append.at_any_offset and produced.base_offset != ownership.next_offset:
                self._start_log_check(
                    self._fail_unexpected_offset(append, ownership.next_offset, produced.base_offset)
                )
            elif append.at_any_offset or (append.leader == ownership.leader and not append.attempts):
                self._record_result(append, produced.base_offset)
            else:
                self._start_log_check(self._check_previous_record(append, produced.base_offset))
            return None
        if code in _FENCED:
            self._fail_append(
                append, LogFenced(f"state partition {append.state_partition} was taken over (error {code})")
            )
        elif code in _PRODUCER_STATE_DIFFERS:
            self._start_log_check(self._fail_unknown_outcome(append, kafka_error(code)))
        elif code in _REFUSED and not append.may_be_appended:
            self._fail_append(append, LogUnavailable(_REFUSED[code]))
        elif code == ErrorCode.UNKNOWN_TOPIC_ID and (reason := self._cluster.recreated_reason()):
            self._fail_append(
                append, LogOutcomeUnknown(reason) if append.may_be_appended else LogRefused(reason)
            )
        else:
            append.may_be_appended |= code not in _NOT_APPENDED
            return kafka_error(code)
        return None

    def _handle_timeout(self, append: AppendInFlight, why: str) -> None:
        if append.may_be_appended:
            self._start_log_check(self._fail_unknown_outcome(append, why))
        else:
            self._fail_append(append, LogUnavailable(f"the records could not be sent: {why}"))

    def _record_result(self, append: AppendInFlight, base_offset: int) -> None:
        """Record that the batch in flight is in the log; send the next one, or complete the append."""
        append.ownership.record_appended(base_offset, append.count, append.sent_s, append.leader)
        append.on_stored(append.state_partition, base_offset, append.batch)
        if not append.is_partly_stored:
            append.is_partly_stored, append.base_offset = True, base_offset
        if append.remaining_batches is None or not self._send_next_batch(append):
            self._call_done(append, None)

    def _fail_append(self, append: AppendInFlight, error: LogError) -> None:
        if append.is_partly_stored and isinstance(error, LogUnavailable):
            # The error covers only this batch; earlier batches are in the log.
            error = LogOutcomeUnknown(f"a part of the append is in the log: {error}")
        if not isinstance(error, LogUnavailable):
            append.ownership.lost = error
        self._call_done(append, error)

    def _call_done(self, append: AppendInFlight, error: LogError | None) -> None:
        """Call `done`; an exception in it does not affect other appends."""
        self._in_flight -= 1
        if not self._in_flight:
            self._idle_event.set()
        try:
            append.done(append.base_offset, error)
        except Exception as failure:
            self._loop.call_exception_handler(
                {"message": "an append's done callback failed", "exception": failure}
            )

    # Checks of the log.

    def _start_log_check(self, check: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(check)
        self._log_checks.add(task)
        task.add_done_callback(self._log_checks.discard)

    async def _fail_unexpected_offset(self, append: AppendInFlight, expected: int, found: int) -> None:
        """Fail an append whose batch has an unexpected offset; the log shows whether a claim fenced it."""
        ownership, partition = append.ownership, append.state_partition
        error: LogError
        if found < expected:
            error = LogOutcomeUnknown(
                f"the log of state partition {partition} went back from {expected} to {found}: acknowledged "
                f"records are lost, for example by an unclean leader election"
            )
            _logger.error("%s", error)
        else:
            fencing_filter = FencingFilter(ownership.owner_epoch)
            try:
                end = await self._end_offsets.find(partition)
                async for batch in self._read_batches(partition, expected, end):
                    for record in batch.records:
                        fencing_filter.accepts(record)
                error = LogOutcomeUnknown(
                    f"another process wrote to state partition {partition} at {expected}"
                )
            except (LogError, DecodeError) as unread:
                error = LogOutcomeUnknown(
                    f"the records of another process in state partition {partition} cannot be read: {unread}"
                )
            if fencing_filter.claim is not None:
                error = fenced_error(partition, fencing_filter)
        self._fail_append(append, error)

    async def _check_previous_record(self, append: AppendInFlight, base_offset: int) -> None:
        """Complete an append to a new leader if the log has this owner's previous record, or fail it."""
        ownership, partition = append.ownership, append.state_partition
        previous = ownership.last_own_offset
        why = "another process has replaced it"
        try:
            async for batch in self._read_batches(partition, previous, previous + 1):
                if _has_owners_producer(batch, ownership):
                    self._record_result(append, base_offset)
                    return
        except (LogError, DecodeError) as error:
            why = str(error)
        lost = f"the record of this owner at {previous} in state partition {partition} was not found: {why}"
        _logger.error("%s", lost)
        self._fail_append(append, LogOutcomeUnknown(lost))

    async def _fail_unknown_outcome(self, append: AppendInFlight, why: str) -> None:
        """Fail an append that has no result; the log shows whether another process has written instead."""
        ownership = append.ownership
        expected = ownership.next_offset
        try:
            end = await self._end_offsets.find(append.state_partition)
            if not append.at_any_offset and end > expected:
                async for batch in self._read_batches(append.state_partition, expected, expected + 1):
                    if not _is_owners_batch(batch, ownership, expected):
                        await self._fail_unexpected_offset(append, expected, end)
                        return
        except (LogError, DecodeError) as error:
            why = f"{why}; {error}"
        self._fail_append(append, LogOutcomeUnknown(f"no response in time ({why})"))

    async def _read_batches(self, partition: int, start: int, end: int) -> Any:
        async for chunk in self._replay.batches({partition: start}, {partition: end}):
            for logged in chunk:
                for batch in decode_batches(logged.batch):
                    yield batch


def fenced_error(state_partition: int, fencing_filter: FencingFilter) -> LogFenced:
    """Return the error for an ownership that ended with the last claim that was read."""
    assert fencing_filter.claim is not None
    return LogFenced(
        f"state partition {state_partition} was taken over by {fencing_filter.claim.owner} "
        f"with owner epoch {fencing_filter.claim.owner_epoch} at log offset {fencing_filter.claim.log_offset}"
    )


def _mark_outcome_unknown(append: AppendInFlight) -> None:
    append.may_be_appended = True


def _has_owners_producer(batch: RecordBatch, ownership: Ownership) -> bool:
    return (batch.producer_id, batch.producer_epoch) == (ownership.producer_id, ownership.producer_epoch)


def _is_owners_batch(batch: RecordBatch, ownership: Ownership, expected: int) -> bool:
    at = (batch.base_offset, batch.base_sequence)
    return _has_owners_producer(batch, ownership) and at == (expected, ownership.sequence)
