"""Operations: the units of work that wait in the queue of a shard.

An operation is one unit of one request (all of it that concerns one share-partition), or a job of our
own.  It is decided in order of arrival and answered exactly once, by calling `answer`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from coordinator.fastpath.operation_queue import QueuedOperation
from coordinator.shard import CoordinatorResult, RequestContext, Shard
from protocol.errors import ErrorCode
from protocol.state_records import SharePartitionKey

Decide = Callable[[Shard, SharePartitionKey, Sequence[Any], RequestContext], CoordinatorResult]


class Origin(Protocol):
    """The sender of an operation. If it is disconnected, the operation is dropped before it begins."""

    @property
    def disconnected(self) -> bool:
        """Return whether the sender no longer waits for the response."""
        ...


class FastPathWrites(Protocol):
    """Carries fast-path writes out, and counts those that it answered.

    A request with more than `elements_max` topics and partitions is none of them, nor is one with more than
    `batches_max` state batches for a partition.
    """

    elements_max: int
    batches_max: int

    def take(self, frame: bytes, origin: Origin, respond: Callable[[bytes], None]) -> bool:
        """Carry out a fast-path write and return True; do nothing with other requests and return False.

        `frame` begins with the request header; `respond` is given the answer with its size, once.
        """
        ...


class Operation(QueuedOperation):
    """One unit of work for one share-partition.

    `decide` is a method of `Shard`; `writes` says whether it may leave a record of a client's making
    (a write is never begun while the log refuses writes); `received_s` is loop time.  Subclasses give
    it a way to answer.
    """

    __slots__ = ("decide", "decided", "key", "origin", "received_s", "unit")

    def __init__(
        self,
        decide: Decide,
        key: SharePartitionKey,
        unit: Sequence[Any],
        *,
        writes: bool,
        origin: Origin | None,
        received_s: float,
    ) -> None:
        self.decide = decide
        self.decided: Any = None
        self.key = key
        self.unit = unit
        self.writes = writes
        self.origin = origin
        self.received_s = received_s

    def answer(self, result: Any) -> None:
        """Give the answer that the shard decided."""
        raise AssertionError("an operation must know how to answer")

    def answer_decided(self) -> None:
        """Give the answer that was decided before the append."""
        self.answer(self.decided)

    def refuse(self, error_code: ErrorCode, error_message: str) -> None:
        """Give an error as the answer: nothing of this operation is known to be stored."""
        raise AssertionError("an operation must know how to refuse")
