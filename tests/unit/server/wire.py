"""A coordinator on a real socket, and a client that sends raw bytes and reads frames."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import Struct

from coordinator.config import HostPort
from coordinator.metrics import Metrics
from coordinator.serve.runtime import RuntimeLimits
from coordinator.serve.server import Api, CoordinatorDirectory, Listener, ListenerSecurityConfig, ServerLimits
from coordinator.serve.service import Service
from tests.manual_clock import ManualClock
from tests.unit.coroutine_tests import wait_until
from tests.unit.runtime.blocking_log import BlockingLog
from tests.unit.runtime.runtime_without_jobs import make_runtime

STATE_PARTITIONS = 4
_SIZE = Struct(">i")
_CORRELATION_ID = Struct(">i")
_HEADER = Struct(">hhih")


def request_frame(
    api_key: int, version: int, correlation_id: int, body: bytes, *, flexible: bool = True
) -> bytes:
    """Return a request frame with its size; the client id is "test"."""
    header = _HEADER.pack(api_key, version, correlation_id, 4) + b"test" + (b"\0" if flexible else b"")
    return _SIZE.pack(len(header) + len(body)) + header + body


class WireClient:
    """One client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read_frame(self) -> tuple[int, bytes]:
        """Read a response frame; return its correlation id and the remaining bytes."""
        async with asyncio.timeout(60):
            (size,) = _SIZE.unpack(await self.reader.readexactly(_SIZE.size))
            frame = await self.reader.readexactly(size)
        return _CORRELATION_ID.unpack_from(frame)[0], frame[_CORRELATION_ID.size :]

    async def wait_until_closed(self) -> bool:
        """Wait until the server closes the connection; return whether it sent no further byte."""
        async with asyncio.timeout(60):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


class ServedCoordinator:
    """A listener with a runtime over a BlockingLog."""

    def __init__(
        self,
        limits: ServerLimits,
        security: ListenerSecurityConfig | None = None,
        runtime_limits: RuntimeLimits | None = None,
    ) -> None:
        self.log = BlockingLog(STATE_PARTITIONS)
        self.log.blocking = False
        self.metrics = Metrics()
        self.runtime = make_runtime(
            self.log,
            STATE_PARTITIONS,
            clock=ManualClock(),
            metrics=self.metrics,
            limits=runtime_limits or RuntimeLimits(),
        )
        self.directory = CoordinatorDirectory(
            HostPort("localhost", 9095),
            node_id_first=1_000_000,
            node_ids=4,
            state_partitions=STATE_PARTITIONS,
        )
        sasl = security is not None and bool(security.mechanisms)
        api = Api(Service(self.runtime), self.directory, self.metrics, sasl=sasl)
        self.listener = Listener(api, self.metrics, limits, security)
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, tls: ssl.SSLContext | None = None) -> WireClient:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=tls, server_hostname="localhost" if tls is not None else None
        )
        self._writers.append(writer)
        return WireClient(reader, writer)

    wait_until = staticmethod(wait_until)

    async def close(self) -> None:
        """Close all clients, the listener and the runtime."""
        self.log.blocking = False
        self.log.release_appends()
        for writer in self._writers:
            writer.close()
        await self.listener.stop()
        await self.runtime.stop()


async def read_response_or_close(client: WireClient) -> bytes | None:
    """Return the response to the only request; None if the server closed the connection instead."""
    try:
        return (await client.read_frame())[1]
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def exchange_frame(served: ServedCoordinator, data: bytes) -> bytes | None:
    """Send a frame on a new connection; return the response."""
    client = await served.connect()
    client.send(data)
    return await read_response_or_close(client)


@asynccontextmanager
async def serve_coordinator(
    limits: ServerLimits | None = None,
    security: ListenerSecurityConfig | None = None,
    runtime_limits: RuntimeLimits | None = None,
) -> AsyncIterator[ServedCoordinator]:
    """Serve on a free loopback port until the end of the block."""
    served = ServedCoordinator(limits or ServerLimits(), security, runtime_limits)
    await served.runtime.start()
    await served.listener.start(HostPort("127.0.0.1", 0))
    served.port = served.listener.port
    try:
        yield served
    finally:
        await served.close()
