"""Operations: the units of work in the queue of a shard.

An operation is the part of a request for one share-partition, or a maintenance job. Operations are executed
in order of arrival, and each gets exactly one response, through `answer` or `refuse`.

If one of these callbacks raises an exception, only its own operation is affected. The failure is reported to
the exception handler of the event loop. The client of that operation gets no response, and its request times
out.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from coordinator.fastpath.operation_queue import QueuedOperation
from coordinator.shard import CoordinatorResult, RequestContext, Shard
from protocol.errors import ErrorCode
from protocol.state_records import SharePartitionKey

Decide = Callable[[Shard, SharePartitionKey, Sequence[Any], RequestContext], CoordinatorResult]


class OperationOrigin(Protocol):
    """The sender of an operation.

    If the sender is disconnected, the operation is dropped before it begins.
    """

    @property
    def disconnected(self) -> bool:
        """Return whether the sender no longer waits for the response."""


class FastPathExecutor(Protocol):
    """Executes and counts fast-path requests: writes, and reads that memory can answer now.

    A request is not a fast-path request if it has more than `elements_max` topics and partitions, if it
    writes more than `batches_max` state batches for one partition, or if the state batches to read take
    `response_bytes_max` bytes.
    """

    elements_max: int
    batches_max: int
    response_bytes_max: int

    def try_execute(
        self, frame: bytes, origin: OperationOrigin, respond: Callable[[bytes], None], received_s: float
    ) -> bool | None:
        """Execute a fast-path request and return True; ignore any other request and return False.

        Return None if a large write must be tried again in another iteration of the event loop.

        `frame` begins with the request header. `respond` is called once, with the response frame.
        """


class Operation(QueuedOperation):
    """The part of a request for one share-partition, or one step of a maintenance job.

    `decide` is the method of `Shard` that computes the response and the records. `unit` has the entries of
    the request for the share-partition. `writes` is true if a client's request may create a record; such an
    operation is refused while the log refuses writes. `received_s` is loop time. Subclasses send responses.
    """

    __slots__ = ("decide", "decided", "key", "origin", "received_s", "unit")

    def __init__(
        self,
        decide: Decide,
        key: SharePartitionKey,
        unit: Sequence[Any],
        *,
        writes: bool,
        origin: OperationOrigin | None,
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
        """Send the response that the shard computed."""
        raise AssertionError("an operation must define how it is answered")

    def answer_decided(self) -> None:
        """Send the response that was computed before the append."""
        self.answer(self.decided)

    def refuse(self, error_code: ErrorCode, error_message: str) -> None:
        """Send an error response. Records of this operation may have been stored nevertheless."""
        raise AssertionError("an operation must define how it is refused")


class AwaitableOperation(Operation):
    """A write of this process itself.

    The future `outcome` gets the answer and "", or after a refusal None and the reason.
    """

    __slots__ = ("outcome",)

    def __init__(self, decide: Decide, key: SharePartitionKey) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(decide, key, (), writes=True, origin=None, received_s=loop.time())
        self.outcome: asyncio.Future[tuple[Any, str]] = loop.create_future()

    def answer(self, result: Any) -> None:
        if not self.outcome.done():
            self.outcome.set_result((result, ""))

    def refuse(self, error_code: ErrorCode, error_message: str) -> None:
        if not self.outcome.done():
            self.outcome.set_result((None, error_message or error_code.name))


def send_response(operation: Operation, result: Any) -> None:
    try:
        operation.answer(result)
    except Exception as failure:
        report_failure("answering an operation failed", failure)


def refuse_operation(operation: Operation, error_code: ErrorCode, message: str) -> None:
    try:
        operation.refuse(error_code, message)
    except Exception as failure:
        report_failure("refusing an operation failed", failure)


def refuse_all(operations: Iterable[Operation], error_code: ErrorCode, message: str) -> None:
    for operation in operations:
        refuse_operation(operation, error_code, message)


def report_failure(message: str, failure: Exception) -> None:
    """Report a defect that affected one operation to the exception handler of the event loop."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": failure})
