"""Serve the five share-state RPCs: split each request by share-partition and collect the results.

No coroutine runs per request. A request becomes one operation per share-partition. Each operation stores its
result in the response, and the last one calls `done` with the complete response. If brokers send requests to
the wrong coordinator, a forwarder routes the operations to their owners.

The responses to unusual requests (no group, no topics, no partitions) follow ShareCoordinatorService of Kafka
4.4. Results are in request order (Kafka returns them in the order of a hash map).
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from coordinator.client.rpcs import DELETE, INITIALIZE, READ, SUMMARY, WRITE, Rpc
from coordinator.serve.forwarding import ForwardableOperation, Forwarder
from coordinator.serve.runtime import OperationOrigin, Runtime
from coordinator.serve.runtime.operations import Decide, FastPathExecutor
from coordinator.shard import Shard
from protocol.errors import ErrorCode
from protocol.state_batches import BATCH_BYTES
from protocol.state_records import SharePartitionKey
from protocol.wire import ELEMENTS_MAX

ResponseCallback = Callable[[Any], None]

# A large request yields to the event loop after this many share-partitions, which take 1 to 2 ms.
_STEP_PARTITIONS = 200
# Maximum number of different entries for one share-partition in a request that is not a write. Brokers merge
# queued requests of a type (Kafka's PersisterStateManager), but their reads of a share-partition are equal
# while its leader does not change.
_ENTRIES_MAX = 100
# A share-partition's records repeat its group id, so each 256 characters of it count as another element.
_GROUP_CHARS_PER_ELEMENT = 256


class ServiceLimits(NamedTuple):
    """Limits of one request that apply after decoding."""

    # Maximum number of share-partitions, weighted by the length of the group id.
    elements_max: int = ELEMENTS_MAX
    # Maximum bytes of state batches in the response of one Read. Brokers read the remaining share-partitions
    # again.
    response_bytes_max: int = 16 << 20
    # Estimated bytes of all large requests that are decoded and have no response yet; see `LargeRequests`.
    decoded_bytes_max: int = 128 << 20
    # Maximum number of state batches that one request writes to one share-partition. Kafka lets at most 10
    # 000 records of a share-partition be in flight (group.share.partition.max.record.locks).
    batches_per_write_max: int = 20_000


_DECISIONS: dict[int, Decide] = {
    INITIALIZE.api_key: Shard.initialize_state,
    READ.api_key: Shard.read_state,
    WRITE.api_key: Shard.write_state,
    DELETE.api_key: Shard.delete_state,
    SUMMARY.api_key: Shard.read_state_summary,
}

# Brokers repeat the Read only for the share-partitions with this error, so the next response is smaller.
_RESPONSE_FULL = (
    int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
    "The response would exceed response.max.bytes; read this share-partition again.",
)


class _PendingResponse:
    """The results of one request, in request order, until all have arrived."""

    __slots__ = ("_bytes_left", "_done", "_rpc", "missing", "results")

    def __init__(self, rpc: Rpc, done: ResponseCallback, bytes_max: int) -> None:
        self._rpc = rpc
        self._done = done
        self._bytes_left = bytes_max
        # The results of the share-partitions of each topic, and the number of results that have not arrived.
        self.results: list[tuple[bytes, list[Any]]] = []
        self.missing = 0

    def put_result(self, row: list[Any], position: int, result: Any) -> None:
        if self._rpc is READ:
            if self._bytes_left <= 0:
                result = READ.partition_result(result.partition, *_RESPONSE_FULL)
            self._bytes_left -= len(result.state_batches)
        row[position] = result
        self.missing -= 1
        if self.missing == 0:
            rpc = self._rpc
            self._done(rpc.response([rpc.topic_result(topic_id, row) for topic_id, row in self.results]))


class _RequestOperation(ForwardableOperation):
    """The operation for one share-partition of a request."""

    __slots__ = ("_partition_result", "_pending", "_position", "_row")

    def __init__(
        self,
        rpc: Rpc,
        key: SharePartitionKey,
        unit: list[Any],
        origin: OperationOrigin | None,
        received_s: float,
        pending: _PendingResponse,
        row: list[Any],
    ) -> None:
        writes = rpc is not READ and rpc is not SUMMARY
        super().__init__(
            _DECISIONS[rpc.api_key], key, unit, writes=writes, origin=origin, received_s=received_s
        )
        self._partition_result = rpc.partition_result
        self._pending = pending
        self._row = row
        self._position = len(row)
        self.call = None
        # Reserve the position of the result.
        row.append(None)
        pending.missing += 1

    def answer(self, result: Any) -> None:
        self._pending.put_result(self._row, self._position, result)

    def refuse(self, error_code: ErrorCode, error_message: str) -> None:
        if self.call is not None and error_code == ErrorCode.NOT_COORDINATOR:
            self.call.on_not_coordinator(self, error_message)
            return
        self.answer(self._partition_result(self.key.partition, int(error_code), error_message))


class Service:
    """Answers the five RPCs from the shards of a runtime, or through a forwarder if it is active."""

    def __init__(
        self, runtime: Runtime, forwarder: Forwarder | None = None, limits: ServiceLimits | None = None
    ) -> None:
        self._runtime = runtime
        self.limits = limits or ServiceLimits()
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()

    @property
    def is_forwarding(self) -> bool:
        """Return whether requests are forwarded to other coordinators now."""
        return self._forwarder is not None and self._forwarder.active

    @property
    def may_forward(self) -> bool:
        """Return whether requests may be forwarded, now or later."""
        return self._forwarder is not None

    def fast_path_executor(self) -> FastPathExecutor | None:
        """Return the executor of fast-path requests (`coordinator.fastpath`) or None.

        The executor never forwards requests.
        """
        requests = self._runtime.fast_path_executor()
        if requests is not None:
            requests.elements_max = self.limits.elements_max
            requests.batches_max = self.limits.batches_per_write_max
            requests.response_bytes_max = self.limits.response_bytes_max
        return requests

    def handle(
        self,
        rpc: Rpc,
        request: Any,
        origin: OperationOrigin | None,
        done: ResponseCallback,
        *,
        forwarded: bool = False,
    ) -> Iterator[None]:
        """Execute a request of one of the five RPCs, in steps of about a millisecond.

        `done` is called exactly once with the response, during a step or later, unless the client has
        disconnected. A `forwarded` request is not forwarded again. No content of a request raises an
        exception.
        """
        topics = request.topics
        if not request.group_id or not topics:
            done(rpc.response([]))
            return
        # Kafka returns an empty response if a topic has no partitions, except for Initialize.
        if rpc is not INITIALIZE and not all(topic.partitions for topic in topics):
            done(rpc.response([]))
            return
        pending = _PendingResponse(rpc, done, self.limits.response_bytes_max)
        operations: list[_RequestOperation] = []
        yield from self._create_operations(rpc, request, origin, pending, operations)
        if not operations:
            done(rpc.response([]))
            return
        forwarder = self._forwarder if not forwarded else None
        elements = len(operations) * (1 + len(request.group_id) // _GROUP_CHARS_PER_ELEMENT)
        submit = (
            self._submit_operations if elements <= self.limits.elements_max else _refuse_for_long_group_id
        )
        for begin in range(0, len(operations), _STEP_PARTITIONS):
            if begin:
                yield
            submit(rpc, operations[begin : begin + _STEP_PARTITIONS], forwarder)

    def _submit_operations(
        self, rpc: Rpc, operations: list[_RequestOperation], forwarder: Forwarder | None
    ) -> None:
        """Submit operations, except those that take too long to decide in one step."""
        operations = [operation for operation in operations if not self._refuse_if_too_large(operation, rpc)]
        if forwarder is not None and forwarder.active:
            if operations:
                forwarder.submit(rpc.api_key, operations)
            return
        submit = self._runtime.submit
        for operation in operations:
            submit(operation)

    def _refuse_if_too_large(self, operation: _RequestOperation, rpc: Rpc) -> bool:
        """Refuse an operation with too many state batches or entries; return whether it was refused."""
        if rpc is not WRITE:
            if len(operation.unit) <= _ENTRIES_MAX:
                return False
            operation.refuse(
                ErrorCode.INVALID_REQUEST, f"The share-partition has more than {_ENTRIES_MAX} entries."
            )
            return True
        batches_bytes = sum([len(part.state_batches) for part in operation.unit])
        if batches_bytes <= self.limits.batches_per_write_max * BATCH_BYTES:
            return False
        operation.refuse(
            ErrorCode.INVALID_REQUEST,
            "Too many state batches for one share-partition (share.partition.write.max.batches).",
        )
        return True

    def _create_operations(
        self,
        rpc: Rpc,
        request: Any,
        origin: OperationOrigin | None,
        pending: _PendingResponse,
        operations: list[_RequestOperation],
    ) -> Iterator[None]:
        """Create one operation for each share-partition of a request and append it to `operations`.

        The entries of a share-partition that occurs several times become one operation, in request order,
        with one result. Brokers merge queued requests into one and match the results by partition. A read
        that is equal to the one before it has the same result and writes nothing, so it is omitted.
        """
        is_read = rpc is READ or rpc is SUMMARY
        group_id: str = request.group_id
        received_s = self._loop.time()
        rows: dict[bytes, tuple[list[Any], dict[int, list[Any]]]] = {}
        seen = 0
        for topic in request.topics:
            topic_id = topic.topic_id
            if not topic.partitions:
                continue
            if topic_id not in rows:
                rows[topic_id] = ([], {})
                pending.results.append((topic_id, rows[topic_id][0]))
            row, units = rows[topic_id]
            for part in topic.partitions:
                seen += 1
                if seen % _STEP_PARTITIONS == 0:
                    yield
                partition = part.partition
                unit = units.get(partition)
                if unit is not None:
                    if not is_read or part != unit[-1]:
                        unit.append(part)
                    continue
                units[partition] = unit = [part]
                key = SharePartitionKey(group_id, topic_id, partition)
                operations.append(_RequestOperation(rpc, key, unit, origin, received_s, pending, row))


def _refuse_for_long_group_id(
    rpc: Rpc, operations: list[_RequestOperation], forwarder: Forwarder | None
) -> None:
    for operation in operations:
        operation.refuse(
            ErrorCode.INVALID_REQUEST,
            "Too many share-partitions for a group id of this length (request.max.elements).",
        )
