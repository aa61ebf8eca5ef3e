"""What belongs to other coordinators: carried to them, held while that cannot be done, and answered.

Theory of operation.  A request is split by owner: share-partitions of our shards go to the runtime, those of
another coordinator go there, all of them as one request of the same API.  What was not carried out for a
reason that may pass (nobody knows the owner, it says that it is none, no connection, no answer) is *held*,
and routed anew after a short pause or when there is a new map of owners.  So a broker whose request meets a
take-over waits for that and no longer; one that is told to come again does so after two seconds.

A request that was sent and not answered is sent again, and may so be carried out twice.  Brokers do the same
(since Kafka 4.2), and it is harmless: a write keeps the greatest delivery count and state of each offset,
an initialisation that is there already changes nothing, what is deleted can be deleted.  Harmless as long as
the broker waits: what is too old is neither sent nor left with an owner that has not answered.

A request that was forwarded is not forwarded again: an owner answers that it is none, and we hold it.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from coordinator.client import ClientSecurity, ShareCoordinatorError, TimedOut
from coordinator.client.rpcs import (
    DELETE,
    INITIALIZE,
    READ,
    SUMMARY,
    WRITE,
    Rpc,
    make_request,
    results_by_key,
)
from coordinator.forwarding.limits import ForwardingLimits
from coordinator.forwarding.operation import (
    ErrorReason,
    ForwardableOperation,
    is_abandoned,
    operation_bytes,
    refuse,
)
from coordinator.forwarding.peer_connections import PeerConnections
from coordinator.metrics import Metrics
from coordinator.ownership import Assignment, Replica
from coordinator.runtime import Runtime
from protocol.errors import ErrorCode
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

_logger = logging.getLogger(__name__)

_RPCS = {
    initialize_api.API_KEY: INITIALIZE,
    read_api.API_KEY: READ,
    write_api.API_KEY: WRITE,
    delete_api.API_KEY: DELETE,
    summary_api.API_KEY: SUMMARY,
}

_NOT_OWNED_HERE = ErrorReason(ErrorCode.NOT_COORDINATOR, "This coordinator does not own the share-partition.")
_NOT_OWNED_BY_PEER = ErrorReason(
    ErrorCode.NOT_COORDINATOR, "The share-partition moves from one coordinator to another."
)
_STOPPING = ErrorReason(ErrorCode.NOT_COORDINATOR, "This coordinator is stopping.")
_NO_OWNER = ErrorReason(ErrorCode.COORDINATOR_NOT_AVAILABLE, "It is not known who owns the share-partition.")
_NO_RESPONSE = ErrorReason(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, "The owner of the share-partition did not answer."
)
_TOO_MANY_DEFERRED = ErrorReason(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, "Too many requests wait for their owners."
)
_TOO_MANY_IN_FLIGHT = ErrorReason(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Too much is on its way to the owner.")
_NO_RESULT = ErrorReason(ErrorCode.UNKNOWN_SERVER_ERROR, "The owner's answer leaves the share-partition out.")
_DEFECT = ErrorReason(ErrorCode.UNKNOWN_SERVER_ERROR, "The coordinator failed to carry this to the owner.")


class _RoutedRequest:
    """One client's request while its share-partitions are routed. A `ClientRequest`."""

    __slots__ = ("_forwarder", "api_key", "group_id", "rpc")

    def __init__(self, forwarder: "Forwarder", api_key: int, group_id: str) -> None:
        self._forwarder = forwarder
        self.api_key = api_key
        self.group_id = group_id
        self.rpc: Rpc = _RPCS[api_key]

    def not_coordinator(self, operation: ForwardableOperation) -> None:
        """Hold what the runtime does not carry out."""
        self._forwarder.hold(self, operation, _NOT_OWNED_HERE)


class _DeferredOperation(NamedTuple):
    """A share-partition that waits for the next look, and what it is told if there is none in time."""

    call: _RoutedRequest
    operation: ForwardableOperation
    why: ErrorReason


class _ForwardedRequest(NamedTuple):
    """Whom a request went to, and for which share-partitions."""

    owner: Replica
    operations: Sequence[ForwardableOperation]


class Forwarder:
    """Routes share-partitions between the runtime and the other coordinators. Held by one event loop.

    While it is `active`, the service hands it the requests of all who do not forward themselves.
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
        """Begin inactive and without a map. `instance` is our name in the maps of owners."""
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
        self._deferred: list[_DeferredOperation] = []
        self._retry_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.attach_forwarder(self)

    @property
    def held(self) -> int:
        """How many share-partitions wait to be routed anew."""
        return len(self._deferred)

    @property
    def in_flight(self) -> int:
        """How many requests to other coordinators are under way."""
        return sum(peer.in_flight for peer in self._peers.values())

    # For the service.

    def submit(self, api_key: int, operations: Sequence[ForwardableOperation]) -> None:
        """Have the share-partitions of one request carried out, each where it belongs."""
        call = _RoutedRequest(self, api_key, operations[0].key.group_id)
        for operation in operations:
            operation.call = call
        self._route(call, operations)

    # For ownership.

    def set_assignment(self, assignment: Assignment | None) -> None:
        """Go by a map of owners; None: nobody knows who they are."""
        if assignment is None:
            if not self._assignment_is_frozen:
                self._assignment = None
            return
        self._assignment = assignment
        self._shorten_timeouts_of_former_owners()
        for peer in list(self._peers.values()):
            self._close_departed_peer(peer)
        if self._retry_timer is not None:
            # Not at once: elections come with this map.
            self._retry_timer.cancel()
            self._retry_timer = self._loop.call_later(0, self._route_deferred)

    def freeze_assignment(self) -> None:
        """Go by the last map from now on: we are about to leave, and our shards go to those who stay."""
        self._assignment_is_frozen = True

    async def close(self) -> None:
        """End everything; what has no answer yet is told that this coordinator is stopping."""
        self._closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        held, self._deferred = self._deferred, []
        refuse((one.operation for one in held), _STOPPING)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))

    # Routing.

    def _route(self, call: _RoutedRequest, operations: Iterable[ForwardableOperation]) -> None:
        """Hand each share-partition to who owns it; hold it if that is nobody."""
        theirs: dict[str, tuple[Replica, list[ForwardableOperation]]] = {}
        for operation in operations:
            shard = state_partition(operation.key, self._runtime.state_partitions)
            if self._runtime.owns(shard):
                self._runtime.submit(operation)
                continue
            owner = self._owner(shard)
            if owner is None:
                self.hold(call, operation, _NO_OWNER)
            elif owner.instance == self._instance:
                # Our election is to come yet, or the log took the shard away and the group will hear of it.
                self.hold(call, operation, _NOT_OWNED_HERE)
            else:
                theirs.setdefault(owner.instance, (owner, []))[1].append(operation)
        for owner, its in theirs.values():
            self._send(call, owner, its)

    def _owner(self, shard: int) -> Replica | None:
        return None if self._assignment is None else self._assignment.owner(shard)

    def hold(self, call: _RoutedRequest, operation: ForwardableOperation, why: ErrorReason) -> None:
        """Keep a share-partition that was not carried out for the next look, if there is time for that."""
        if self._closed:
            refuse([operation], _STOPPING)
        elif self._is_late(operation):
            refuse([operation], why)
        elif len(self._deferred) >= self._limits.held_max:
            refuse([operation], _TOO_MANY_DEFERRED)
        else:
            self._deferred.append(_DeferredOperation(call, operation, why))
            if self._retry_timer is None:
                self._retry_timer = self._loop.call_later(self._limits.pause_s, self._route_deferred)

    def _route_deferred(self) -> None:
        """Route what is held anew; what came in one request goes on in one."""
        self._retry_timer = None
        held, self._deferred = self._deferred, []
        by_call: dict[_RoutedRequest, list[ForwardableOperation]] = {}
        for call, operation, why in held:
            if self._is_late(operation):
                refuse([operation], why)
            elif not is_abandoned(operation):
                by_call.setdefault(call, []).append(operation)
        for call, operations in by_call.items():
            self._route(call, operations)

    def _is_late(self, operation: ForwardableOperation) -> bool:
        return self._loop.time() - operation.received_s > self._limits.hold_s

    # Asking other coordinators.

    def _send(self, call: _RoutedRequest, owner: Replica, operations: Sequence[ForwardableOperation]) -> None:
        """Begin to carry share-partitions of one request to their owner, if there is room for more."""
        peer = self._peers.get(owner.wire)
        if peer is None:
            peer = self._peers[owner.wire] = PeerConnections(
                owner.wire, self._instance, self._limits, self._security
            )
        request_bytes = sum(map(operation_bytes, operations))
        if not peer.reserve(request_bytes):
            refuse(operations, _TOO_MANY_IN_FLIGHT)
            return
        asking = self._forward_request(call, owner, peer, operations, request_bytes)
        task = self._loop.create_task(asking)
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
        """Ask an owner; afterwards each share-partition has its answer or is held."""
        began_s = self._loop.time()
        code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
        try:
            try:
                wanted, results = await self._exchange(call, owner, peer, operations)
            finally:
                # Before anybody gets an answer and asks again.
                peer.release(request_bytes)
                self._close_departed_peer(peer)
            if not wanted:
                return
            code = self._handle_results(call, wanted, results)
        except ShareCoordinatorError as error:
            code = int(error.error_code)
            for operation in operations:
                self.hold(call, operation, _NO_RESPONSE)
        except asyncio.CancelledError:
            refuse(operations, _STOPPING)
            raise
        except Exception:
            _logger.exception("forwarding to %s failed", owner.wire)
            refuse(operations, _DEFECT)
        self._metrics.forward_done(call.api_key, code, self._loop.time() - began_s)

    async def _exchange(
        self,
        call: _RoutedRequest,
        owner: Replica,
        peer: PeerConnections,
        operations: Sequence[ForwardableOperation],
    ) -> tuple[list[ForwardableOperation], Mapping[SharePartitionKey, Any]]:
        """Ask an owner; return what it was asked for in the end, and its results.

        Raises ShareCoordinatorError where no answer came.
        """
        deadline_s = operations[0].received_s + self._limits.request_age_max_s
        try:
            async with asyncio.timeout_at(deadline_s) as patience:
                self._in_flight_requests[patience] = _ForwardedRequest(owner, operations)
                try:
                    async with peer.connection(self._connections_to_each()) as connection:
                        wanted = self._drop_abandoned(operations)
                        if not wanted:
                            return [], {}
                        parts = {operation.key: list(operation.unit) for operation in wanted}
                        response = await connection.request(make_request(call.rpc, call.group_id, parts))
                finally:
                    del self._in_flight_requests[patience]
        except TimeoutError:
            raise TimedOut(ErrorCode.REQUEST_TIMED_OUT, "The owner did not answer in time.") from None
        return wanted, results_by_key(call.group_id, response)

    def _connections_to_each(self) -> int:
        owners = len(self._assignment.replicas) if self._assignment is not None else len(self._peers)
        return self._limits.connections_to_each(owners)

    def _drop_abandoned(self, operations: Sequence[ForwardableOperation]) -> list[ForwardableOperation]:
        """Return what is worth sending after the wait for a connection."""
        wanted = []
        for operation in operations:
            if self._is_late(operation):
                refuse([operation], _NO_RESPONSE)
            elif not is_abandoned(operation):
                wanted.append(operation)
        return wanted

    def _handle_results(
        self,
        call: _RoutedRequest,
        operations: Sequence[ForwardableOperation],
        results: Mapping[SharePartitionKey, Any],
    ) -> int:
        """Give an owner's answers on, or hold what it does not own; return the first error code."""
        first_error = int(ErrorCode.NONE)
        for operation in operations:
            result = results.get(operation.key)
            if result is None:
                refuse([operation], _NO_RESULT)
                continue
            first_error = first_error or result.error_code
            if result.error_code == ErrorCode.NOT_COORDINATOR:
                self.hold(call, operation, _NOT_OWNED_BY_PEER)
            else:
                operation.call = None
                operation.answer(result)
        return first_error

    # When the map changes.

    def _shorten_timeouts_of_former_owners(self) -> None:
        """Wait only a little longer for a coordinator that a shard was taken from: it may be gone."""
        soon_s = self._loop.time() + self._limits.moved_grace_s
        for patience, asked in self._in_flight_requests.items():
            shards = {
                state_partition(operation.key, self._runtime.state_partitions)
                for operation in asked.operations
            }
            owners = {self._owner(shard) for shard in shards}
            until_s = patience.when()
            if owners != {asked.owner} and until_s is not None and not patience.expired():
                patience.reschedule(min(until_s, soon_s))

    def _close_departed_peer(self, peer: PeerConnections) -> None:
        """Close the connections to a coordinator that is not in the map, once nobody needs them."""
        if peer.in_flight or self._assignment is None or self._closed:
            return
        if all(replica.wire != peer.wire for replica in self._assignment.replicas):
            self._peers.pop(peer.wire, None)
            closing = self._loop.create_task(peer.close())
            self._tasks.add(closing)
            closing.add_done_callback(self._tasks.discard)
