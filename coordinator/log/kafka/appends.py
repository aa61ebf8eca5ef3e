"""Append batches to owned state partitions, and determine the outcome of each append.

The appender sends the identical batch until a broker reports its outcome. A broker recognises a batch that it
already has by producer id, producer epoch and sequence. An append succeeds only at the expected offset. At
any other offset, another process has written to the log, or the log was truncated. The appender then reads
the records in between to see whether a later claim fenced this process.

When an append times out, its outcome is unknown, even if the batch is in the log: before Kafka 3.7, readers
see a batch that a single replica has. A new claim resolves it. The response to the claim proves that the
replicas have all earlier batches. Readers ignore a batch of an older claim after the new one.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from coordinator.cluster.kafka.cluster import Cluster, ProduceResult
from coordinator.errors import LogError, LogFenced, LogOutcomeUnknown, LogRefused, LogUnavailable
from coordinator.log.claims import FencingFilter
from coordinator.log.kafka.offsets import OffsetFinder
from coordinator.log.kafka.ownership import Ownership
from coordinator.log.kafka.partition_batcher import PartitionBatcher
from coordinator.log.kafka.replay import PartitionReader
from protocol.errors import DecodeError, ErrorCode
from protocol.record_batch import RecordBatch, decode_batches

_logger = logging.getLogger(__name__)

# A broker answers an append after its followers have it, and delays later requests on the connection. With
# three brokers, 3 channels achieved 6 to 18 % fewer writes per second, and 12 channels no more.
CHANNELS = tuple(f"append {number}" for number in range(1, 7))
REQUEST_BYTES_MAX = 8 << 20

_FENCED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
# The broker rejected the batch without appending it, and would reject it again.
_REFUSED: dict[int, str] = {
    ErrorCode.MESSAGE_TOO_LARGE: "the batch is larger than max.message.bytes of the topic",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the batch is larger than a segment of the topic",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "clients may not write to this topic",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this client is not authorized to write to the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this client is not authorized to write with a producer id",
    ErrorCode.INVALID_RECORD: "the broker rejected the records as invalid",
}
# The broker's producer state differs from this process's. Only the log shows what happened.
_OUT_OF_STEP = {
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}
# This attempt appended nothing. After any other error, the batch may have been appended.
_NOT_APPENDED = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_ID}

_Done = Callable[[int, LogError | None], None]


class AppendInFlight:
    """One batch in flight."""

    def __init__(
        self,
        ownership: Ownership,
        batch: bytes,
        count: int,
        deadline_s: float,
        done: _Done,
        *,
        sent_s: float,
        anywhere: bool,
    ) -> None:
        self.ownership = ownership
        self.sent_s = sent_s
        self.state_partition = ownership.state_partition
        self.batch = batch
        self.count = count
        self.deadline_s = deadline_s
        self.done = done
        self.anywhere = anywhere
        self.attempts = 0
        # True after an attempt that may have appended the batch without a known result.
        self.may_be_appended = False

    @property
    def size_bytes(self) -> int:
        return len(self.batch)


class Appender:
    """Sends appends and determines their outcomes. `done` of an append is called once, by the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        replay: PartitionReader,
        ends: OffsetFinder,
        *,
        monotonic: Callable[[], float],
        request_timeout_s: float,
        append_timeout_s: float,
    ) -> None:
        self._monotonic = monotonic
        self._cluster = cluster
        self._replay = replay
        self._end_offsets = ends
        self._request_timeout_ms = round(request_timeout_s * 1000)
        self._append_timeout_s = append_timeout_s
        self._loop = asyncio.get_running_loop()
        self._end_checks: set[asyncio.Task[None]] = set()
        self._batcher: PartitionBatcher[AppendInFlight, ProduceResult] = PartitionBatcher(
            cluster,
            channels=CHANNELS,
            request_bytes_max=REQUEST_BYTES_MAX,
            send=self._send_batches,
            settle=self._settle,
            no_answer=_mark_outcome_unknown,
            give_up=self._give_up,
        )

    def append(
        self, ownership: Ownership, batch: bytes, count: int, done: _Done, *, anywhere: bool = False
    ) -> None:
        """Send a batch with the ownership's next sequence.

        With `anywhere`, any offset is expected (for a claim).
        """
        deadline_s, sent_s = self._loop.time() + self._append_timeout_s, self._monotonic()
        self._batcher.submit(
            AppendInFlight(ownership, batch, count, deadline_s, done, sent_s=sent_s, anywhere=anywhere)
        )

    def close(self) -> None:
        """Stop. `done` of the appends in flight is not called."""
        self._batcher.close()
        for task in self._end_checks:
            task.cancel()

    async def _send_batches(
        self, node: int, channel: str, appends: list[AppendInFlight]
    ) -> Mapping[int, ProduceResult]:
        batches = [(append.state_partition, append.batch) for append in appends]
        return await self._cluster.produce(node, channel, batches, self._request_timeout_ms)

    def _settle(self, append: AppendInFlight, produced: ProduceResult) -> str | None:
        """Handle a broker's result for one batch; return why it must be sent again, or None."""
        ownership, code = append.ownership, produced.error_code
        if code == ErrorCode.NONE:
            if append.anywhere or produced.base_offset == ownership.next_offset:
                self._record_result(append, produced.base_offset)
            else:
                self._check_log_end(
                    self._explain(ownership, ownership.next_offset, produced.base_offset, append.done)
                )
            return None
        if code in _FENCED:
            self._end(
                append, LogFenced(f"state partition {append.state_partition} was taken over (error {code})")
            )
        elif code in _OUT_OF_STEP:
            self._check_log_end(self._find_in_log(append, f"Kafka's error {code}"))
        elif code in _REFUSED and not append.may_be_appended:
            self._end(append, LogUnavailable(_REFUSED[code]))
        elif code == ErrorCode.UNKNOWN_TOPIC_ID and (reason := self._cluster.recreated_reason()):
            self._end(append, LogOutcomeUnknown(reason) if append.may_be_appended else LogRefused(reason))
        else:
            append.may_be_appended |= code not in _NOT_APPENDED
            return f"Kafka's error {code}"
        return None

    def _give_up(self, append: AppendInFlight, why: str) -> None:
        if append.may_be_appended:
            self._check_log_end(self._find_in_log(append, why))
        else:
            self._end(append, LogUnavailable(f"the records could not be sent: {why}"))

    def _record_result(self, append: AppendInFlight, base_offset: int) -> None:
        append.ownership.record_appended(base_offset, append.count, append.sent_s)
        # In a separate callback, so that an exception in `done` does not affect other appends.
        self._loop.call_soon(append.done, base_offset, None)

    def _end(self, append: AppendInFlight, error: LogError) -> None:
        if not isinstance(error, LogUnavailable):
            append.ownership.lost = error
        self._loop.call_soon(append.done, append.ownership.next_offset, error)

    # Checks of the log.

    def _check_log_end(self, checked_appends: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(checked_appends)
        self._end_checks.add(task)
        task.add_done_callback(self._end_checks.discard)

    async def _explain(self, ownership: Ownership, expected: int, found: int, done: _Done) -> None:
        """Determine why a batch has an unexpected offset, and end the append with that error."""
        partition = ownership.state_partition
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
        ownership.lost = error
        self._loop.call_soon(done, expected, error)

    async def _find_in_log(self, append: AppendInFlight, why: str) -> None:
        """End an append without a result, with the claim of another process if one follows in the log."""
        ownership = append.ownership
        expected = ownership.next_offset
        try:
            end = await self._end_offsets.find(append.state_partition)
            if not append.anywhere and end > expected:
                async for batch in self._read_batches(append.state_partition, expected, expected + 1):
                    if not _is_own_batch(batch, ownership, expected):
                        await self._explain(ownership, expected, end, append.done)
                        return
        except (LogError, DecodeError) as error:
            why = f"{why}; {error}"
        self._end(append, LogOutcomeUnknown(f"no answer in time ({why})"))

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


def _is_own_batch(batch: RecordBatch, ownership: Ownership, expected: int) -> bool:
    return (batch.base_offset, batch.producer_id, batch.producer_epoch, batch.base_sequence) == (
        expected,
        ownership.producer_id,
        ownership.producer_epoch,
        ownership.sequence,
    )
