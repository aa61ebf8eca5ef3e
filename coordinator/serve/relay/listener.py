"""Accept connections, enforce the connection limit and the idle timeout, and stop all connections."""

import asyncio
import gc
import itertools
import socket
from functools import partial

from coordinator.config import HostPort
from coordinator.errors import ListenError
from coordinator.process.clock import SystemClock
from coordinator.process.fair_queue import FairQueue, address_network
from coordinator.process.freed_memory import HeapTrimmer, trim_heap
from coordinator.security.connection_eviction import evict_oldest
from coordinator.security.rate_limited_log import RateLimitedLog
from coordinator.serve.relay.connection import Connection, RelayContext, UpstreamRoute
from coordinator.serve.relay.limits import RelayLimits, RequestMemory
from coordinator.serve.relay.metrics import RelayMetrics

_BACKLOG = 1_024
# Maximum number of connections accepted in one iteration of the event loop.
_ACCEPTED_AT_A_TIME = 32
# Pause after a failed accept, for example because the process has too many open files.
_ACCEPT_RETRY_S = 0.1


class Listener:
    """Serves connections on one socket, from `start` to `stop`."""

    def __init__(self, route: UpstreamRoute, limits: RelayLimits, metrics: RelayMetrics) -> None:
        self.route = route
        self.limits = limits
        self._metrics = metrics
        self._warn = RateLimitedLog().warn_by_kind
        self._context = RelayContext(
            route, limits, RequestMemory(limits), metrics, self._warn, turns=FairQueue()
        )
        self._socket: socket.socket | None = None
        self._acceptor: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._freed_memory = HeapTrimmer()
        self._clock = SystemClock()

    async def start(self, address: HostPort, inherited: socket.socket | None = None) -> None:
        """Start to accept connections, on an inherited socket if there is one. Raises ListenError."""
        try:
            self._socket = inherited or _bind_socket(address)
        except (OSError, OverflowError) as error:
            raise ListenError("relay.listen", str(address), error) from None
        self._socket.setblocking(False)
        self._acceptor = asyncio.create_task(self._accept_connections(self._socket), name="relay acceptor")
        self._sweeper = asyncio.create_task(self._close_idle_connections(), name="relay sweeper")

    async def stop(self) -> None:
        """Stop accepting, wait for pending responses to persisters, and close all connections."""
        for task in (self._acceptor, self._sweeper):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._socket is not None:
            self._socket.close()
        for connection in list(self._connections):
            connection.stop()
        if self._connections:
            await asyncio.wait(self._connections.values(), timeout=self.limits.stop_s)
        left = list(self._connections.items())
        for connection, _ in left:
            connection.abort()
        await asyncio.gather(*(task for _, task in left), return_exceptions=True)

    @property
    def port(self) -> int:
        """The listening port, which the system chose if port 0 was configured."""
        assert self._socket is not None, "not started"
        port: int = self._socket.getsockname()[1]
        return port

    async def _accept_connections(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in itertools.count(1):
            if number % _ACCEPTED_AT_A_TIME == 0:
                # `sock_accept` does not yield to the event loop while peers are waiting.
                await asyncio.sleep(0)
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                self._warn("accept", f"accept failed: {error}; retrying in {_ACCEPT_RETRY_S} s")
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            self._metrics.accepted += 1
            if not self._evict_if_full():
                accepted.close()
                continue
            accepted.setblocking(False)
            connection = Connection(accepted, address_network(address), self._context)
            task = asyncio.create_task(connection.run())
            self._connections[connection] = task
            task.add_done_callback(partial(self._on_connection_done, connection))

    def _evict_if_full(self) -> bool:
        """Return whether a connection is permitted; at the limit, abort the oldest without a destination."""
        if len(self._connections) < self.limits.connections_max:
            return True
        left = [connection for connection in self._connections if not connection.is_aborted]
        if len(left) < self.limits.connections_max:
            return True
        self._metrics.refused["too_many_connections"] += 1
        self._warn("too_many_connections", "a connection was closed because relay.max.connections is reached")
        return evict_oldest(connection for connection in left if not connection.destination) > 0

    def _on_connection_done(self, connection: Connection, _: "asyncio.Task[None]") -> None:
        del self._connections[connection]
        self._freed_memory.record_closed_connection()

    async def _close_idle_connections(self) -> None:
        """Close idle connections periodically, and return the memory of closed ones to the system."""
        loop, limits = asyncio.get_running_loop(), self.limits
        seen: dict[Connection, tuple[int, float]] = {}
        while True:
            await asyncio.sleep(limits.sweep_s)
            now_s, now_ms = loop.time(), self._clock.now_ms()
            if self._freed_memory.is_due(now_s):
                # The objects of a TLS connection form cycles, which hold its buffers of 256 KiB.
                gc.collect()
                trim_heap()
            for connection in self._connections:
                if not connection.is_trusted(now_ms):
                    self._metrics.refused["certificate_revoked"] += 1
                    connection.abort()
            # Drop closed connections. The handshake timeout applies to connections without a destination.
            seen = {
                connection: seen.get(connection, (-1, now_s))
                for connection in self._connections
                if connection.destination
            }
            for connection, (forwarded_bytes, since_s) in seen.items():
                if connection.forwarded_bytes != forwarded_bytes:
                    seen[connection] = (connection.forwarded_bytes, now_s)
                elif now_s - since_s > limits.idle_s:
                    self._metrics.refused["idle"] += 1
                    connection.abort()


def _bind_socket(address: HostPort) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    host = "" if address.host == "*" else address.host
    return socket.create_server((host, address.port), family=family, backlog=_BACKLOG)
