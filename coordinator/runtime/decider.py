"""Decide single operations: all of them without the compiled write kernel, otherwise those it leaves."""

import asyncio
import logging

from coordinator.clock import Clock
from coordinator.fastpath.commit_batch import Encoded, size_bytes, unit_bytes
from coordinator.log.base import StateLog
from coordinator.runtime.completion import refuse
from coordinator.runtime.limits import RuntimeLimits
from coordinator.runtime.operations import Operation
from coordinator.shard import CoordinatorResult, RequestContext, Shard
from coordinator.topics import TopicDirectory
from protocol.errors import ErrorCode
from protocol.state_records import encode_record

_logger = logging.getLogger(__name__)


class Decider:
    """Decides the operations of all shards; it changes none of them."""

    def __init__(self, *, log: StateLog, clock: Clock, topics: TopicDirectory, limits: RuntimeLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._clock = clock
        self._topics = topics
        self._limits = limits

    def now_ms(self) -> int:
        """Return the time of records, Unix time in milliseconds."""
        return self._clock.now_ms()

    def decide(
        self, shard: Shard, operation: Operation, now_ms: int | None = None
    ) -> CoordinatorResult | None:
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
            facts = RequestContext(now_ms, self._topics.contains(key.topic_id, key.partition))
            return operation.decide(shard, key, operation.unit, facts)
        except Exception:
            # Deciding changes nothing, so a defect in it harms this one request only.
            _logger.exception("deciding an operation on %s failed", key)
            refuse(
                operation,
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "The coordinator failed to decide this operation.",
            )
            return None

    def encode(self, operation: Operation, result: CoordinatorResult) -> list[Encoded] | None:
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


def is_unit(operation: Operation, result: CoordinatorResult) -> bool:
    """Tell whether all records are of one share-partition, as a client's are: they are stored all or none."""
    return all(record.key == operation.key for record in result.records)
