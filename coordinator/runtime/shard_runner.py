"""The owner of one shard: takes what waits, decides it, appends it once, and only then answers.

Theory of operation.  Operations queue in a mailbox.  A *turn* takes all of it, decides each operation
in order and applies its records at once, so that the next one sees them; then one append carries the
records of the whole turn.  While it is under way the mailbox fills again: a busy shard makes large
appends and an idle one appends at once, without a timer.  When the append is durable the records settle
and the turn's answers go out.

A read is answered at once unless its share-partition has a change under way (its answer would show
what is not durable) or the log demands proof of ownership.  So reads do not wait for the writes of
other share-partitions, and go on while the log takes no writes.

Memory is a cache of the log.  If an append fails, or what we know stops fitting together, memory is
thrown away and the shard is loaded again; that is the one way to recover.

States: CLOSED -> LOADING -> ACTIVE -> LOADING ...; LOADING -> FAILED -> LOADING; any -> CLOSED.  A shard is
closed while it is not ours.  One that somebody else has taken stays so until it is elected again: two owners
that reopen by themselves fight for ever.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum

from coordinator.clock import Clock
from coordinator.errors import LogError, LogFenced, LogUnavailable
from coordinator.log.base import StateLog
from coordinator.metrics import Metrics
from coordinator.runtime.limits import RuntimeLimits
from coordinator.runtime.mailbox import Operation
from coordinator.shard import Facts, Result, Shard, SnapshotPolicy
from coordinator.topics import TopicDirectory
from protocol.errors import ErrorCode
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.state_records import SharePartitionKey, StateRecord, encode_record

_logger = logging.getLogger(__name__)


class Status(StrEnum):
    """Life cycle of a shard here."""

    LOADING = "LOADING"
    ACTIVE = "ACTIVE"
    FAILED = "FAILED"
    CLOSED = "CLOSED"


class ShardRunner:
    """Runs one shard on the event loop, without a task of its own. Made and closed by `Runtime`."""

    def __init__(
        self,
        state_partition: int,
        *,
        log: StateLog,
        clock: Clock,
        topics: TopicDirectory,
        metrics: Metrics,
        policy: SnapshotPolicy,
        limits: RuntimeLimits,
        reload: Callable[["ShardRunner"], None],
        may_read: Callable[[], bool] = lambda: True,
        taken: Callable[[int], None] = lambda state_partition: None,
    ) -> None:
        self.state_partition = state_partition
        self.status = Status.CLOSED
        # Whether it should be ours: loading goes on only as long as it should.
        self.elected = False
        self.failure: str | None = None
        self.shard = Shard(state_partition, policy)
        self.owner_epoch = 0
        self.load_ms = 0
        self.loaded_records = 0
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._clock = clock
        self._topics = topics
        self._metrics = metrics
        self._policy = policy
        self._limits = limits
        self._reload = reload
        self._may_read = may_read
        self._taken = taken
        self._mailbox: list[Operation] = []
        self._turn_planned = False
        # The append under way: its records, who waits for it, and the share-partitions it changes.
        self._appending: list[StateRecord] | None = None
        self._append_began_s = 0.0
        self._append_bytes = 0
        self._waiting: list[tuple[Operation, Result]] = []
        self._changing: set[SharePartitionKey] = set()
        # Share-partitions with an operation in the mailbox: a read of one has to queue behind it.
        self._queued: set[SharePartitionKey] = set()
        self._next_log_offset = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._renewal_asked = False

    # Operations come in.

    def submit(self, operation: Operation) -> None:
        """Take an operation; it is answered exactly once, later or within this call."""
        if self.status is Status.CLOSED:
            operation.refuse(ErrorCode.NOT_COORDINATOR, "This coordinator does not own the share-partition.")
        elif len(self._mailbox) >= self._limits.mailbox_operations_max:
            operation.refuse(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "Too many operations wait for this shard; try again."
            )
        elif self.status is not Status.ACTIVE:
            self._enqueue(operation)
        elif self._appending is None:
            self._enqueue(operation)
            self._plan_turn()
        elif operation.writes or self._log.reads_need_proof or not self._answer_early(operation):
            self._enqueue(operation)

    def _enqueue(self, operation: Operation) -> None:
        self._mailbox.append(operation)
        self._queued.add(operation.key)

    def _answer_early(self, operation: Operation) -> bool:
        """Answer a read of a share-partition that nothing under way or waiting changes; else False."""
        if operation.key in self._changing or operation.key in self._queued:
            return False
        result = self._decide(operation)
        if result is not None:
            if result.records:
                return False
            operation.answer(result.answer)
        return True

    # Turns.

    def _turn(self) -> None:
        """Decide what waits, apply it, and append it in one go."""
        self._turn_planned = False
        if self.status is not Status.ACTIVE or self._appending is not None or not self._mailbox:
            return
        operations = self._take()
        log_accepts_writes = self._log.health() is None
        now_ms = self._clock.now_ms()
        records: list[StateRecord] = []
        encoded: list[tuple[bytes, bytes | None]] = []
        append_bytes = 0
        for operation in operations:
            if operation.writes and not log_accepts_writes:
                operation.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE, self._log_refuses())
                continue
            result = self._decide(operation, now_ms)
            if result is None:
                continue
            if operation.decide is Shard.write_state or (
                result.records and operation.decide is Shard.read_state
            ):
                self._metrics.write_operation()
            if result.records and not log_accepts_writes:
                operation.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE, self._log_refuses())
                continue
            for record in result.records:
                self.shard.apply(record, now_ms)
                key_bytes, value_bytes = encode_record(record)
                encoded.append((key_bytes, value_bytes))
                append_bytes += len(key_bytes) + len(value_bytes or b"")
                records.append(record)
                self._changing.add(record.key)
            if result.records or self._log.reads_need_proof or operation.key in self._changing:
                self._waiting.append((operation, result))
            else:
                operation.answer(result.answer)
        if records or self._waiting:
            self._append(records, encoded, append_bytes, now_ms)
        elif self._mailbox:
            self._plan_turn()

    def _take(self) -> list[Operation]:
        operations = self._mailbox
        most = self._limits.operations_per_append_max
        if len(operations) <= most:
            self._mailbox = []
            self._queued.clear()
            return operations
        self._mailbox = operations[most:]
        self._queued = {operation.key for operation in self._mailbox}
        return operations[:most]

    def _plan_turn(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            self._loop.call_soon(self._turn)

    def _decide(self, operation: Operation, now_ms: int | None = None) -> Result | None:
        """Decide one operation; None if it is dropped or already answered."""
        if operation.origin is not None and operation.origin.gone:
            return None
        if self._loop.time() - operation.received_s > self._limits.request_age_max_s:
            # Its sender has given up by now and may have written something else since.
            operation.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The request waited too long; try again.")
            return None
        key = operation.key
        facts = Facts(
            self._clock.now_ms() if now_ms is None else now_ms,
            self._topics.knows(key.topic_id, key.partition),
        )
        try:
            return operation.decide(self.shard, key, operation.unit, facts)
        except Exception:
            # Deciding changes nothing, so a defect in it harms this one request only.
            _logger.exception("deciding an operation on %s failed", key)
            operation.refuse(
                ErrorCode.UNKNOWN_SERVER_ERROR, "The coordinator failed to decide this operation."
            )
            return None

    # Appends.

    def _append(
        self,
        records: list[StateRecord],
        encoded: list[tuple[bytes, bytes | None]],
        append_bytes: int,
        now_ms: int,
    ) -> None:
        self._appending = records
        self._append_began_s = self._loop.time()
        self._append_bytes = append_bytes
        self._quiet.clear()
        self._log.append(self.state_partition, encoded, now_ms, self._appended)

    def _appended(self, base_offset: int, error: LogError | None) -> None:
        """Settle what became durable and answer for it; or throw memory away."""
        records, waiting = self._appending, self._waiting
        assert records is not None, "the log answered an append that nobody made"
        self._appending, self._waiting = None, []
        self._changing.clear()
        self._quiet.set()
        self._metrics.append_done(
            len(records), self._append_bytes, self._loop.time() - self._append_began_s, error is not None
        )
        if error is None and records and base_offset != self._next_log_offset:
            error = LogError(f"an append landed at {base_offset}, expected {self._next_log_offset}")
        if self.status is not Status.ACTIVE:
            if error is None:
                self._answer_all(waiting, appended=bool(records))
            else:
                self._refuse_all(waiting, ErrorCode.NOT_COORDINATOR, f"The shard was closed: {error}")
            return
        if error is not None:
            self._recover(error, waiting)
            return
        self._settle(records, base_offset)
        self._answer_all(waiting, appended=bool(records))
        if self._renewal_asked:
            self.renew()
        elif self._mailbox:
            self._plan_turn()

    def _answer_all(self, waiting: list[tuple[Operation, Result]], *, appended: bool) -> None:
        """Give answers that the log has confirmed; but no state while somebody else may have been elected.

        Records at their place in the log prove that nobody else wrote before them.  Without any, the proof is
        only as good as the broker that gave it, which may be cut off: then the lease has to bound it.  That
        goes for writes, too: that there was nothing to write, or why it was refused, is what the state says.
        """
        if appended or self._may_read():
            for operation, result in waiting:
                operation.answer(result.answer)
            return
        self._refuse_all(
            waiting,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "This coordinator has not heard of the others for too long to tell what the state is.",
        )

    def _settle(self, records: list[StateRecord], base_offset: int) -> None:
        for log_offset, record in enumerate(records, base_offset):
            self.shard.settle(record, log_offset)
            if isinstance(record.value, ShareSnapshotValue):
                # Only a job leaves the creation time of the state as it was.
                by_job = record.value.create_timestamp != record.value.write_timestamp
                self._metrics.snapshot_written("job" if by_job else "request")
        if records:
            self._next_log_offset = base_offset + len(records)

    def _recover(self, error: LogError, waiting: list[tuple[Operation, Result]]) -> None:
        """Answer that nothing is known to be stored, and load the shard again from its log, if it is ours."""
        if isinstance(error, LogFenced):
            self._refuse_all(waiting, ErrorCode.NOT_COORDINATOR, str(error))
            self.fenced(error)
            return
        _logger.warning("shard %d reloads: %s", self.state_partition, error)
        if isinstance(error, LogUnavailable):
            self._refuse_all(waiting, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        else:
            self._refuse_all(waiting, ErrorCode.NOT_COORDINATOR, f"The outcome is unknown: {error}")
        self._reload(self)

    @staticmethod
    def _refuse_all(waiting: list[tuple[Operation, Result]], error_code: ErrorCode, message: str) -> None:
        for operation, _ in waiting:
            operation.refuse(error_code, message)

    def _log_refuses(self) -> str:
        return f"The log takes no writes: {self._log.health()}"

    # Loading and closing.

    def begin_loading(self) -> None:
        """Forget everything but the mailbox; operations are parked until `loaded` or `failed`."""
        assert self._appending is None, "a shard is not loaded under its own append"
        self.status = Status.LOADING
        self.failure = None
        self._renewal_asked = False
        self.shard = Shard(self.state_partition, self._policy)

    def loaded(self, shard: Shard, next_log_offset: int, records: int, load_ms: int) -> None:
        """Start serving from the state that was replayed into a shard, unless it is out of date by now."""
        if self.shard is not shard or self.status is not Status.LOADING:
            return
        self.status = Status.ACTIVE
        self.load_ms = load_ms
        self.loaded_records = records
        self._next_log_offset = next_log_offset
        if self._mailbox:
            self._plan_turn()

    def failed(self, reason: str) -> None:
        """Note that loading failed; operations stay parked for the next attempt, or expire."""
        if self.status is Status.LOADING:
            self.status = Status.FAILED
            self.failure = reason

    def renew(self) -> None:
        """Own and load the shard anew, as soon as no append is under way."""
        self._renewal_asked = self._appending is not None
        if self.status is Status.ACTIVE and self._appending is None:
            self._reload(self)

    def close(self, reason: str = "This coordinator is stopping.") -> None:
        """Answer what waits with NOT_COORDINATOR; what an append under way carries, as the log tells."""
        self.status = Status.CLOSED
        self.elected = False
        waiting, self._mailbox = self._mailbox, []
        self._queued.clear()
        for operation in waiting:
            operation.refuse(ErrorCode.NOT_COORDINATOR, reason)

    def fenced(self, error: LogFenced) -> None:
        """Close the shard because somebody else owns it, and forget its state, which is theirs to change."""
        _logger.warning("shard %d is closed: %s", self.state_partition, error)
        self.close(str(error))
        self.forget(str(error))
        self._taken(self.state_partition)

    def forget(self, failure: str | None = None) -> None:
        """Drop the state of a shard that is closed; `failure` is why that should worry somebody."""
        self.failure = failure
        self.shard = Shard(self.state_partition, self._policy)

    async def quiet(self) -> None:
        """Wait until no append is under way."""
        await self._quiet.wait()

    def expire(self) -> None:
        """Refuse what has waited too long; called by the runtime's ticker."""
        now_s = self._loop.time()
        if self.append_is_overdue:
            waiting, self._waiting = self._waiting, []
            self._refuse_all(
                waiting,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "The log did not confirm in time; the write may still be stored.",
            )
        if self.status is Status.ACTIVE:
            longest_s = self._limits.write_timeout_s
            code, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, "The log is slow; try again."
        else:
            longest_s = self._limits.load_wait_s
            code, message = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "The shard is loading; try again."
        expired = [operation for operation in self._mailbox if now_s - operation.received_s > longest_s]
        if expired:
            self._mailbox = [
                operation for operation in self._mailbox if now_s - operation.received_s <= longest_s
            ]
            for operation in expired:
                operation.refuse(code, message)

    @property
    def append_is_under_way(self) -> bool:
        """True while the log has not confirmed an append."""
        return self._appending is not None

    @property
    def append_is_overdue(self) -> bool:
        """True while the log has not confirmed an append in the time that a write may take."""
        return (
            self._appending is not None
            and self._loop.time() - self._append_began_s > self._limits.write_timeout_s
        )

    @property
    def next_log_offset(self) -> int:
        """The log offset that the next record gets."""
        return self._next_log_offset
