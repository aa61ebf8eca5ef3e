"""The client: each operation makes attempts, with a lookup and one request to each coordinator.

A call has one part, its request data, for each share-partition. An attempt sends each part to its
coordinator. Parts with a retriable error are retried after a delay. Source of the retry rules:
PersisterStateManager of Kafka 4.4. Kafka allows 5 failed lookups and 5 failed requests; this client allows 5
attempts in total.
"""

import asyncio
import random  # noqa: TID251
import struct
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self, overload

from coordinator.client.addresses import parse_addresses
from coordinator.client.connection import ConnectionLimits
from coordinator.client.errors import ClientClosed, ShareCoordinatorError, error_for_code
from coordinator.client.lookup import CoordinatorLookup
from coordinator.client.nodes import Node, NodeConnections
from coordinator.client.retry import RetryPolicy
from coordinator.client.rpcs import (
    DELETE,
    INITIALIZE,
    READ,
    RPC_BY_REQUEST,
    SUMMARY,
    WRITE,
    Parts,
    Rpc,
    make_request,
    make_response,
    parts_by_key,
    results_by_key,
)
from coordinator.client.security import ClientSecurity
from protocol.errors import ErrorCode
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack, unpack
from protocol.state_records import SharePartitionKey

Sleep = Callable[[float], Awaitable[object]]


class ReadState(NamedTuple):
    """The state for a new leader. Start offset -1 means unknown; batches are sorted and disjoint."""

    state_epoch: int
    start_offset: int
    batches: list[StateBatch]


class StateSummary(NamedTuple):
    """A state without its batches. Start offset -1 means unknown or no state; complete count -1 unknown."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int


class _Outcome(NamedTuple):
    """Outcome for one share-partition: a result, an error, or both if the result has an error code."""

    result: Any
    error: ShareCoordinatorError | None


class ShareCoordinatorClient:
    """A client of one share coordinator service: this project's or a Kafka cluster's.

    A client belongs to one event loop.  `bootstrap` is one address, or several separated by commas; each can
    serve FindCoordinator.  With `direct`, it is one coordinator, which is used without FindCoordinator.
    Calls may run concurrently.  Each call raises `ShareCoordinatorError` on failure, and ValueError for
    arguments that no coordinator would accept.  `chance` returns random numbers from 0 to 1 for the jitter of
    delays.
    """

    def __init__(
        self,
        bootstrap: str | tuple[str, int],
        *,
        client_id: str = "share-coordinator-client",
        direct: bool = False,
        retry: RetryPolicy | None = None,
        limits: ConnectionLimits | None = None,
        security: ClientSecurity | None = None,
        sleep: Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        addresses = parse_addresses(bootstrap)
        if direct and len(addresses) != 1:
            raise ValueError("direct=True requires exactly one address")
        self._nodes = NodeConnections(client_id, limits or ConnectionLimits(), security)
        first_nodes = [Node(-1 - index, *address) for index, address in enumerate(addresses)]
        self._lookup = CoordinatorLookup(self._nodes, first_nodes, direct=direct)
        self._retry = retry or RetryPolicy()
        self._sleep = sleep
        self._random = chance
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections without waiting for peers; calls in progress raise ClientClosed."""
        self._closing.set()
        await self._nodes.close()

    # One share-partition.

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Initialise the state of a share-partition; start offset -1: the leader determines it.

        Existing state is replaced, unless its state epoch is higher (FencedStateEpoch).
        """
        _check_arguments(key, state_epoch=state_epoch)
        await self._send_for_share_partition(
            INITIALIZE, key, initialize_api.PartitionData(key.partition, state_epoch, start_offset)
        )

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ReadState:
        """Return the state for the leader with this leader epoch.

        Later requests with a lower leader epoch are fenced.
        Raises Uninitialised if there is no state, and FencedLeaderEpoch if there is a newer leader.
        """
        _check_arguments(key, leader_epoch=leader_epoch)
        result = await self._send_for_share_partition(
            READ, key, read_api.PartitionData(key.partition, leader_epoch)
        )
        return ReadState(result.state_epoch, result.start_offset, unpack(result.state_batches))

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int = -1,
        batches: Iterable[StateBatch] = (),
    ) -> None:
        """Store delivery progress; when this method returns, the write is durable.

        For each offset, the greatest (delivery count, delivery state) is kept, and the start offset never
        decreases. A repeated or late write is therefore harmless.  The complete count (KIP-1226) is the
        number of offsets at or above the start offset whose delivery is complete; servers before Kafka 4.2
        ignore it. Raises Uninitialised, FencedLeaderEpoch, FencedStateEpoch.
        """
        _check_arguments(key, state_epoch=state_epoch, leader_epoch=leader_epoch)
        part = write_api.PartitionData(
            partition=key.partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=delivery_complete_count,
            state_batches=_pack_batches(list(batches)),
        )
        await self._send_for_share_partition(WRITE, key, part)

    async def delete(self, key: SharePartitionKey) -> None:
        """Delete the state; if there is no state, the call succeeds."""
        _check_arguments(key)
        await self._send_for_share_partition(DELETE, key, delete_api.PartitionData(key.partition))

    async def summary(self, key: SharePartitionKey) -> StateSummary:
        """Return epochs, start offset and complete count; this call fences no leader."""
        _check_arguments(key)
        result = await self._send_for_share_partition(
            SUMMARY, key, summary_api.PartitionData(key.partition, 0)
        )
        return StateSummary(
            result.state_epoch, result.leader_epoch, result.start_offset, result.delivery_complete_count
        )

    # Many share-partitions.

    @overload
    async def send(
        self, request: initialize_api.InitializeShareGroupStateRequest
    ) -> initialize_api.InitializeShareGroupStateResponse: ...
    @overload
    async def send(
        self, request: read_api.ReadShareGroupStateRequest
    ) -> read_api.ReadShareGroupStateResponse: ...
    @overload
    async def send(
        self, request: write_api.WriteShareGroupStateRequest
    ) -> write_api.WriteShareGroupStateResponse: ...
    @overload
    async def send(
        self, request: delete_api.DeleteShareGroupStateRequest
    ) -> delete_api.DeleteShareGroupStateResponse: ...
    @overload
    async def send(
        self, request: summary_api.ReadShareGroupStateSummaryRequest
    ) -> summary_api.ReadShareGroupStateSummaryResponse: ...
    async def send(self, request: Any) -> Any:
        """Send a request for many share-partitions of a group to all their coordinators.

        The requests to the coordinators are concurrent.  The response has one result for each
        share-partition, in request order.  Errors are codes in the results; the client itself adds
        NETWORK_EXCEPTION, REQUEST_TIMED_OUT and UNSUPPORTED_VERSION.  Retriable parts are retried together,
        so one slow share-partition delays the whole response.
        """
        rpc = RPC_BY_REQUEST[type(request)]
        outcomes = await self._send_with_retries(rpc, request.group_id, parts_by_key(request))
        return make_response(
            rpc, ((key, _make_result(rpc, key, outcome)) for key, outcome in outcomes.items())
        )

    # Attempts.

    async def _send_for_share_partition(self, rpc: Rpc, key: SharePartitionKey, part: Any) -> Any:
        outcome = (await self._send_with_retries(rpc, key.group_id, {key: [part]}))[key]
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    async def _send_with_retries(
        self, rpc: Rpc, group_id: str, parts: Parts
    ) -> dict[SharePartitionKey, _Outcome]:
        outcomes: dict[SharePartitionKey, _Outcome] = {}
        failed_attempts = 0
        while True:
            outcomes.update(await self._send_once(rpc, group_id, parts))
            parts = {key: part for key, part in parts.items() if _is_retriable(outcomes[key])}
            failed_attempts += 1
            if not parts or failed_attempts >= self._retry.attempts_max:
                return outcomes
            await self._wait_before_retry(self._retry.wait_s(failed_attempts, self._random()))

    async def _send_once(self, rpc: Rpc, group_id: str, parts: Parts) -> dict[SharePartitionKey, _Outcome]:
        """Find the coordinators, and send each coordinator its parts of the request."""
        outcomes: dict[SharePartitionKey, _Outcome] = {}
        parts_at: dict[Node, dict[SharePartitionKey, list[Any]]] = {}
        for key, found in (await self._lookup.find_coordinators(parts)).items():
            if isinstance(found, ShareCoordinatorError):
                outcomes[key] = _Outcome(None, found)
            else:
                parts_at.setdefault(found, {})[key] = parts[key]
        asked = [self._send_to_node(node, rpc, group_id, its_parts) for node, its_parts in parts_at.items()]
        # Usually there is one coordinator. A request to a single coordinator is awaited directly, without a
        # task.
        answers = await asyncio.gather(*asked) if len(asked) > 1 else [await one for one in asked]
        for answered in answers:
            outcomes.update(answered)
        return {key: outcomes[key] for key in parts}

    async def _send_to_node(
        self, node: Node, rpc: Rpc, group_id: str, parts: Parts
    ) -> dict[SharePartitionKey, _Outcome]:
        """Send one request to one coordinator. Raises only ClientClosed and EncodeError."""
        try:
            connection = await self._nodes.get_connection(node)
            response = await connection.request(make_request(rpc, group_id, parts))
        except ClientClosed:
            raise
        except ShareCoordinatorError as error:
            if error.retriable:
                self._lookup.forget_node(node)
            return {key: _Outcome(None, error.with_key(key)) for key in parts}
        results = results_by_key(group_id, response)
        outcomes = {key: _make_outcome(rpc, key, results.get(key)) for key in parts}
        for key, outcome in outcomes.items():
            if _is_retriable(outcome):
                self._lookup.forget(key)
        return outcomes

    async def _wait_before_retry(self, wait_s: float) -> None:
        """Wait before the next attempt; closing the client ends the wait."""
        sleeping = asyncio.ensure_future(self._sleep(wait_s))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({sleeping, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            closing.cancel()


def _make_outcome(rpc: Rpc, key: SharePartitionKey, result: Any) -> _Outcome:
    """Return the outcome for the result of a share-partition; None means a missing result."""
    if result is None:
        message = "The answer has no result for this share-partition."
        return _Outcome(None, ShareCoordinatorError(ErrorCode.UNKNOWN_SERVER_ERROR, message, key))
    if not result.error_code:
        return _Outcome(result, None)
    error = error_for_code(result.error_code, result.error_message, key, needs_state=rpc.needs_state)
    return _Outcome(result, error)


def _is_retriable(outcome: _Outcome) -> bool:
    return outcome.error is not None and outcome.error.retriable


def _make_result(rpc: Rpc, key: SharePartitionKey, outcome: _Outcome) -> Any:
    if outcome.result is not None:
        return outcome.result
    assert outcome.error is not None
    return rpc.partition_result(key.partition, int(outcome.error.error_code), outcome.error.message)


def _check_arguments(key: SharePartitionKey, **not_negative: int) -> None:
    if not key.group_id or len(key.topic_id) != 16:
        raise ValueError(f"{key!r} is not a share-partition: it needs a group id and a topic id of 16 bytes")
    for name, value in (("partition", key.partition), *not_negative.items()):
        if value < 0:
            raise ValueError(f"{name} is {value}; it must not be negative")


def _pack_batches(batches: list[StateBatch]) -> bytes:
    for batch in batches:
        if batch.first_offset > batch.last_offset:
            raise ValueError(f"{batch} ends before it begins")
    try:
        return pack(batches)
    except struct.error as error:
        raise ValueError(f"a batch does not fit its fields: {error}") from None
