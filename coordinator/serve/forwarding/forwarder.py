"""Route the share-partitions of requests to the coordinators that own them, and retry while owners change.

The forwarder splits a request by owner. Share-partitions of local shards go to the
runtime. The share-partitions of another coordinator are forwarded together in one request of the same API.

Temporary errors are an unknown owner, NOT_COORDINATOR, no connection, or no response. After a temporary
error, the operation on the share-partition waits: it is *held*. A held operation is routed again after a
short pause or when the assignment changes. A broker's request therefore waits only as long as a takeover
lasts. If the coordinator sent an error response instead, the broker would retry after two seconds.

If a forwarded request is not answered, it is sent again, so it may be executed twice. Brokers retry in the
same way (since Kafka 4.2), and the operations are idempotent. A write keeps the greatest delivery count and
state of each offset, and a repeated initialisation or deletion changes nothing. Repetition is safe only while
the broker still waits for the response. Requests older than `hold_s` are therefore not sent to an owner, and
a request that is not answered before `request_age_max_s` closes its connection.

A forwarded request is never forwarded again. If the receiver does not own the shard, it answers
NOT_COORDINATOR, and the sender keeps the request until it knows the owner.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from coordinator.client import ClientSecurity, ShareCoordinatorError, TimedOut
from coordinator.client.rpcs import RPC_BY_API_KEY, Rpc, make_request, results_by_key
from coordinator.cluster.ownership import Assignment, Replica
from coordinator.metrics import Metrics
from coordinator.serve.forwarding.limits import ForwardingLimits
from coordinator.serve.forwarding.operation import (
    ErrorReason,
    ForwardableOperation,
    is_abandoned,
    operation_bytes,
    refuse_operations,
)
from coordinator.serve.forwarding.peer_connections import PeerConnections
from coordinator.serve.runtime import Runtime
from protocol.errors import ErrorCode
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

_logger = logging.getLogger(__name__)

_NOT_OWNED_HERE = ErrorReason(ErrorCode.NOT_COORDINATOR, "This coordinator does not own the share-partition.")
_STOPPING = ErrorReason(ErrorCode.NOT_COORDINATOR, "This coordinator is stopping.")
_NO_OWNER = ErrorReason(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The owner of the share-partition is not known.")
_NO_RESPONSE = ErrorReason(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, "The owner of the share-partition did not answer."
)
_TOO_MANY_HELD = ErrorReason(
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    "Too many requests are waiting for the owners of their share-partitions.",
)
_TOO_MANY_IN_FLIGHT = ErrorReason(
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    "Too many requests to the owner of the share-partition are in flight.",
)
_NO_RESULT = ErrorReason(
    ErrorCode.UNKNOWN_SERVER_ERROR, "The owner's response does not contain the share-partition."
)
_DEFECT = ErrorReason(
    ErrorCode.UNKNOWN_SERVER_ERROR, "An internal error occurred while the request was forwarded to the owner."
)


class _RoutedRequest:
    """A client's request while its share-partitions are routed; implements `ClientRequest`."""

    __slots__ = ("_forwarder", "api_key", "group_id", "rpc")

    def __init__(self, forwarder: "Forwarder", api_key: int, group_id: str) -> None:
        self._forwarder = forwarder
        self.api_key = api_key
        self.group_id = group_id
        self.rpc: Rpc = RPC_BY_API_KEY[api_key]

    def on_not_coordinator(self, operation: ForwardableOperation, message: str) -> None:
        """Hold an operation that the runtime rejected with NOT_COORDINATOR.

        Records of the operation may have been stored nevertheless.
        """
        self._forwarder.hold_operation(self, operation, ErrorReason(ErrorCode.NOT_COORDINATOR, message))


class _HeldOperation(NamedTuple):
    """A held operation, and the error that it gets if it is not routed in time."""

    call: _RoutedRequest
    operation: ForwardableOperation
    why: ErrorReason


class _ForwardedRequest(NamedTuple):
    """A request in flight to another coordinator: the owner and the operations."""

    owner: Replica
    operations: Sequence[ForwardableOperation]


class Forwarder:
    """Routes operations to the local runtime or to other coordinators.

    All methods must be called on one event loop. While the forwarder is `active`, the service submits all
    requests except those that a coordinator has forwarded.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        instance: str,
        metrics: Metrics,
        limits: ForwardingLimits | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        """Create an inactive forwarder. `instance` is this coordinator's id in assignments."""
        self._security = security
        self.active = False
        self._runtime = runtime
        self._instance = instance
        self._metrics = metrics
        self._limits = limits or ForwardingLimits.for_runtime_limits(runtime.limits)
        self._loop = asyncio.get_running_loop()
        self._assignment: Assignment | None = None
        self._assignment_is_frozen = False
        self._closed = False
        self._peers: dict[str, PeerConnections] = {}
        self._in_flight_requests: dict[asyncio.Timeout, _ForwardedRequest] = {}
        self._held: list[_HeldOperation] = []
        self._retry_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.attach_forwarder(self)

    @property
    def held_operations(self) -> int:
        return len(self._held)

    @property
    def requests_in_flight(self) -> int:
        return sum(peer.in_flight for peer in self._peers.values())

    # For the service.

    def submit(self, api_key: int, operations: Sequence[ForwardableOperation]) -> None:
        """Route the operations of one request to their owners."""
        call = _RoutedRequest(self, api_key, operations[0].key.group_id)
        for operation in operations:
            operation.call = call
        self._route_operations(call, operations)

    # For ownership.

    def set_assignment(self, assignment: Assignment | None) -> None:
        """Use an assignment from now on. None means that the owners are unknown."""
        if assignment is None:
            if not self._assignment_is_frozen:
                self._assignment = None
            return
        self._assignment = assignment
        self._shorten_timeouts_of_former_owners()
        for peer in list(self._peers.values()):
            self._close_departed_peer(peer)
        if self._retry_timer is not None:
            # Route in the next iteration of the event loop, after the elections of this assignment.
            self._retry_timer.cancel()
            self._retry_timer = self._loop.call_later(0, self._route_held_operations)

    def freeze_assignment(self) -> None:
        """Keep the last assignment when it is revoked: this coordinator is leaving the group."""
        self._assignment_is_frozen = True

    async def close(self) -> None:
        """Refuse all operations that have no response yet, and close all connections."""
        self._closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        held, self._held = self._held, []
        refuse_operations((operation.operation for operation in held), _STOPPING)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))

    # Routing.

    def _route_operations(self, call: _RoutedRequest, operations: Iterable[ForwardableOperation]) -> None:
        """Submit each operation to the owner of its shard; hold it if there is no owner."""
        theirs: dict[str, tuple[Replica, list[ForwardableOperation]]] = {}
        for operation in operations:
            shard = state_partition(operation.key, self._runtime.state_partitions)
            if self._runtime.owns(shard):
                self._runtime.submit(operation)
                continue
            owner = self._find_owner(shard)
            if owner is None:
                self.hold_operation(call, operation, _NO_OWNER)
            elif owner.instance == self._instance:
                # The runtime has not elected the shard yet, or the log has fenced this coordinator.
                self.hold_operation(call, operation, _NOT_OWNED_HERE)
            else:
                theirs.setdefault(owner.instance, (owner, []))[1].append(operation)
        for owner, its in theirs.values():
            self._start_forwarding(call, owner, its)

    def _find_owner(self, shard: int) -> Replica | None:
        return None if self._assignment is None else self._assignment.owner(shard)

    def hold_operation(self, call: _RoutedRequest, operation: ForwardableOperation, why: ErrorReason) -> None:
        """Hold an operation until it can be routed again.

        Refuse the operation if it is too old or too many operations are held.
        """
        if self._closed:
            refuse_operations([operation], _STOPPING)
        elif self._is_operation_too_old(operation):
            refuse_operations([operation], why)
        elif len(self._held) >= self._limits.held_max:
            refuse_operations([operation], _TOO_MANY_HELD)
        else:
            self._held.append(_HeldOperation(call, operation, why))
            if self._retry_timer is None:
                self._retry_timer = self._loop.call_later(self._limits.pause_s, self._route_held_operations)

    def _route_held_operations(self) -> None:
        """Route all held operations again; operations of one request stay together."""
        self._retry_timer = None
        held, self._held = self._held, []
        by_call: dict[_RoutedRequest, list[ForwardableOperation]] = {}
        for call, operation, why in held:
            if self._is_operation_too_old(operation):
                refuse_operations([operation], why)
            elif not is_abandoned(operation):
                by_call.setdefault(call, []).append(operation)
        for call, operations in by_call.items():
            self._route_operations(call, operations)

    def _is_operation_too_old(self, operation: ForwardableOperation) -> bool:
        return self._loop.time() - operation.received_s > self._limits.hold_s

    # Requests to other coordinators.

    def _start_forwarding(
        self, call: _RoutedRequest, owner: Replica, operations: Sequence[ForwardableOperation]
    ) -> None:
        """Forward operations to their owner; refuse them at the limits of requests in flight."""
        peer = self._peers.get(owner.wire)
        if peer is None:
            peer = self._peers[owner.wire] = PeerConnections(
                owner.wire, self._instance, self._limits, self._security
            )
        request_bytes = sum(map(operation_bytes, operations))
        if not peer.reserve_capacity(request_bytes):
            refuse_operations(operations, _TOO_MANY_IN_FLIGHT)
            return
        forwarding = self._forward_request(call, owner, peer, operations, request_bytes)
        task = self._loop.create_task(forwarding)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward_request(
        self,
        call: _RoutedRequest,
        owner: Replica,
        peer: PeerConnections,
        operations: Sequence[ForwardableOperation],
        request_bytes: int,
    ) -> None:
        """Send a request to the owner; afterwards each operation is answered, refused or held."""
        began_s = self._loop.time()
        code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
        try:
            try:
                wanted, results = await self._exchange_with_owner(call, owner, peer, operations)
            finally:
                # Release the memory before the responses cause new requests.
                peer.release_capacity(request_bytes)
                self._close_departed_peer(peer)
            if not wanted:
                return
            code = self._handle_results(call, wanted, results)
        except ShareCoordinatorError as error:
            code = int(error.error_code)
            for operation in operations:
                self.hold_operation(call, operation, _NO_RESPONSE)
        except asyncio.CancelledError:
            refuse_operations(operations, _STOPPING)
            raise
        except Exception:
            _logger.exception("Internal error while forwarding to %s; the request fails.", owner.wire)
            refuse_operations(operations, _DEFECT)
        self._metrics.record_forward(call.api_key, code, self._loop.time() - began_s)

    async def _exchange_with_owner(
        self,
        call: _RoutedRequest,
        owner: Replica,
        peer: PeerConnections,
        operations: Sequence[ForwardableOperation],
    ) -> tuple[list[ForwardableOperation], Mapping[SharePartitionKey, Any]]:
        """Send a request to the owner; return the operations that were sent, and their results.

        Raises ShareCoordinatorError if no response arrived.
        """
        deadline_s = operations[0].received_s + self._limits.request_age_max_s
        try:
            async with asyncio.timeout_at(deadline_s) as timeout:
                self._in_flight_requests[timeout] = _ForwardedRequest(owner, operations)
                try:
                    async with peer.connection(self._connections_per_owner()) as connection:
                        wanted = self._drop_unneeded_operations(operations)
                        if not wanted:
                            return [], {}
                        parts = {operation.key: list(operation.unit) for operation in wanted}
                        response = await connection.request(make_request(call.rpc, call.group_id, parts))
                finally:
                    del self._in_flight_requests[timeout]
        except TimeoutError:
            raise TimedOut(ErrorCode.REQUEST_TIMED_OUT, "The owner did not answer in time.") from None
        return wanted, results_by_key(call.group_id, response)

    def _connections_per_owner(self) -> int:
        owners = len(self._assignment.replicas) if self._assignment is not None else len(self._peers)
        return self._limits.connections_to_each(owners)

    def _drop_unneeded_operations(
        self, operations: Sequence[ForwardableOperation]
    ) -> list[ForwardableOperation]:
        """Return the operations that are neither too old nor abandoned; refuse those that are too old."""
        wanted = []
        for operation in operations:
            if self._is_operation_too_old(operation):
                refuse_operations([operation], _NO_RESPONSE)
            elif not is_abandoned(operation):
                wanted.append(operation)
        return wanted

    def _handle_results(
        self,
        call: _RoutedRequest,
        operations: Sequence[ForwardableOperation],
        results: Mapping[SharePartitionKey, Any],
    ) -> int:
        """Answer operations, or hold them after NOT_COORDINATOR; return the first error in the results."""
        first_error = int(ErrorCode.NONE)
        for operation in operations:
            result = results.get(operation.key)
            if result is None:
                refuse_operations([operation], _NO_RESULT)
                continue
            first_error = first_error or result.error_code
            if result.error_code == ErrorCode.NOT_COORDINATOR:
                message = f"The owner refused the request: {result.error_message}"
                self.hold_operation(call, operation, ErrorReason(ErrorCode.NOT_COORDINATOR, message))
            else:
                operation.call = None
                operation.answer(result)
        return first_error

    # Changes of the assignment.

    def _shorten_timeouts_of_former_owners(self) -> None:
        """Shorten the timeout of requests to coordinators that lost a shard, which may have failed."""
        soon_s = self._loop.time() + self._limits.moved_grace_s
        for timeout, request in self._in_flight_requests.items():
            shards = {
                state_partition(operation.key, self._runtime.state_partitions)
                for operation in request.operations
            }
            owners = {self._find_owner(shard) for shard in shards}
            until_s = timeout.when()
            if owners != {request.owner} and until_s is not None and not timeout.expired():
                timeout.reschedule(min(until_s, soon_s))

    def _close_departed_peer(self, peer: PeerConnections) -> None:
        """Close the connections to a coordinator that left the assignment, when no request uses them."""
        if peer.in_flight or self._assignment is None or self._closed:
            return
        if all(replica.wire != peer.wire for replica in self._assignment.replicas):
            self._peers.pop(peer.wire, None)
            closing = self._loop.create_task(peer.close())
            self._tasks.add(closing)
            closing.add_done_callback(self._tasks.discard)
