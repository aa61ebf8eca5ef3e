"""Operations that can be forwarded, each with a reference to its client request."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from coordinator.serve.runtime import Operation
from protocol.errors import ErrorCode

# Estimated request bytes of a share-partition without its state batches.
_PART_BYTES = 40


class ClientRequest(Protocol):
    """A client request whose operations are being routed."""

    def on_not_coordinator(self, operation: "ForwardableOperation", message: str) -> None:
        """Route an operation again: the runtime refused it because it did not own its shard."""


class ForwardableOperation(Operation):
    """An operation that may be forwarded; `call` is set until the operation has a response.

    While `call` is set, `refuse` with NOT_COORDINATOR calls `call.on_not_coordinator` instead of answering.
    """

    __slots__ = ("call",)

    call: ClientRequest | None


class ErrorReason(NamedTuple):
    """The error response of an operation that could not be routed."""

    error_code: ErrorCode
    message: str


def refuse_operations(operations: Iterable[ForwardableOperation], reason: ErrorReason) -> None:
    """Refuse all operations that have no response yet."""
    for operation in operations:
        if operation.call is not None:
            operation.call = None
            operation.refuse(*reason)


def is_abandoned(operation: ForwardableOperation) -> bool:
    return operation.origin is not None and operation.origin.disconnected


def operation_bytes(operation: ForwardableOperation) -> int:
    """Return the estimated bytes that an operation takes in a forwarded request."""
    return sum(_PART_BYTES + len(getattr(part, "state_batches", b"")) for part in operation.unit)
