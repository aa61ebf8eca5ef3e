"""Record the requests and responses of all clients of a simulation, in their order.

An `Operation` has the entries of one request for one share-partition. The coordinator applies an operation
completely or not at all, and returns one result. The outcome of an operation is *known* if the response
contains a final result. The outcome is *unknown* after a lost connection, a timeout, or a retriable error. An
operation with an unknown outcome may take effect until its deadline. The deadline is the death of the process
that received the request, or the longest time that a request may wait there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import astuple

from protocol.errors import ErrorCode
from protocol.state_records import SharePartitionKey

INITIALIZE = "initialize"
READ = "read"
WRITE = "write"
DELETE = "delete"
SUMMARY = "summary"

# A point in time that is later than all others.
NEVER = (float("inf"), 0)

# Retriable errors after which the operation may have taken effect, or may take effect later.
DEFERRED = frozenset(
    {
        int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        int(ErrorCode.NOT_COORDINATOR),
    }
)
# The error message of a coordinator that does not own the shard and does not forward the operation.
NOT_OURS = "This coordinator does not own the share-partition."
# The error message of a coordinator that cannot forward an operation, because it knows no owner.
NO_OWNER = "The owner of the share-partition is not known."
# The error message of a coordinator that has forwarded an operation and received no response.
OWNER_SILENT = "The owner of the share-partition did not answer."
# Errors with an unknown outcome; the client library reports a missing response with the last codes.
UNSURE = DEFERRED | {int(ErrorCode.NETWORK_EXCEPTION), int(ErrorCode.REQUEST_TIMED_OUT)}


class Violation(AssertionError):
    """Raised if a guarantee is violated; the message contains the operations that violate it."""


def _request_signature(kind: str, parts: Sequence[Any]) -> object:
    return kind, tuple(astuple(part) for part in parts)


@dataclass(eq=False, slots=True)
class Operation:
    """The entries of one share-partition in one request, and the response.

    Times are pairs of virtual seconds and a number that orders equal times. `answer` is a PartitionResult, or
    None without a response.
    """

    number: int
    client: str
    kind: str
    key: SharePartitionKey
    parts: Sequence[Any]
    invoked: tuple[float, int]
    answered: tuple[float, int] | None = None
    answer: Any = None
    deadline: tuple[float, int] | None = None
    # Whether the receiving coordinator forwards the operation, possibly several times.
    forwarded: bool = False

    @property
    def error_code(self) -> int | None:
        """The error code of the response, or None."""
        return None if self.answer is None else int(self.answer.error_code)

    @property
    def known(self) -> bool:
        """Whether the outcome of the operation is known from its response."""
        return self.answer is not None and self.answer.error_code not in UNSURE

    @property
    def reached_wrong_coordinator(self) -> bool:
        """Whether no owner has received the operation, so that it cannot take effect.

        The value is False for a forwarded operation, because an earlier attempt may have reached the owner.
        """
        is_not_coordinator = self.error_code == int(ErrorCode.NOT_COORDINATOR)
        return is_not_coordinator and self.answer.error_message == NOT_OURS and not self.forwarded

    @property
    def accepted(self) -> bool:
        """Whether the response reports success."""
        return self.answer is not None and not self.answer.error_code

    @property
    def signature(self) -> object:
        """A value that is equal for operations with equal requests of one share-partition."""
        return _request_signature(self.kind, self.parts)

    def __str__(self) -> str:
        parts = " + ".join(str(part) for part in self.parts)
        if self.answer is not None:
            assert self.answered is not None
            outcome = f"{self.answered[0]:.6f} {self.answer}"
        else:
            outcome = "no answer"
        if not self.known and self.deadline is not None:
            outcome += f", may take effect until {self.deadline[0]:.6f}"
        return (
            f"#{self.number} {self.client} {self.kind} {self.key}: {self.invoked[0]:.6f} {parts} -> {outcome}"
        )


@dataclass
class History:
    """All operations of a simulation."""

    ops: list[Operation] = field(default_factory=list)
    # Whether coordinators forward operations to the owners.
    forwarding: bool = False
    # The times at which a coordinator gained or lost a shard, in seconds.
    owner_changes_s: list[float] = field(default_factory=list)
    # The number of operations that the limit on operations does not count: operations of polling readers, and
    # operations that no owner received.
    idle_ops: int = 0
    _order: int = 0
    _open: dict[int, Operation] = field(default_factory=dict)
    # The numbers of pending operations that a client may not have sent yet, so that they have no deadline.
    _held: set[int] = field(default_factory=set)

    def next_time(self, now_s: float) -> tuple[float, int]:
        """Return a point in time that is later than all previous ones."""
        self._order += 1
        return now_s, self._order

    def record_request(
        self,
        now_s: float,
        client: str,
        kind: str,
        key: SharePartitionKey,
        parts: Sequence[Any],
        *,
        held: bool = False,
    ) -> Operation:
        """Record an operation before it is sent. With `held`, the client may send the operation later."""
        number = len(self.ops)
        if self.forwarding:
            # Forwarded operations of one connection may overtake each other.
            client = f"{client}, {number}"
        op = self._add_operation(Operation(number, client, kind, key, tuple(parts), self.next_time(now_s)))
        op.forwarded = self.forwarding
        if held:
            self._held.add(op.number)
        return op

    def record_repetition(
        self, now_s: float, kind: str, key: SharePartitionKey, parts: Sequence[Any]
    ) -> None:
        """Record that a coordinator forwards pending operations again.

        The history contains the earlier attempt as a separate operation with an unknown outcome.
        """
        signature = _request_signature(kind, parts)
        for op in list(self._open.values()):
            if op.forwarded and op.answer is None and op.key == key and op.signature == signature:
                earlier = Operation(len(self.ops), f"{op.client} again", kind, key, op.parts, op.invoked)
                # `set_deadlines` compares this time.
                earlier.answered = self.next_time(now_s)
                self._add_operation(earlier)

    def _add_operation(self, op: Operation) -> Operation:
        self.ops.append(op)
        self._open[op.number] = op
        return op

    def record_response(self, now_s: float, op: Operation, result: Any) -> None:
        op.answered = self.next_time(now_s)
        op.answer = result
        self._held.discard(op.number)
        self.idle_ops += op.reached_wrong_coordinator
        if op.known:
            self._open.pop(op.number, None)

    def set_deadlines(self, now_s: float, older_than_s: float | None = None) -> None:
        """Set the deadline of operations with an unknown outcome to now.

        With `older_than_s`, only operations whose request or response is older than that get the deadline.
        The caller knows that these operations cannot take effect any more.
        """
        point = self.next_time(now_s)
        for op in list(self._open.values()):
            if op.number in self._held:
                continue
            since_s = (op.answered or op.invoked)[0]
            if older_than_s is None or since_s < older_than_s:
                op.deadline = point
                del self._open[op.number]

    def operations_by_key(self) -> Iterator[tuple[SharePartitionKey, list[Operation]]]:
        """Yield the operations of each share-partition, in the order of their requests."""
        keys: dict[SharePartitionKey, list[Operation]] = {}
        for op in self.ops:
            keys.setdefault(op.key, []).append(op)
        yield from keys.items()
