"""Connect to brokers through aiokafka, and keep the metadata of one topic.

Only aiokafka's connections (TLS, SASL, ApiVersions, framing) and request classes are used. aiokafka's client
class is not used, because it connects to one broker at a time and never returns to the bootstrap servers.
That class may also create a topic by requesting its metadata. Metadata requests of this module never create
topics.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, CloseReason, collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.broker_results import NoResponse, UnsupportedApi
from coordinator.cluster.kafka.metadata import ClusterMetadata
from coordinator.cluster.kafka.metadata_cache import MetadataCache
from coordinator.cluster.kafka.topic_requests import metadata_request, read_metadata
from coordinator.errors import LogRefused, LogUnavailable, error_text
from coordinator.security.outgoing_tls import OutgoingTls

_logger = logging.getLogger(__name__)

# The channel of metadata and other rare requests. Requests on other channels do not wait for metadata
# requests.
METADATA_CHANNEL = "metadata"

_METADATA_AGE_MAX_S = 60.0
_REFRESH_PAUSE_S = 0.1
_UNREACHABLE_PAUSE_S = 1.0
# How long a close waits until a broker has read what was sent.
_CLOSE_WAIT_S = 1.0

# Errors before a request was sent, so that no broker has executed it. LogUnavailable means that the SASL
# token cannot be read.
_NEVER_SENT = (OSError, TimeoutError, KafkaError, LogUnavailable)
# Errors of a server that rejects this client, or whose certificate is not trusted.
_REFUSED = (
    AuthenticationFailedError,
    IllegalSaslStateError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
    ssl.SSLCertVerificationError,
)


class _FailedAttempt(NamedTuple):
    """When the last attempt to connect failed, in loop time, and why."""

    at_s: float
    reason: str


class Connections:
    """One connection per broker and channel, opened when it is needed. Used on one event loop.

    `metadata` has the cluster and the topic as the brokers report them.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str | None,
        *,
        security: ClientSecurity | None,
        client_id: str,
        request_timeout_s: float,
        channel_timeouts_s: Mapping[str, float] | None = None,
    ) -> None:
        """Create the object without connecting. Raises ConfigError for TLS files that cannot be used.

        Without a topic, `metadata` has only the brokers. `channel_timeouts_s` maps channels to a response
        timeout that is longer than `request_timeout_s`.
        """
        security = security or ClientSecurity()
        self._bootstrap = bootstrap_servers
        self._topics = () if topic is None else (topic,)
        self._request_timeout_s = request_timeout_s
        self._channel_timeouts_s = channel_timeouts_s or {}
        self._tls = OutgoingTls(security)
        self._connect_options = {
            "client_id": client_id,
            # aiokafka's timeout for connecting and for each response.
            "request_timeout_ms": round(request_timeout_s * 1000),
            "security_protocol": security.protocol,
            "sasl_mechanism": security.mechanism,
            "sasl_plain_username": security.username or None,
            "sasl_plain_password": security.password or None,
            "sasl_oauth_token_provider": FileTokenProvider(security.token_file)
            if security.token_file
            else None,
        }
        self.metadata = MetadataCache(
            topic, self._request_metadata, self._request_metadata_from_bootstrap_servers, broker_order_seed()
        )
        self._connections: dict[tuple[int, str], AIOKafkaConnection] = {}
        self._connecting: dict[tuple[int, str], asyncio.Lock] = {}
        self._failed_attempts: dict[tuple[int, str], _FailedAttempt] = {}
        self._refresh_asked = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None

    def start_refreshing(self) -> None:
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(
                self._refresh_metadata_periodically(), name="kafka metadata"
            )

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await self.metadata.close()
        writers = [each._writer for each in self._connections.values() if each._writer is not None]
        closing = [connection.close(reason=CloseReason.SHUTDOWN) for connection in self._connections.values()]
        self._connections.clear()
        try:
            if waiting := [closed for closed in closing if closed is not None]:
                await asyncio.wait(waiting, timeout=_CLOSE_WAIT_S)
        finally:
            # A broker that does not read its requests, or does not answer the end of TLS, is not waited for.
            for writer in writers:
                writer.transport.abort()

    def refresh_soon(self) -> None:
        """Request a metadata refresh; the frequency of refreshes is limited."""
        self._refresh_asked.set()

    def unreachable_reason(self) -> str | None:
        return self.metadata.unreachable_reason

    def node_ids(self) -> list[int]:
        return list(self.metadata.addresses)

    def address(self, node: int) -> str:
        """Return the address of a broker ("host:port"), "" if it is not known."""
        host, port = self.metadata.addresses.get(node, ("", 0))
        return f"{host}:{port}" if host else ""

    def add_address(self, node: int, host: str, port: int) -> None:
        """Store the address of a broker unless it is known."""
        self.metadata.addresses.setdefault(node, (host, port))

    def close_connection(self, node: int, channel: str) -> None:
        """Close a connection whose request was cancelled, because it would delay later requests."""
        connection = self._connections.pop((node, channel), None)
        if connection is not None:
            _abort(connection)

    # Metadata.

    async def _refresh_metadata_periodically(self) -> None:
        while True:
            was_reachable = self.unreachable_reason() is None
            try:
                async with asyncio.timeout(_METADATA_AGE_MAX_S if was_reachable else _UNREACHABLE_PAUSE_S):
                    await self._refresh_asked.wait()
            except TimeoutError:
                pass
            had_errors = self._refresh_asked.is_set()
            self._refresh_asked.clear()
            try:
                await self.refresh(ask_others=had_errors)
            except LogUnavailable as error:
                if was_reachable:
                    _logger.warning("%s", error)
            except Exception:
                # Refreshing continues after any error, because new leaders are found only through metadata.
                _logger.exception("Metadata of Kafka could not be refreshed; trying again")
            await asyncio.sleep(_REFRESH_PAUSE_S)

    async def refresh(
        self, *, wait_for_others: bool = False, ask_others: bool = False
    ) -> list[ClusterMetadata]:
        return await self.metadata.refresh(wait_for_others=wait_for_others, ask_others=ask_others)

    async def _request_metadata(self, node: int) -> ClusterMetadata:
        return read_metadata(await self.send(node, METADATA_CHANNEL, metadata_request(self._topics)))

    async def _request_metadata_from_bootstrap_servers(self) -> ClusterMetadata:
        why: object = "no bootstrap server is given"
        kind: type[LogUnavailable] = LogUnavailable
        for host, port, _ in collect_hosts(self._bootstrap):
            try:
                connection = await self._connect(METADATA_CHANNEL, host, port)
                try:
                    return read_metadata(await connection.send(metadata_request(self._topics)))
                finally:
                    _abort(connection)
            except _NEVER_SENT as error:
                if kind is LogUnavailable:
                    why = f"{host}:{port}: {error_text(error)}"
                if isinstance(error, _REFUSED):
                    kind = LogRefused
        raise kind(f"No broker of {self._bootstrap} can be reached ({why}).")

    # Requests.

    async def send_to_any_broker(self, request: Any) -> Any:
        """Send a request to one broker after the other until one answers. Raises LogUnavailable."""
        error: NoResponse = NoResponse("no broker is known", sent=False)
        # Begin with the last broker that answered: each broker that does not answer costs a request timeout.
        for node in self.metadata.nodes_best_first():
            try:
                answer = await self.send(node, METADATA_CHANNEL, request)
            except NoResponse as failed:
                error = failed
            else:
                self.metadata.record_response(node)
                return answer
        raise LogUnavailable(str(error)) from error

    async def send(self, node: int, channel: str, request: Any) -> Any:
        """Send a request to a broker; return the response. Raises NoResponse and UnsupportedApi."""
        connection = await self._open_connection(node, channel)
        try:
            answer = connection.send(request)
        except (IncompatibleBrokerVersion, NotImplementedError) as error:
            raise UnsupportedApi(f"broker {node}: {error}") from error
        except KafkaError as error:
            raise NoResponse(f"broker {node}: {error_text(error)}", sent=False) from error
        try:
            return await answer
        except (OSError, TimeoutError, KafkaError) as error:
            # Close the connection: a late response would match no request.
            _abort(connection)
            self.refresh_soon()
            raise NoResponse(f"broker {node} did not answer: {error_text(error)}", sent=True) from error

    def find_open_connection(self, node: int, channel: str) -> AIOKafkaConnection | None:
        connection = self._connections.get((node, channel))
        return connection if connection is not None and connection.connected() else None

    async def _open_connection(self, node: int, channel: str) -> AIOKafkaConnection:
        key = (node, channel)
        lock = self._connecting.setdefault(key, asyncio.Lock())
        asked_s = asyncio.get_running_loop().time()
        async with lock:
            failed = self._failed_attempts.get(key)
            if failed is not None and failed.at_s > asked_s:
                # Otherwise, the last of many requests would wait a connection timeout for each of them.
                raise NoResponse(failed.reason, sent=False)
            address = self.metadata.addresses.get(node)
            if address is None:
                raise NoResponse(f"broker {node} is not known", sent=False)
            connection = self._connections.get(key)
            if connection is not None:
                if connection.connected() and (connection.host, connection.port) == address:
                    return connection
                _abort(connection)
            try:
                connection = await self._connect(channel, *address)
            except _NEVER_SENT as error:
                self._connections.pop(key, None)
                self.refresh_soon()
                host, port = address
                reason = f"broker {node} at {host}:{port}: {error_text(error)}"
                self._failed_attempts[key] = _FailedAttempt(asyncio.get_running_loop().time(), reason)
                raise NoResponse(reason, sent=False) from error
            self._connections[key] = connection
            return connection

    async def _connect(self, channel: str, host: str, port: int) -> AIOKafkaConnection:
        options = self._connect_options | {"ssl_context": self._tls.context()}
        timeout_s = self._channel_timeouts_s.get(channel)
        if timeout_s is None:
            return await create_conn(host, port, **options)
        # The longer timeout of a channel does not apply to connecting.
        async with asyncio.timeout(self._request_timeout_s):
            options["request_timeout_ms"] = round(timeout_s * 1000)
            return await create_conn(host, port, **options)


class FileTokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Reads a SASL token from a file at each login, because another program renews the token."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    async def token(self) -> str:
        """Return the token. Raises LogUnavailable if the file cannot be read, because it may appear later."""
        try:
            return (await asyncio.to_thread(self._file.read_text, "utf-8")).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LogUnavailable(f"no token in {self._file}: {error}") from None


def broker_order_seed() -> int:
    """Return a number that differs between processes, so that they ask different brokers first."""
    return crc32(f"{socket.gethostname()}:{os.getpid()}".encode())


def _abort(connection: AIOKafkaConnection) -> None:
    """Close a connection without waiting until the broker reads what was sent, or ends TLS."""
    writer = connection._writer
    connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
    if writer is not None:
        writer.transport.abort()
