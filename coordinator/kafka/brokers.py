"""A Kafka cluster through aiokafka: the only module that knows the library.

What is used of it: a connection (TLS, SASL, ApiVersions, framing) and the request classes.  Not its client,
which connects to one broker at a time, never goes back to the bootstrap servers, and by asking about a topic
may create it.  Metadata is asked for here, never with auto-creation.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason, collect_hosts, create_conn
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError
from aiokafka.protocol.admin import CreateTopicsRequest, DeleteRecordsRequest, DescribeConfigsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from coordinator.errors import LogUnavailable
from coordinator.kafka import cluster as kafka
from coordinator.kafka.cluster import (
    NO_NODE,
    Fetched,
    Listed,
    NoAnswer,
    Produced,
    ProducerId,
    TopicShape,
    Unsupported,
)
from coordinator.kafka.security import Security

_logger = logging.getLogger(__name__)

_LATEST, _EARLIEST = -1, -2
_READ_UNCOMMITTED = 0
_ACKS_ALL = -1
_TRANSACTION = 1
_TOPIC_RESOURCE = 2
_LANE = "metadata"

_METADATA_AGE_MAX_S = 60.0
_REFRESH_PAUSE_S = 0.1
_TROUBLED_PAUSE_S = 1.0
# A transaction that is never begun cannot time out; brokers want a number within their maximum.
_TRANSACTION_TIMEOUT_MS = 60_000

_NEVER_SENT = (OSError, TimeoutError, KafkaError)


class Brokers:
    """A `Cluster` behind bootstrap servers, "host:port,host:port"."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        security: Security | None = None,
        client_id: str = "share-coordinator",
        request_timeout_s: float = 10.0,
    ) -> None:
        """Prepare; nothing is connected. Raises ConfigError for TLS files that cannot be used."""
        security = security or Security()
        self._bootstrap = bootstrap_servers
        self._topic = topic
        self._request_timeout_s = request_timeout_s
        self._connect_options = {
            "client_id": client_id,
            # Ours ends before the library's: it decides whether a request was sent.
            "request_timeout_ms": round(request_timeout_s * 1000),
            "security_protocol": security.protocol,
            "ssl_context": security.tls_context(),
            "sasl_mechanism": security.mechanism,
            "sasl_plain_username": security.username or None,
            "sasl_plain_password": security.password or None,
        }
        self._addresses: dict[int, tuple[str, int]] = {}
        self._leaders: dict[int, int] = {}
        self._coordinators: dict[str, int] = {}
        self._connections: dict[tuple[int, str], AIOKafkaConnection] = {}
        self._connecting: dict[tuple[int, str], asyncio.Lock] = {}
        self._informant = NO_NODE
        self._trouble: str | None = None
        self._refresh_asked = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Find the cluster and keep knowing it."""
        await self._refresh()
        self._refreshing = asyncio.create_task(self._keep_fresh(), name="kafka metadata")

    async def close(self) -> None:
        """Close all connections."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        closing = [connection.close(reason=CloseReason.SHUTDOWN) for connection in self._connections.values()]
        self._connections.clear()
        await asyncio.gather(*(closed for closed in closing if closed is not None))

    def leader(self, partition: int) -> int:
        """Return the node that leads a partition as far as is known."""
        return self._leaders.get(partition, NO_NODE)

    def refresh_soon(self) -> None:
        """Ask who leads what, soon and not too often."""
        self._refresh_asked.set()

    def trouble(self) -> str | None:
        """Return why no broker can be reached, if none can."""
        return self._trouble

    # Metadata.

    async def _keep_fresh(self) -> None:
        while True:
            try:
                async with asyncio.timeout(
                    _METADATA_AGE_MAX_S if self._trouble is None else _TROUBLED_PAUSE_S
                ):
                    await self._refresh_asked.wait()
            except TimeoutError:
                pass
            self._refresh_asked.clear()
            was_troubled = self._trouble is not None
            try:
                await self._refresh()
            except LogUnavailable as error:
                if not was_troubled:
                    _logger.warning("%s", error)
            await asyncio.sleep(_REFRESH_PAUSE_S)

    async def _refresh(self) -> None:
        """Ask any broker, at last the bootstrap servers. Raises LogUnavailable if none answers."""
        metadata = await self._any_metadata()
        self._addresses = {node: (host, port) for node, host, port, *_ in metadata.brokers}
        for code, topic, _, partitions in metadata.topics:
            if topic == self._topic and code == kafka.NONE:
                self._leaders = {partition: leader for _, partition, leader, *_ in partitions}
        if self._trouble is not None:
            _logger.info("Kafka is back")
            self._trouble = None

    async def _any_metadata(self) -> Any:
        request = MetadataRequest([self._topic], allow_auto_topic_creation=False)
        # Who answered last time first: one that hangs would cost the time of a request.
        for node in sorted(self._addresses, key=lambda node: node != self._informant):
            try:
                metadata = await self._ask(node, _LANE, request)
            except NoAnswer:
                continue
            self._informant = node
            return metadata
        why: object = "no bootstrap server is given"
        for host, port, _ in collect_hosts(self._bootstrap):
            try:
                connection = await create_conn(host, port, **self._connect_options)
                try:
                    return await connection.send(request)
                finally:
                    await connection.close()
            except _NEVER_SENT as error:
                why = f"{host}:{port}: {_told(error)}"
        self._trouble = f"No broker of {self._bootstrap} can be reached ({why})."
        raise LogUnavailable(self._trouble)

    # Requests about the topic.

    async def produce(
        self, node: int, lane: str, batches: Sequence[tuple[int, bytes]], timeout_ms: int
    ) -> Mapping[int, Produced]:
        """Append one batch to each of these partitions, acks=all."""
        request = ProduceRequest(None, _ACKS_ALL, timeout_ms, [(self._topic, list(batches))])
        response = await self._ask(node, lane, request)
        return {
            partition: Produced(code, base_offset)
            for _, partitions in response.topics
            for partition, code, base_offset, *_ in partitions
        }

    async def list_ends(self, node: int, lane: str, partitions: Sequence[int]) -> Mapping[int, Listed]:
        """Return the high watermarks."""
        return await self._list(node, lane, partitions, _LATEST)

    async def list_starts(self, node: int, lane: str, partitions: Sequence[int]) -> Mapping[int, Listed]:
        """Return the log start offsets."""
        return await self._list(node, lane, partitions, _EARLIEST)

    async def _list(
        self, node: int, lane: str, partitions: Sequence[int], which: int
    ) -> Mapping[int, Listed]:
        asked = [(partition, which) for partition in partitions]
        response = await self._ask(node, lane, OffsetRequest(-1, _READ_UNCOMMITTED, [(self._topic, asked)]))
        return {
            partition: Listed(code, log_offset)
            for _, answered in response.topics
            for partition, code, _, log_offset, *_ in answered
        }

    async def fetch(
        self, node: int, lane: str, positions: Mapping[int, int], bytes_max: int
    ) -> Mapping[int, Fetched]:
        """Return committed batches, without waiting for more."""
        asked = [(partition, position, bytes_max) for partition, position in positions.items()]
        request = FetchRequest(0, 0, bytes_max, _READ_UNCOMMITTED, [(self._topic, asked)])
        response = await self._ask(node, lane, request)
        return {
            answer[0]: Fetched(answer[1], answer[4], answer[-1] or b"")
            for _, answers in response.topics
            for answer in answers
        }

    async def delete_records(self, node: int, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Delete the records below these log offsets."""
        request = DeleteRecordsRequest(
            [(self._topic, list(offsets.items()))], round(self._request_timeout_s * 1000)
        )
        response = await self._ask(node, _LANE, request)
        return {partition: code for _, answers, *_ in response.topics for partition, _, code, *_ in answers}

    # Requests about a producer.

    async def producer_id(self, transactional_id: str | None) -> ProducerId:
        """Get a producer id from the broker that keeps the transactional id."""
        if transactional_id is None:
            node = next(iter(self._addresses), NO_NODE)
        else:
            code, node = await self._coordinator(transactional_id)
            if code != kafka.NONE:
                return ProducerId(code, -1, -1)
        request = InitProducerIdRequest(transactional_id, _TRANSACTION_TIMEOUT_MS)
        try:
            response = await self._ask(node, _LANE, request)
        except NoAnswer:
            self._coordinators.clear()
            raise
        if response.error_code != kafka.NONE:
            self._coordinators.pop(transactional_id or "", None)
        return ProducerId(response.error_code, response.producer_id, response.producer_epoch)

    async def _coordinator(self, transactional_id: str) -> tuple[int, int]:
        known = self._coordinators.get(transactional_id)
        if known is not None:
            return kafka.NONE, known
        found = await self._ask_any(FindCoordinatorRequest(transactional_id, _TRANSACTION))
        if found.error_code == kafka.NONE:
            self._coordinators[transactional_id] = found.coordinator_id
            self._addresses.setdefault(found.coordinator_id, (found.host, found.port))
        return found.error_code, found.coordinator_id

    # Administration.

    async def brokers(self) -> int:
        """Return how many brokers there are."""
        return len(self._addresses)

    async def describe_topic(self) -> TopicShape | None:
        """Look at the topic as the brokers know it now."""
        metadata = await self._any_metadata()
        for code, topic, _, partitions in metadata.topics:
            if topic != self._topic:
                continue
            if code == kafka.NONE:
                self._leaders = {partition: leader for _, partition, leader, *_ in partitions}
                replicas = min(len(replicas) for _, _, _, replicas, *_ in partitions)
                ready = all(leader != NO_NODE for leader in self._leaders.values())
                return TopicShape(len(partitions), replicas, ready)
            if code != kafka.UNKNOWN_TOPIC_OR_PARTITION:
                raise LogUnavailable(f"topic {self._topic} cannot be looked at: Kafka's error {code}")
        return None

    async def create_topic(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> str | None:
        """Create the topic; any broker leads the request to the controller."""
        wanted: tuple[Any, ...] = (self._topic, partitions, replicas, [], list(configs.items()))
        timeout_ms = round(self._request_timeout_s * 1000)
        response = await self._ask_any(CreateTopicsRequest([wanted], timeout_ms, False))
        for _, code, message, *_ in response.topic_errors:
            if code not in (kafka.NONE, kafka.TOPIC_ALREADY_EXISTS):
                return f"{message or 'no reason given'} (Kafka's error {code})"
        return None

    async def topic_configs(self) -> Mapping[str, str] | None:
        """Return all configs of the topic, those that are defaults too."""
        try:
            response = await self._ask_any(
                DescribeConfigsRequest([(_TOPIC_RESOURCE, self._topic, None)], include_synonyms=False)
            )
        except Unsupported:
            return None
        code, _, _, _, entries = response.resources[0]
        if code != kafka.NONE:
            return None
        return {name: value for name, value, *_ in entries if value is not None}

    # Connections.

    async def _ask_any(self, request: Any) -> Any:
        error: NoAnswer = NoAnswer("no broker is known", sent=False)
        for node in list(self._addresses):
            try:
                return await self._ask(node, _LANE, request)
            except NoAnswer as failed:
                error = failed
        raise LogUnavailable(str(error)) from error

    async def _ask(self, node: int, lane: str, request: Any) -> Any:
        """Send a request on a lane of a broker and return the response. Raises NoAnswer and Unsupported."""
        connection = await self._connection(node, lane)
        try:
            answer = connection.send(request)
        except (IncompatibleBrokerVersion, NotImplementedError) as error:
            raise Unsupported(f"broker {node}: {error}") from error
        except KafkaError as error:
            raise NoAnswer(f"broker {node}: {_told(error)}", sent=False) from error
        try:
            return await answer
        except (OSError, TimeoutError, KafkaError) as error:
            # The answer would come to nobody's question after this.
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
            self.refresh_soon()
            raise NoAnswer(f"broker {node} did not answer: {_told(error)}", sent=True) from error

    async def _connection(self, node: int, lane: str) -> AIOKafkaConnection:
        key = (node, lane)
        lock = self._connecting.setdefault(key, asyncio.Lock())
        async with lock:
            address = self._addresses.get(node)
            if address is None:
                raise NoAnswer(f"broker {node} is not known", sent=False)
            connection = self._connections.get(key)
            if connection is not None:
                if connection.connected() and (connection.host, connection.port) == address:
                    return connection
                connection.close()
            try:
                connection = await create_conn(*address, **self._connect_options)
            except _NEVER_SENT as error:
                self._connections.pop(key, None)
                self.refresh_soon()
                host, port = address
                raise NoAnswer(f"broker {node} at {host}:{port}: {_told(error)}", sent=False) from error
            self._connections[key] = connection
            return connection


def _told(error: BaseException) -> str:
    """Return what an error says, or its name if that is nothing."""
    return str(error) or type(error).__name__
