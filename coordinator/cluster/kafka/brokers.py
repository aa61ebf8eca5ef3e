"""Send the requests of the state log to the brokers of a cluster.

For Produce, ListOffsets and Fetch requests, the caller chooses a broker and a *channel*. A broker processes
the requests of a connection in order, and a Produce request with acks=all waits for the replicas. Each
channel is a separate connection, so requests on different channels do not wait for each other.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from aiokafka.protocol.admin import CreateTopicsRequest, DeleteRecordsRequest, DescribeConfigsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.broker_results import (
    NO_NODE,
    FetchResult,
    ListedOffset,
    NoResponse,
    ProduceResult,
    ProducerId,
    TopicDescription,
    UnsupportedApi,
)
from coordinator.cluster.kafka.connections import METADATA_CHANNEL, Connections
from coordinator.cluster.kafka.generated_requests import GeneratedRequest
from coordinator.cluster.kafka.metadata import topic_error_code
from coordinator.cluster.kafka.produce_connection import ProduceConnection
from coordinator.cluster.kafka.topic_requests import (
    fetch_request,
    produce_message,
    read_fetch_response,
    read_produce_response,
)
from coordinator.errors import LogRefused, LogUnavailable
from protocol.errors import ErrorCode, kafka_error
from protocol.messages import produce as produce_api

# Brokers answer DeleteRecords when all live replicas have deleted the records, or at its timeout.
_PRUNE_CHANNEL = "prune"
_LATEST, _EARLIEST = -1, -2
_READ_UNCOMMITTED = 0
_TRANSACTION = 1
_TOPIC_RESOURCE = 2
# Errors that a retry cannot resolve.
_REFUSALS = {
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_CONFIG,
    ErrorCode.POLICY_VIOLATION,
}
# InitProducerId requires a transaction timeout up to the broker's maximum. The timeout has no effect, because
# no transaction is begun.
_TRANSACTION_TIMEOUT_MS = 60_000


class Brokers:
    """A client of a cluster for one topic; `bootstrap_servers` is "host:port,host:port".

    Requests raise NoResponse if a broker does not answer.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        security: ClientSecurity | None = None,
        client_id: str = "share-coordinator",
        request_timeout_s: float = 10.0,
    ) -> None:
        """Create the object without connecting. Raises ConfigError for TLS files that cannot be used."""
        self._topic = topic
        self._request_timeout_s = request_timeout_s
        self._connections = Connections(
            bootstrap_servers,
            topic,
            security=security,
            client_id=client_id,
            request_timeout_s=request_timeout_s,
        )
        self._client_id = client_id
        self._produce_connections: dict[tuple[int, str], ProduceConnection] = {}
        self._coordinators: dict[str, int] = {}

    async def connect(self) -> None:
        """Request metadata from several brokers, and start to refresh the metadata periodically.

        Raises LogUnavailable if no bootstrap server can be used, LogRefused if one of them rejects this
        client.
        """
        await self._connections.refresh()
        await self._connections.refresh(wait_for_others=True)
        self._connections.start_refreshing()

    async def close(self) -> None:
        await self._connections.close()

    def leader(self, partition: int) -> int:
        return self._connections.metadata.leader(partition)

    def leader_epoch(self, partition: int) -> int:
        return self._connections.metadata.leader_epoch(partition)

    def refresh_soon(self) -> None:
        self._connections.refresh_soon()

    def unreachable_reason(self) -> str | None:
        return self._connections.unreachable_reason()

    def pin_topic_id(self) -> bytes:
        """Return the topic id and pin it: from now on, a new topic with the same name is not used.

        Returns NO_TOPIC_ID if no broker has answered.
        """
        return self._connections.metadata.topic.pin_id()

    def recreated_reason(self) -> str | None:
        return self._connections.metadata.recreated_reason()

    # Requests about the topic.

    def produce(
        self, node: int, channel: str, batches: Sequence[tuple[int, bytes]], timeout_ms: int
    ) -> Awaitable[Mapping[int, ProduceResult]]:
        """Append one batch to each of these partitions, acks=all; a channel takes one request at a time."""
        topic_id = self._connections.metadata.topic.topic_id
        connection = self._produce_connections.get((node, channel))
        address = self._connections.metadata.addresses.get(node)
        if connection is not None and connection.is_open_to(address):
            return connection.send(topic_id, batches, timeout_ms)
        message = produce_message(topic_id, batches, timeout_ms)
        return self._connect_and_produce(node, channel, GeneratedRequest(produce_api, message))

    async def _connect_and_produce(
        self, node: int, channel: str, request: GeneratedRequest
    ) -> Mapping[int, ProduceResult]:
        """Open a connection, and send its first request through aiokafka, which checks the version."""
        connections = self._connections
        response = await connections.send(node, channel, request)
        opened = connections.find_open_connection(node, channel)
        if opened is not None:
            self._produce_connections[node, channel] = ProduceConnection(
                opened,
                node=node,
                client_id=self._client_id,
                timeout_s=self._request_timeout_s,
                failed=connections.refresh_soon,
            )
        return read_produce_response(response)

    async def list_end_offsets(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        """Return the high watermarks."""
        return await self._list_offsets_at(node, channel, partitions, _LATEST)

    async def list_start_offsets(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        return await self._list_offsets_at(node, channel, partitions, _EARLIEST)

    async def list_offsets_after(
        self, node: int, channel: str, partitions: Sequence[int], time_ms: int
    ) -> Mapping[int, ListedOffset]:
        """Return the offset of the first record after a time by partition, -1 if there is none."""
        return await self._list_offsets_at(node, channel, partitions, time_ms + 1)

    async def _list_offsets_at(
        self, node: int, channel: str, partitions: Sequence[int], which: int
    ) -> Mapping[int, ListedOffset]:
        asked = [(partition, which) for partition in partitions]
        response = await self._connections.send(
            node, channel, OffsetRequest(-1, _READ_UNCOMMITTED, [(self._topic, asked)])
        )
        return {
            partition: ListedOffset(code, log_offset)
            for _, answered in response.topics
            for partition, code, _, log_offset, *_ in answered
        }

    async def fetch(
        self,
        node: int,
        channel: str,
        positions: Mapping[int, int],
        bytes_max: int,
        max_wait_ms: int = 0,
    ) -> Mapping[int, FetchResult]:
        """Return committed batches; if there are none, the broker waits up to `max_wait_ms`."""
        request = fetch_request(self._connections.metadata.topic, positions, bytes_max, max_wait_ms)
        return read_fetch_response(await self._connections.send(node, channel, request), positions)

    async def delete_records(self, node: int, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Delete records below these log offsets; return error codes by partition. Raises UnsupportedApi."""
        request = DeleteRecordsRequest(
            [(self._topic, list(offsets.items()))], round(self._request_timeout_s * 1000)
        )
        response = await self._connections.send(node, _PRUNE_CHANNEL, request)
        return {partition: code for _, answers, *_ in response.topics for partition, _, code, *_ in answers}

    # Requests about a producer.

    async def init_producer_id(self, transactional_id: str | None) -> ProducerId:
        """Get a producer id, with a higher producer epoch than any before for the same transactional id."""
        request = InitProducerIdRequest(transactional_id, _TRANSACTION_TIMEOUT_MS)
        if transactional_id is None:
            response = await self._connections.send_to_any_broker(request)
            return ProducerId(response.error_code, response.producer_id, response.producer_epoch)
        code, node = await self._find_transaction_coordinator(transactional_id)
        if code != ErrorCode.NONE:
            return ProducerId(code, -1, -1)
        try:
            response = await self._connections.send(node, METADATA_CHANNEL, request)
        except (NoResponse, asyncio.CancelledError):
            # If the caller's timeout ends first, the request is cancelled without a failure.
            self._coordinators.clear()
            self.refresh_soon()
            raise
        if response.error_code != ErrorCode.NONE:
            self._coordinators.pop(transactional_id, None)
        return ProducerId(response.error_code, response.producer_id, response.producer_epoch)

    async def _find_transaction_coordinator(self, transactional_id: str) -> tuple[int, int]:
        known = self._coordinators.get(transactional_id)
        if known is not None:
            return ErrorCode.NONE, known
        found = await self._connections.send_to_any_broker(
            FindCoordinatorRequest(transactional_id, _TRANSACTION)
        )
        if found.error_code == ErrorCode.NONE:
            self._coordinators[transactional_id] = found.coordinator_id
            self._connections.add_address(found.coordinator_id, found.host, found.port)
        return found.error_code, found.coordinator_id

    # Administration.

    async def broker_count(self) -> int:
        await self._connections.refresh()
        return len(self._connections.node_ids())

    async def describe_topic(self) -> TopicDescription | None:
        """Return the topic as the brokers report it now, None if it does not exist. Never creates it."""
        reported = await self._connections.refresh(wait_for_others=True)
        code = topic_error_code(reported, self._topic)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        if code != ErrorCode.NONE:
            error = LogRefused if code in _REFUSALS else LogUnavailable
            raise error(f"topic {self._topic} cannot be described: {kafka_error(code)}")
        partitions = self._connections.metadata.topic.partitions.values()
        replicas = min(len(partition.replicas) for partition in partitions)
        ready = all(partition.leader != NO_NODE for partition in partitions)
        return TopicDescription(len(partitions), replicas, ready)

    async def create_topic(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> bool:
        """Create the topic through any broker; return False if it exists already.

        Raises LogRefused if this client may not create it, LogUnavailable if it cannot be created now.
        """
        wanted: tuple[Any, ...] = (self._topic, partitions, replicas, [], list(configs.items()))
        timeout_ms = round(self._request_timeout_s * 1000)
        response = await self._connections.send_to_any_broker(
            CreateTopicsRequest([wanted], timeout_ms, False)
        )
        ((_, code, message, *_),) = response.topic_errors
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            error = LogRefused if code in _REFUSALS else LogUnavailable
            why = f"{message or 'no reason given'} ({kafka_error(code)})"
            raise error(f"topic {self._topic} cannot be created: {why}")
        return bool(code == ErrorCode.NONE)

    async def topic_configs(self) -> Mapping[str, str] | None:
        """Return all configs of the topic including defaults, None if this client may not read them.

        Raises LogUnavailable if the broker does not know a new topic yet.
        """
        try:
            response = await self._connections.send_to_any_broker(
                DescribeConfigsRequest([(_TOPIC_RESOURCE, self._topic, None)], include_synonyms=False)
            )
        except UnsupportedApi:
            return None
        code, _, _, _, entries = response.resources[0]
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise LogUnavailable(f"a broker does not know topic {self._topic} yet")
        if code != ErrorCode.NONE:
            return None
        return {name: value for name, value, *_ in entries if value is not None}
