"""What can be carried out by another coordinator: an operation that knows the request it came with."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from coordinator.runtime import Operation
from protocol.errors import ErrorCode

# What a share-partition takes in a request, besides its state batches.
_PART_BYTES = 40


class ClientRequest(Protocol):
    """A client's request while its share-partitions are routed."""

    def not_coordinator(self, operation: "ForwardableOperation") -> None:
        """Take an operation back that this coordinator does not carry out: somebody else may."""
        ...


class ForwardableOperation(Operation):
    """An operation that is on its way as long as it has a `call`, and is answered or refused without one.

    While there is one, `refuse` with NOT_COORDINATOR calls `call.not_coordinator` instead of answering.
    """

    __slots__ = ("call",)

    call: ClientRequest | None


class ErrorReason(NamedTuple):
    """Why something was not carried out: what its sender is told if it stays so."""

    error_code: ErrorCode
    message: str


def refuse(operations: Iterable[ForwardableOperation], reason: ErrorReason) -> None:
    """Answer those that have no answer yet with an error."""
    for operation in operations:
        if operation.call is not None:
            operation.call = None
            operation.refuse(*reason)


def is_abandoned(operation: ForwardableOperation) -> bool:
    """Tell whether who asked has gone."""
    return operation.origin is not None and operation.origin.disconnected


def operation_bytes(operation: ForwardableOperation) -> int:
    """Return about how many bytes an operation takes in a request."""
    return sum(_PART_BYTES + len(getattr(part, "state_batches", b"")) for part in operation.unit)
