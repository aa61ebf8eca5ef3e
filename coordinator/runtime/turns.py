"""Group commit of one shard: decide queued operations in order, append their records together, then answer.

Operations queue in a mailbox. A *turn* takes all of them, decides each in order and applies its records at
once, so that the next operation sees them. One append carries the records of the whole turn. Meanwhile the
mailbox fills again, so a busy shard makes large appends and an idle one appends at once, without a timer.

A read is answered at once unless its share-partition has a change in flight or the lease is over. Without a
lease it waits for the next append, or for one that is made to renew the lease: if that is in the log, no other
process was the owner when the read arrived.
The compiled module (`coordinator.hot`), if present, executes turns that begin with a plain write.
"""

import asyncio
import logging

from coordinator import hot
from coordinator.clock import Clock
from coordinator.errors import LogError, LogOutcomeUnknown, LogUnavailable
from coordinator.hot.fields import ShardFields
from coordinator.log.base import AppendDone, StateLog
from coordinator.metrics import Metrics
from coordinator.runtime.completion import answer, answer_all, refuse, refuse_all, report_failure
from coordinator.runtime.limits import RuntimeLimits
from coordinator.runtime.mailbox import Operation
from coordinator.runtime.rounds import Rounds
from coordinator.runtime.status import Status
from coordinator.runtime.turn import Encoded, Turn, is_unit, size_bytes, unit_bytes
from coordinator.shard import Facts, Result, Shard, SnapshotPolicy
from coordinator.topics import TopicDirectory
from protocol.errors import ErrorCode
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.state_records import SharePartitionKey, StateRecord, encode_record

_logger = logging.getLogger(__name__)


class Turns(ShardFields):
    """The half of a `ShardRunner` that carries operations out, while the shard is there to do it."""

    __slots__ = (
        "_changing_seen",
        "_clock",
        "_limits",
        "_log",
        "_loop",
        "_metrics",
        "_queued",
        "_topics",
        "_undecided",
    )

    def __init__(
        self,
        state_partition: int,
        *,
        rounds: Rounds,
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
        self._rounds = rounds
        self._log = log
        self._clock = clock
        self._topics = topics
        self._metrics = metrics
        self._limits = limits
        self._mailbox: list[Operation] = []
        self._turn_planned = False
        # The append under way: its records, who waits for it, and the share-partitions it changes.
        self._appending: list[StateRecord | None] | None = None
        self._append_began_s = 0.0
        self._append_bytes = 0
        self._waiting: list[tuple[Operation, Result]] = []
        self._changing: set[SharePartitionKey] = set()
        # Share-partitions with an operation in the mailbox: a read of one has to queue behind it.
        self._queued: set[SharePartitionKey] = set()
        # Only reads ask for these two: so many of who waits and of the mailbox have been looked at for them.
        self._changing_seen = self._queued_seen = 0
        # What a turn that failed had not come to, or failed at.
        self._undecided: list[Operation] = []
        self._next_log_offset = 0
        # Is set when the append under way is over; only there when somebody waits for that.
        self._quiet: asyncio.Event | None = None
        # Whether a read was answered since the lease was renewed last.
        self._reads_come = False
        self._done: AppendDone = self._appended
        if hot.compiled is not None:
            self._done = hot.compiled.Appended(
                self, Status.ACTIVE, self._loop.time, *metrics.append_tallies()
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
        elif len(self._mailbox) >= self._limits.mailbox_operations_max:
            refuse(
                operation,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "Too many operations wait for this shard; try again.",
            )
        elif self.status is not Status.ACTIVE:
            self._mailbox.append(operation)
        elif operation.writes or not self._is_leased() or not self._answer_early(operation):
            self._mailbox.append(operation)
            if self._appending is None:
                self._plan_turn()

    def _is_leased(self) -> bool:
        """Tell whether reads may be answered from memory; if that cannot be told, they may not."""
        self._reads_come = True
        try:
            return self._log.lease_left_s(self.state_partition) > 0
        except Exception as failure:
            report_failure("looking at the lease failed", failure)
            return False

    def _is_queued(self, key: SharePartitionKey) -> bool:
        self._queued.update(operation.key for operation in self._mailbox[self._queued_seen :])
        self._queued_seen = len(self._mailbox)
        return key in self._queued

    def _is_changing(self, key: SharePartitionKey) -> bool:
        self._note_changing()
        return key in self._changing

    def _note_changing(self) -> None:
        """Note what those who wait change: whoever waits has records, or asked for what has."""
        self._changing.update(operation.key for operation, _ in self._waiting[self._changing_seen :])
        self._changing_seen = len(self._waiting)

    def _forget_queued(self) -> None:
        """Note that the mailbox is another one now."""
        self._queued.clear()
        self._queued_seen = 0

    def _forget_changing(self) -> None:
        """Note that no append is under way."""
        self._changing.clear()
        self._changing_seen = 0

    def _answer_early(self, operation: Operation) -> bool:
        """Answer a read of a share-partition that nothing under way or waiting changes; else False."""
        if self._is_changing(operation.key) or self._is_queued(operation.key):
            return False
        result = self._decide(operation)
        if result is not None:
            if result.records:
                return False
            answer(operation, result.answer)
        return True

    # Turns.

    def waiting(self) -> int:
        """Return how many operations wait for the turn."""
        return len(self._mailbox)

    def turn(self) -> None:
        """Decide what waits, apply it, and append it in one go."""
        self._turn_planned = False
        if self.status is not Status.ACTIVE or self._appending is not None or not self._mailbox:
            return
        operations, self._mailbox = self._mailbox, []
        self._forget_queued()
        limits = self._limits
        turn = Turn(self._clock.now_ms(), self._log.health() is None)
        done = 0
        try:
            for operation in operations[: limits.operations_per_append_max]:
                self._carry_out(turn, operation)
                done += 1
                if turn.append_bytes >= limits.bytes_per_append_max:
                    break
        except BaseException:
            self._undecided = operations[done:]
            raise
        self._put_back(operations[done:])
        if turn.records or self._waiting:
            self._append(turn)
        elif self._mailbox:
            self._plan_turn()

    def turn_failed(self, failure: Exception) -> None:
        """Recover from a turn that raised this in the middle: a defect of ours.

        What it had applied is not on the log, so memory is thrown away; nobody was answered from it.
        """
        self._appending = None
        self._forget_changing()
        waiting, self._waiting = self._waiting, []
        undecided, self._undecided = self._undecided, []
        waiting += [(operation, Result((), None)) for operation in undecided]
        if self.status is Status.ACTIVE:
            self._recover(LogUnavailable(f"a turn failed: {failure!r}"), waiting)
        else:
            self._refuse_all(waiting, ErrorCode.NOT_COORDINATOR, "The shard was closed.")

    def _put_back(self, operations: list[Operation]) -> None:
        """Queue operations for which an append has no room in front of those that arrived meanwhile."""
        if operations:
            self._mailbox[:0] = operations
            self._forget_queued()

    def _plan_turn(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            self._rounds.plan(self)

    def _carry_out(self, turn: Turn, operation: Operation) -> None:
        """Decide one operation and apply it; answer it now if there is nothing to wait for."""
        if operation.writes and not turn.accepts_writes:
            refuse(operation, ErrorCode.COORDINATOR_NOT_AVAILABLE, self._log_refuses())
            return
        result = self._decide(operation, turn.now_ms)
        if result is None:
            return
        if operation.decide is Shard.write_state or (result.records and operation.decide is Shard.read_state):
            self._metrics.write_operations(1)
        if result.records and not turn.accepts_writes:
            refuse(operation, ErrorCode.COORDINATOR_NOT_AVAILABLE, self._log_refuses())
            return
        encoded = self._encoded(operation, result)
        if encoded is None:
            return
        for record in result.records:
            self.shard.apply(record, turn.now_ms)
            self._changing.add(record.key)
        turn.add(result.records, encoded, is_unit=is_unit(operation, result))
        if result.records or not self._is_leased() or self._is_changing(operation.key):
            self._waiting.append((operation, result))
        else:
            answer(operation, result.answer)

    def _decide(self, operation: Operation, now_ms: int | None = None) -> Result | None:
        """Decide one operation; None if it is dropped or already answered."""
        if operation.origin is not None and operation.origin.gone:
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
            facts = Facts(now_ms, self._topics.knows(key.topic_id, key.partition))
            return operation.decide(self.shard, key, operation.unit, facts)
        except Exception:
            # Deciding changes nothing, so a defect in it harms this one request only.
            _logger.exception("deciding an operation on %s failed", key)
            refuse(
                operation,
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "The coordinator failed to decide this operation.",
            )
            return None

    def _encoded(self, operation: Operation, result: Result) -> list[Encoded] | None:
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

    def _append(self, turn: Turn) -> None:
        self._appending = turn.records
        self._append_began_s = self._loop.time()
        self._append_bytes = turn.append_bytes
        self._log.append(self.state_partition, turn.encoded, turn.now_ms, self._done, turn.units)

    def _renew_lease(self) -> None:
        """Renew the lease if that is due, and no append does it anyway."""
        idle = self.status is Status.ACTIVE and self._appending is None and not self._mailbox
        if idle and self._log.renewal_due(self.state_partition, read=self._reads_come):
            self._append(Turn(self._clock.now_ms(), accepts_writes=True))

    def _appended(self, base_offset: int, error: LogError | None) -> None:
        """Settle what became durable and answer for it; or throw memory away."""
        records, waiting = self._appending, self._waiting
        assert records is not None, "the log answered an append that nobody made"
        self._appending, self._waiting = None, []
        self._forget_changing()
        if self._quiet is not None:
            self._quiet.set()
            self._quiet = None
        seconds = self._loop.time() - self._append_began_s
        self._metrics.append_done(len(records), self._append_bytes, seconds, error)
        if error is None and records and base_offset != self._next_log_offset:
            error = LogError(f"an append landed at {base_offset}, expected {self._next_log_offset}")
        if self.status is not Status.ACTIVE:
            if error is None:
                answer_all(waiting)
            else:
                self._refuse_all(waiting, ErrorCode.NOT_COORDINATOR, f"The shard was closed: {error}")
            return
        if error is not None:
            self._recover(error, waiting)
            return
        if not self._settle_or_recover(records, base_offset, waiting):
            return
        answer_all(waiting)
        if self._mailbox:
            self._plan_turn()

    def _settle_or_recover(
        self,
        records: list[StateRecord | None],
        base_offset: int,
        waiting: list[tuple[Operation, Result]],
    ) -> bool:
        """Settle durable records; False: that failed, and the shard is loaded again from its log."""
        try:
            self._settle(records, base_offset)
        except Exception as failure:
            report_failure("settling the records of an append failed", failure)
            self._recover(LogOutcomeUnknown(f"settling failed: {failure!r}"), waiting)
            return False
        return True

    def _settle(self, records: list[StateRecord | None], base_offset: int) -> None:
        self._reads_come = False
        self._next_log_offset = base_offset + len(records)
        if not records:
            return
        if records.count(None) < len(records):
            for log_offset, record in enumerate(records, base_offset):
                if record is not None:
                    self._settle_one(record, log_offset)
        self.shard.settle_updates(self._next_log_offset)

    def _settle_one(self, record: StateRecord, log_offset: int) -> None:
        self.shard.settle(record, log_offset)
        if isinstance(record.value, ShareSnapshotValue):
            # Only a job leaves the creation time of the state as it was.
            by_job = record.value.create_timestamp != record.value.write_timestamp
            self._metrics.snapshot_written("job" if by_job else "request")

    @staticmethod
    def _refuse_all(waiting: list[tuple[Operation, Result]], error_code: ErrorCode, message: str) -> None:
        refuse_all((operation for operation, _ in waiting), error_code, message)

    def _log_refuses(self) -> str:
        return f"The log takes no writes: {self._log.health()}"

    # What the other half does.

    def _recover(self, error: LogError, waiting: list[tuple[Operation, Result]]) -> None:
        """Answer that nothing is known to be stored, and load the shard again from its log, if it is ours."""
        raise NotImplementedError
