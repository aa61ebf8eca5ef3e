"""What can be carried out by another coordinator: an operation that knows the request it came with."""

from typing import Protocol

from coordinator.runtime import Operation


class Call(Protocol):
    """A client's request while its share-partitions are routed."""

    def not_coordinator(self, operation: "Forwardable") -> None:
        """Take an operation back that this coordinator does not carry out: somebody else may."""
        ...


class Forwardable(Operation):
    """An operation on its way, if it has a `call`; without one it is carried out here or not at all.

    `refuse` with NOT_COORDINATOR must call `call.not_coordinator` instead of answering, as long as there is a
    call.
    """

    __slots__ = ("call",)

    call: Call | None
