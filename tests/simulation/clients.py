"""Send requests to coordinators as the persister of a broker does, and check the protocol of the responses.

A `CoordinatorConnection` checks that responses come in the order of the requests, exactly once, and with the
correct correlation id. Each response must have exactly one result for each requested share-partition, in the
order of the request.

A `Broker` behaves like Kafka's PersisterStateManager. It has one connection for each node id, with one
request at a time. Calls that wait for the connection and have the same API and group are sent as one request,
so a request may name a share-partition more than once. A call without a response is retried after a pause,
which doubles each time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from struct import Struct
from typing import Any, NamedTuple

from coordinator.config import HostPort
from protocol.messages import APIS, request_header, response_header, response_header_version
from protocol.messages import api_versions as versions_api
from protocol.messages import find_coordinator as find_api
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.simulation.history import History, Operation, Violation
from tests.simulation.loop import SimLoop
from tests.simulation.net import ClientEnd, Network
from tests.simulation.rpc_parts import RPCS

REQUEST_TIMEOUT_S = 30.0
_SIZE = Struct(">i")

# The requested share-partitions, each with its entry in the request.
RequestedParts = Sequence[tuple[SharePartitionKey, Any]]


class ConnectionLost(Exception):
    """The connection is lost; the outcome of its pending requests is unknown."""


class _PendingRequest(NamedTuple):
    correlation_id: int
    decode: Callable[[bytes], Any]
    future: asyncio.Future[Any]


class CoordinatorConnection:
    """One connection to the coordinator."""

    def __init__(self, name: str, end: ClientEnd, clients: "Clients") -> None:
        # The history identifies a connection by its name: operations of one connection take effect in order.
        self.name = f"{name} #{end.number}"
        # The node id of the coordinator at the other end, or None if clients need not know it.
        self.node: int | None = None
        self.end = end
        self._clients = clients
        self._history = clients.history
        self._report = clients.report
        self._outstanding: deque[_PendingRequest] = deque()
        self._received = bytearray()
        self._correlation_id = 0
        end.on_data = self._on_data
        end.on_lost = self._fail_pending_requests

    @property
    def is_lost(self) -> bool:
        """Whether the connection is closed or lost, so that no request can be sent any more."""
        return self.end.closed

    @property
    def pending_count(self) -> int:
        """The number of requests without a response."""
        return len(self._outstanding)

    def send(self, api: Any, version: int, request: Any) -> asyncio.Future[Any]:
        """Send a request; the future gets its response, or ConnectionLost."""
        self._correlation_id += 1
        header = request_header.RequestHeader(
            api.API_KEY, version, self._correlation_id, "Persister-client-1"
        )
        frame = request_header.encode(header, 2) + api.encode_request(request, version)
        future: asyncio.Future[Any] = self._clients.loop.create_future()
        if self.is_lost:
            future.set_exception(ConnectionLost(self.name))
            return future

        def decode(response: bytes) -> Any:
            header_version = response_header_version(api.API_KEY, version)
            head, offset = response_header.decode(response, 0, header_version)
            assert head.correlation_id == _SIZE.unpack_from(response)[0]
            return api.decode_response(response, offset, version)

        self._outstanding.append(_PendingRequest(self._correlation_id, decode, future))
        self.end.send(_SIZE.pack(len(frame)) + frame)
        return future

    async def send_state_request(
        self, kind: str, requested: RequestedParts, *, version: int | None = None
    ) -> list[Operation]:
        """Send one request about share-partitions of one group; return an operation for each of them.

        If the connection is lost, the operations without a response have an unknown outcome.
        """
        rpc = RPCS[kind]
        api = APIS[rpc.api_key]
        version = api.max_version if version is None else version
        units: dict[SharePartitionKey, list[Any]] = {}
        topics: dict[bytes, list[Any]] = {}
        for key, part in requested:
            units.setdefault(key, []).append(part)
            topics.setdefault(key.topic_id, []).append(part)
        now_s = self._clients.loop.time()
        ops = {
            key: self._history.record_request(now_s, self.name, kind, key, unit)
            for key, unit in units.items()
        }
        request = rpc.request(requested[0][0].group_id, [rpc.topic(*topic) for topic in topics.items()])
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                response = await self.send(api.module, version, request)
        except (ConnectionLost, TimeoutError) as error:
            timed_out_without_fault = isinstance(error, TimeoutError) and self.end.is_unaffected_by_faults
            if timed_out_without_fault and self._clients.answers_in_time and self.pending_count == 1:
                self._report(Violation(f"no fault delays the response, but none arrived: {[*ops.values()]}"))
            self.close()
            return list(ops.values())
        self._record_results(kind, ops, response)
        return list(ops.values())

    def _record_results(self, kind: str, ops: dict[SharePartitionKey, Operation], response: Any) -> None:
        now_s = self._clients.loop.time()
        group_id = next(iter(ops)).group_id
        received = [
            SharePartitionKey(group_id, topic.topic_id, result.partition)
            for topic in response.results
            for result in topic.partitions
        ]
        # A response groups the share-partitions by topic, in the order in which the request names the topics.
        topic_ids = list(dict.fromkeys(key.topic_id for key in ops))
        expected = sorted(ops, key=lambda key: topic_ids.index(key.topic_id))
        if received != expected:
            self._report(Violation(f"{self.name} sent {kind} for {expected}, but received {response}"))
            return
        for topic in response.results:
            for result in topic.partitions:
                op = ops[SharePartitionKey(group_id, topic.topic_id, result.partition)]
                self._history.record_response(now_s, op, result)

    def close(self, *, reset: bool = False) -> None:
        self.end.close(reset=reset)
        self._fail_pending_requests()

    def _on_data(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= 4:
            size = _SIZE.unpack_from(received)[0]
            if len(received) < 4 + size:
                return
            response = bytes(received[4 : 4 + size])
            del received[: 4 + size]
            self._on_response(response)

    def _on_response(self, response: bytes) -> None:
        correlation_id = _SIZE.unpack_from(response)[0]
        if not self._outstanding:
            self._report(Violation(f"{self.name} received a response to no request: {correlation_id}"))
            return
        request = self._outstanding.popleft()
        if request.correlation_id != correlation_id:
            self._report(
                Violation(
                    f"{self.name} expected response {request.correlation_id}, received {correlation_id}"
                )
            )
            return
        if not request.future.done():
            request.future.set_result(request.decode(response))

    def _fail_pending_requests(self) -> None:
        while self._outstanding:
            outstanding = self._outstanding.popleft()
            if not outstanding.future.done():
                outstanding.future.set_exception(ConnectionLost(self.name))


@dataclass
class Clients:
    """The data that all clients share: addresses of coordinators, the network and the history."""

    network: Network
    addresses: Sequence[HostPort]
    history: History
    report: Callable[[Violation], None]
    state_partitions: int
    # Clients use `node_ids` node ids for the coordinators: `node_id_first` and the following ones.
    node_id_first: int
    node_ids: int
    # Whether clients get each response before their timeout if no fault affects the connection.
    answers_in_time: bool = False

    @property
    def loop(self) -> SimLoop:
        return self.network.loop

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all coordinators, as in bootstrap.servers."""
        return ",".join(map(str, self.addresses))

    def address(self, node: int | None) -> HostPort:
        """Return the address of a node id, or of any coordinator if `node` is None."""
        return self.addresses[0]

    async def connect(self, name: str, node: int | None = None) -> CoordinatorConnection:
        """Open a connection to a node, or to any coordinator if `node` is None.

        Raises ConnectionLost if the connection fails.
        """
        try:
            async with asyncio.timeout(10.0):
                end = await self.network.connect(*self.address(node))
        except (ConnectionRefusedError, TimeoutError):
            raise ConnectionLost(name) from None
        return CoordinatorConnection(name, end, self)

    def assumed_node(self, key: SharePartitionKey, client_name: str = "") -> int:
        """Return the index of the node id to which a client sends requests for a share-partition."""
        return state_partition(key, self.state_partitions) % self.node_ids

    def on_unknown_outcome(self, key: SharePartitionKey, client_name: str) -> None:
        """Called when the outcome of an operation is unknown to the client."""

    def reachable_keys(
        self, peer: CoordinatorConnection, keys: Sequence[SharePartitionKey]
    ) -> Sequence[SharePartitionKey]:
        """Return the share-partitions among `keys` to request on a connection; at least one."""
        return keys

    def coordinating_node(self, key: SharePartitionKey) -> int | None:
        """Return the node that owns the shard of a share-partition, or None if any node may be used."""
        return None

    async def check_find_coordinator(self, peer: CoordinatorConnection, key: SharePartitionKey) -> None:
        """Send FindCoordinator for a share-partition, and check the response. Raises ConnectionLost."""
        response = await self.find_coordinator(peer, key)
        expected = find_api.Coordinator(
            str(key), self.node_id_first + self.assumed_node(key), *self.addresses[0], error_message=""
        )
        if response.coordinators != [expected]:
            self.report(Violation(f"FindCoordinator returned {response}, expected {expected}"))

    async def find_coordinator(self, peer: CoordinatorConnection, key: SharePartitionKey) -> Any:
        """Send FindCoordinator for a share-partition; return the response. Raises ConnectionLost."""
        request = find_api.FindCoordinatorRequest(key_type=2, coordinator_keys=[str(key)])
        async with ClosingTimeout(peer):
            return await peer.send(find_api, 6, request)

    async def send_api_versions(self, peer: CoordinatorConnection) -> None:
        """Send ApiVersions, the first request of a Kafka client on each connection. Raises ConnectionLost."""
        async with ClosingTimeout(peer):
            response = await peer.send(versions_api, 3, versions_api.ApiVersionsRequest("x", "1"))
        if response.error_code or len(response.api_keys) != 7:
            self.report(Violation(f"{peer.name} received an unexpected ApiVersions response: {response}"))


class ClosingTimeout:
    """Context manager that, after REQUEST_TIMEOUT_S, closes a connection and raises ConnectionLost."""

    def __init__(self, peer: CoordinatorConnection) -> None:
        self._connection = peer
        self._timeout = asyncio.timeout(REQUEST_TIMEOUT_S)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            self._connection.close()
            raise ConnectionLost(self._connection.name) from None


class Broker:
    """The persister of a broker, with one connection for each node id."""

    def __init__(self, name: str, clients: Clients, rng: Random, *, look_up_rate: float) -> None:
        self.name = name
        self._clients = clients
        self._rng = rng
        self._look_up_rate = look_up_rate
        self._peers: dict[int, CoordinatorConnection] = {}
        self._waiting: dict[int, list[tuple[str, SharePartitionKey, Any, asyncio.Future[Operation]]]] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}

    async def call(self, kind: str, key: SharePartitionKey, part: Any, *, attempts: int = 5) -> Operation:
        """Send a request until its outcome is known, at most `attempts` times; return the last operation."""
        pause_s = 1.0
        while True:
            op = await self._submit(kind, key, part)
            attempts -= 1
            if op.known:
                return op
            self._clients.on_unknown_outcome(key, self.name)
            if not attempts:
                return op
            await asyncio.sleep(pause_s * self._rng.uniform(0.8, 1.2))
            pause_s = min(2 * pause_s, 30.0)

    def _submit(self, kind: str, key: SharePartitionKey, part: Any) -> asyncio.Future[Operation]:
        node = self._clients.assumed_node(key, self.name)
        future: asyncio.Future[Operation] = self._clients.loop.create_future()
        self._waiting.setdefault(node, []).append((kind, key, part, future))
        if node not in self._sending:
            self._sending[node] = asyncio.create_task(self._send_waiting_calls(node))
        return future

    async def _send_waiting_calls(self, node: int) -> None:
        """Send the waiting calls for a node, one request at a time, until no call waits."""
        while waiting := self._waiting.get(node):
            kind, group_id = waiting[0][0], waiting[0][1].group_id
            calls = [entry for entry in waiting if entry[0] == kind and entry[1].group_id == group_id]
            self._waiting[node] = [
                entry for entry in waiting if entry[0] != kind or entry[1].group_id != group_id
            ]
            ops: dict[SharePartitionKey, Operation] = {}
            try:
                peer = await self._connection_to(node)
                if self._rng.random() < self._look_up_rate:
                    await self._clients.check_find_coordinator(peer, calls[0][1])
                requested = [(key, part) for _, key, part, _ in calls]
                ops = {op.key: op for op in await peer.send_state_request(kind, requested)}
            except ConnectionLost:
                pass
            for _, key, part, future in calls:
                if not future.done():
                    future.set_result(ops.get(key) or self._make_unsent_operation(kind, key, part))
            if not ops:
                await asyncio.sleep(0.05)
        del self._sending[node]

    async def _connection_to(self, node: int) -> CoordinatorConnection:
        peer = self._peers.get(node)
        if peer is None or peer.is_lost:
            peer = await self._clients.connect(f"{self.name}/{node}", node)
            self._peers[node] = peer
            await self._clients.send_api_versions(peer)
        return peer

    @staticmethod
    def _make_unsent_operation(kind: str, key: SharePartitionKey, part: Any) -> Operation:
        """Return an operation for a call that was never sent. The history does not contain it."""
        return Operation(-1, "", kind, key, (part,), (0.0, 0))
