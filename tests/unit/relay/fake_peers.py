"""A fake broker, a fake coordinator and fake peers on real sockets, and a relay between them.

`FakeBroker` is as strict as Kafka's SaslServerAuthenticator: it answers an unexpected request with an error
and closes the connection. After the authentication it answers DescribeCluster; the test handles all other
requests.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from struct import Struct
from typing import Any

from coordinator.config import HostPort
from coordinator.security.outgoing_tls import OutgoingTls
from coordinator.security.principals import AllowedPrincipals, MappingRules
from coordinator.security.tls import ServerTls
from coordinator.serve.relay.connection import PeerCheck, UpstreamRoute
from coordinator.serve.relay.limits import RelayLimits
from coordinator.serve.relay.listener import Listener
from coordinator.serve.relay.metrics import RelayMetrics
from coordinator.serve.relay.streams import UpstreamServer
from protocol.errors import ErrorCode
from protocol.messages import request_header, sasl_authenticate, sasl_handshake
from tests.kafka.ports import free_ports
from tests.unit.coroutine_tests import wait_until

HERE = "127.0.0.1"
USERS = {"kafka": "secret", "eve": "hers"}
PERSISTER, FETCHER = "Persister-client-1", "broker-1-fetcher-0"
METADATA, API_VERSIONS, WRITE, FETCH, DESCRIBE_CLUSTER = 3, 18, 85, 1, 60
MECHANISMS = ("PLAIN", "SCRAM-SHA-512")
# Short limits, so that tests of timeouts end quickly.
LIMITS = RelayLimits(connect_s=30, retry_s=0.05, broker_attempts=3, coordinator_wait_s=30, sweep_s=0.05)

_SIZE = Struct(">i")
_CORRELATION_ID = Struct(">i")


def encode_frame(body: bytes) -> bytes:
    return _SIZE.pack(len(body)) + body


def encode_request(
    api_key: int, client_id: str | None, body: bytes = b"", *, version: int = 1, correlation_id: int = 7
) -> bytes:
    """Return a request frame with its size; the header has version 1."""
    header = request_header.RequestHeader(api_key, version, correlation_id, client_id)
    return encode_frame(request_header.encode(header, 1) + body)


# The response that tests use for all requests.
ANSWER = encode_frame(b"\0\0\0\7an answer")


def handshake_request(mechanism: str = "PLAIN", version: int = 1) -> bytes:
    body = sasl_handshake.encode_request(sasl_handshake.SaslHandshakeRequest(mechanism), version)
    return encode_request(sasl_handshake.API_KEY, None, body, version=version)


def token_request(auth_bytes: bytes, version: int = 2) -> bytes:
    """Return the frame of a SaslAuthenticate request."""
    header = request_header.RequestHeader(sasl_authenticate.API_KEY, version, 8, None)
    asked = sasl_authenticate.SaslAuthenticateRequest(auth_bytes)
    header_version = 2 if version == 2 else 1
    return encode_frame(
        request_header.encode(header, header_version) + sasl_authenticate.encode_request(asked, version)
    )


def plain_token(user: str = "kafka", password: str | None = None) -> bytes:
    return f"\0{user}\0{USERS[user] if password is None else password}".encode()


class FrameStream:
    """One end of a connection, which sends bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._put_back = b""

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def send_all(self, data: bytes) -> None:
        """Send the bytes and wait until the transport has accepted them."""
        self._writer.write(data)
        await self._writer.drain()

    def close_sending(self) -> None:
        self._writer.write_eof()

    def close_connection(self) -> None:
        self._writer.close()

    def put_back(self, data: bytes) -> None:
        """Make the next read begin with `data`."""
        self._put_back = data + self._put_back

    async def read_exactly(self, count: int) -> bytes:
        data, self._put_back = self._put_back[:count], self._put_back[count:]
        async with asyncio.timeout(60):
            return data + await self._reader.readexactly(count - len(data))

    async def read_frame(self) -> bytes:
        """Read a frame; return it without its size."""
        (size,) = _SIZE.unpack(await self.read_exactly(_SIZE.size))
        return await self.read_exactly(size)

    async def wait_until_closed(self) -> bool:
        """Wait until the other side closes; return whether it sent no further byte."""
        async with asyncio.timeout(60):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

    async def exchange_frame(self, data: bytes) -> bytes:
        """Send the bytes; return the next received frame."""
        self.send_bytes(data)
        return await self.read_frame()

    async def log_in(self, auth_bytes: bytes | None = None, mechanism: str = "PLAIN") -> None:
        """Authenticate as brokers do; assert that the login succeeds."""
        await self.exchange_frame(encode_request(API_VERSIONS, None, version=4))
        await self.exchange_frame(handshake_request(mechanism))
        answer = await self.exchange_frame(token_request(plain_token() if auth_bytes is None else auth_bytes))
        assert answer[5:7] == b"\0\0", "the login failed"


class FakeServer:
    """A server that queues its connections for the test, which sends all responses."""

    def __init__(self) -> None:
        self._connections: asyncio.Queue[FrameStream] = asyncio.Queue()
        self._serving: dict[asyncio.Task[Any], FrameStream] = {}
        self._server: asyncio.Server | None = None
        # A reserved port, so that a restarted server can listen at the same one.
        (self._port,) = free_ports(1)
        self.accepted = 0
        self.left = 0

    @property
    def address(self) -> HostPort:
        return HostPort(HERE, self._port)

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen, always at the same port."""
        self._server = await asyncio.start_server(self._handle_connection, HERE, self._port, ssl=tls)

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        for task, stream in self._serving.items():
            stream.close_connection()
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self._serving.clear()

    async def next_connection(self) -> FrameStream:
        """Wait for the next connection for which `authenticate` returned True."""
        async with asyncio.timeout(60):
            return await self._connections.get()

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        stream = self._serving[task] = FrameStream(reader, writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            if await self.authenticate(stream):
                self._connections.put_nowait(stream)
                return
        self.left += 1
        stream.close_connection()

    async def authenticate(self, stream: FrameStream) -> bool:
        """Authenticate a new connection; return False if the connection ended meanwhile."""
        return True


class FakeBroker(FakeServer):
    """A broker that authenticates connections.

    `next_connection` returns an authenticated connection when its first request other than DescribeCluster
    has arrived.
    """

    def __init__(self) -> None:
        super().__init__()
        self.session_lifetime_ms = 0
        self.describe_cluster_requests = 0

    async def authenticate(self, stream: FrameStream) -> bool:
        authentication = _Authentication(self)
        while True:
            frame = await stream.read_frame()
            header, _ = request_header.decode(frame, 0, 1)
            if authentication.user and header.request_api_key == DESCRIBE_CLUSTER:
                self.describe_cluster_requests += 1
                stream.send_bytes(
                    encode_frame(
                        _CORRELATION_ID.pack(header.correlation_id) + describe_cluster_body(ErrorCode.NONE)
                    )
                )
            elif authentication.user or authentication.has_bare_tokens(header):
                stream.put_back(encode_frame(frame))
                return True
            else:
                answer = authentication.answer_request(frame, header)
                if answer:
                    stream.send_bytes(encode_frame(_CORRELATION_ID.pack(header.correlation_id) + answer))
                if authentication.is_lost:
                    return False


def describe_cluster_body(error_code: ErrorCode) -> bytes:
    """Return the beginning of a DescribeCluster response, without the correlation id."""
    return b"\0" + Struct(">ih").pack(0, error_code) + b"and so on"


class _Authentication:
    """The authentication state of one connection of the fake broker."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._mechanism = ""
        self._messages = 0
        self.is_lost = False
        self.user: str | None = None

    def has_bare_tokens(self, header: request_header.RequestHeader) -> bool:
        """Return whether SASL tokens without request headers follow (SaslHandshake version 0)."""
        return header.request_api_key == sasl_handshake.API_KEY and header.request_api_version == 0

    def answer_request(self, frame: bytes, header: request_header.RequestHeader) -> bytes:
        """Return the response to a request; empty means to close without a response."""
        key, version = header.request_api_key, header.request_api_version
        if not self._mechanism and key == API_VERSIONS:
            return b"versions"
        if not self._mechanism and key == sasl_handshake.API_KEY:
            wanted = sasl_handshake.decode_request(frame, request_header.decode(frame, 0, 1)[1], version)
            self._mechanism = wanted.mechanism if wanted.mechanism in MECHANISMS else ""
            self.is_lost = not self._mechanism
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM if self.is_lost else ErrorCode.NONE
            shaken = sasl_handshake.SaslHandshakeResponse(code, list(MECHANISMS))
            return sasl_handshake.encode_response(shaken, version)
        if not self._mechanism:
            self.is_lost = True
            return b""
        if key != sasl_authenticate.API_KEY:
            self.is_lost = True
            return describe_cluster_body(ErrorCode.ILLEGAL_SASL_STATE)
        _, at = request_header.decode(frame, 0, 2 if version == 2 else 1)
        self._check_credentials(sasl_authenticate.decode_request(frame, at, version).auth_bytes)
        told = sasl_authenticate.SaslAuthenticateResponse(
            ErrorCode.SASL_AUTHENTICATION_FAILED if self.is_lost else ErrorCode.NONE,
            "no" if self.is_lost else None,
            b"",
            self._broker.session_lifetime_ms if self.user else 0,
        )
        return (b"\0" if version == 2 else b"") + sasl_authenticate.encode_response(told, version)

    def _check_credentials(self, said: bytes) -> None:
        """Set `user` if the credentials are correct, else `is_lost`; the first SCRAM message sets neither."""
        self._messages += 1
        if self._mechanism == "PLAIN":
            _, user, password = said.decode().split("\0")
            self.user = user if USERS.get(user) == password else None
            self.is_lost = self.user is None
        elif self._messages == 2:
            self.user = "kafka" if said == b"proof" else None
            self.is_lost = self.user is None


class RelaySetup:
    """The relay with its fake broker and fake coordinator."""

    def __init__(
        self, listener: Listener, broker: FakeBroker, coordinator: FakeServer, figures: RelayMetrics
    ) -> None:
        self.listener = listener
        self.broker = broker
        self.coordinator = coordinator
        self.figures = figures
        self._streams: list[FrameStream] = []

    async def connect_peer(self, tls: ssl.SSLContext | None = None) -> FrameStream:
        name = "localhost" if tls is not None else None
        stream = FrameStream(
            *await asyncio.open_connection(HERE, self.listener.port, ssl=tls, server_hostname=name)
        )
        self._streams.append(stream)
        return stream

    def close_peers(self) -> None:
        for stream in self._streams:
            stream.close_connection()


@asynccontextmanager
async def run_relay(
    *,
    check: PeerCheck = "sasl",
    allowed: str = "User:kafka",
    limits: RelayLimits = LIMITS,
    tls: ServerTls | None = None,
    broker_tls: tuple[ssl.SSLContext, OutgoingTls] | None = None,
    coordinator_tls: tuple[ssl.SSLContext, OutgoingTls] | None = None,
) -> AsyncIterator[RelaySetup]:
    """Start a relay and its fakes. `..._tls` has the TLS context of a fake and the relay's client TLS."""
    broker, coordinator, figures = FakeBroker(), FakeServer(), RelayMetrics()
    await broker.start(broker_tls and broker_tls[0])
    await coordinator.start(coordinator_tls and coordinator_tls[0])
    route = UpstreamRoute(
        broker=UpstreamServer(broker.address, broker_tls and broker_tls[1], "localhost"),
        coordinator=UpstreamServer(coordinator.address, coordinator_tls and coordinator_tls[1], "localhost"),
        check=check,
        allowed=AllowedPrincipals.parse(allowed),
        rules=MappingRules.parse("DEFAULT"),
        sub_claim="sub",
        tls=tls,
    )
    listener = Listener(route, limits, figures)
    await listener.start(HostPort(HERE, 0))
    setup = RelaySetup(listener, broker, coordinator, figures)
    try:
        yield setup
    finally:
        setup.close_peers()
        await listener.stop()
        await broker.stop()
        await coordinator.stop()


async def connect_persister(here: RelaySetup) -> tuple[FrameStream, FrameStream]:
    """Return a persister connection routed to the coordinator, and its end at the coordinator."""
    peer = await here.connect_peer()
    await peer.log_in()
    asked = encode_request(WRITE, PERSISTER)
    peer.send_bytes(asked)
    coordinator = await here.coordinator.next_connection()
    assert encode_frame(await coordinator.read_frame()) == asked
    coordinator.send_bytes(ANSWER)
    await peer.read_frame()
    return peer, coordinator


async def connect_fetcher(here: RelaySetup) -> tuple[FrameStream, FrameStream]:
    """Return a fetcher connection routed to the broker, and its end at the broker."""
    peer = await here.connect_peer()
    await peer.log_in()
    asked = encode_request(FETCH, FETCHER)
    peer.send_bytes(asked)
    broker = await here.broker.next_connection()
    assert encode_frame(await broker.read_frame()) == asked
    return peer, broker


async def wait_seconds(seconds: float) -> None:
    """Wait until this many seconds have passed on the event loop."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    await wait_until(lambda: loop.time() > end_s)
