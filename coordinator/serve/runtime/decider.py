"""Compute responses and records of the operations that the compiled write kernel does not execute."""

import asyncio
import logging
from typing import NamedTuple

from coordinator.cluster.topics import TopicDirectory
from coordinator.fastpath.operation_queue import Encoded, size_bytes, unit_bytes
from coordinator.log.base import StateLog
from coordinator.metrics import Metrics
from coordinator.process.clock import Clock
from coordinator.serve.runtime.commit_scheduler import CommitScheduler
from coordinator.serve.runtime.limits import RuntimeLimits
from coordinator.serve.runtime.operations import Operation, refuse_operation
from coordinator.shard import CoordinatorResult, RequestContext, Shard, SnapshotPolicy
from protocol.errors import ErrorCode
from protocol.state_records import encode_record

_logger = logging.getLogger(__name__)


class Decider:
    """Computes the response and the records of an operation, without changing its shard."""

    def __init__(self, *, log: StateLog, clock: Clock, topics: TopicDirectory, limits: RuntimeLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._clock = clock
        self._topics = topics
        self._limits = limits

    def now_ms(self) -> int:
        """Return the Unix time in milliseconds, the timestamp of new records."""
        return self._clock.now_ms()

    def decide(
        self, shard: Shard, operation: Operation, now_ms: int | None = None
    ) -> CoordinatorResult | None:
        """Return the response and the records of an operation; None if it was dropped or refused."""
        if operation.origin is not None and operation.origin.disconnected:
            return None
        if self._loop.time() - operation.received_s > self._limits.request_age_max_s:
            # The broker has given up this request and may have sent another write since.
            refuse_operation(
                operation,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "The request waited too long; try again.",
            )
            return None
        key, now_ms = operation.key, self._clock.now_ms() if now_ms is None else now_ms
        try:
            context = RequestContext(now_ms, self._topics.contains(key.topic_id, key.partition))
            return operation.decide(shard, key, operation.unit, context)
        except Exception:
            # A decision changes no state, so this defect affects one operation only.
            _logger.exception("deciding an operation on %s failed", key)
            refuse_operation(
                operation,
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "The coordinator failed to decide this operation.",
            )
            return None

    def encode_records(self, operation: Operation, result: CoordinatorResult) -> list[Encoded] | None:
        """Encode the records of an operation; return None and refuse it if the log cannot store them.

        With a record above the size limit, the append of the whole batch would fail.
        """
        try:
            encoded = list(map(encode_record, result.records))
        except Exception:
            _logger.exception("records of an operation on %s cannot be encoded", operation.key)
            refuse_operation(operation, ErrorCode.UNKNOWN_SERVER_ERROR, "The coordinator cannot store this.")
            return None
        largest = (
            unit_bytes(encoded) if is_atomic(operation, result) else max(map(size_bytes, encoded), default=0)
        )
        if largest > self._log.record_bytes_max:
            # Kafka responds with this error too.
            refuse_operation(
                operation, ErrorCode.UNKNOWN_SERVER_ERROR, "The record is larger than the log allows."
            )
            return None
        return encoded


class ShardServices(NamedTuple):
    """The objects that all shards of a process share."""

    scheduler: CommitScheduler
    log: StateLog
    decider: Decider
    metrics: Metrics
    policy: SnapshotPolicy
    limits: RuntimeLimits


# The work of an operation in Python code, in units of `CommitContext.work_left`:
# of the operation, of each of its records, and bytes per unit of copied states and of written batches.
_OPERATION_WORK, _RECORD_WORK = 4, 12
_STATE_BYTES_PER_UNIT, _WRITTEN_BYTES_PER_UNIT = 4096, 16


def work_units(shard: Shard, operation: Operation, records: int) -> int:
    """Return the work of an operation in Python code that created this number of records."""
    copied = len(shard.packed_state(operation.key) or b"") // _STATE_BYTES_PER_UNIT
    written = 0
    if operation.decide is Shard.write_state:
        written = sum([len(part.state_batches) for part in operation.unit]) // _WRITTEN_BYTES_PER_UNIT
    return _OPERATION_WORK + _RECORD_WORK * max(1, records) + copied + written + len(operation.unit)


def is_atomic(operation: Operation, result: CoordinatorResult) -> bool:
    """Return whether the log must store all records of an operation or none.

    An operation whose records all belong to its share-partition is atomic; a maintenance job is not.
    """
    return all(record.key == operation.key for record in result.records)
