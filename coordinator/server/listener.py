"""The wire listener: accepts connections and keeps the bounds that they share."""

import asyncio
import logging
from contextlib import suppress

from coordinator.config import HostPort
from coordinator.errors import ListenError
from coordinator.metrics import Metrics
from coordinator.server.api import Api
from coordinator.server.connection import Connection
from coordinator.server.limits import ServerLimits

_logger = logging.getLogger(__name__)

_BACKLOG = 1_024
# Reading goes on when clients hold this part of what they may; below 1, so that it does not flutter.
_ROOM_AGAIN = 0.75


class Listener:
    """Listens on one address. `start`, then `drain`, then `stop`."""

    def __init__(self, api: Api, metrics: Metrics, limits: ServerLimits) -> None:
        self._api = api
        self._metrics = metrics
        self._limits = limits
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: set[Connection] = set()
        self._waiting_for_room: set[Connection] = set()
        self._held_bytes = 0
        self._drained: asyncio.Event | None = None

    async def start(self, address: HostPort) -> None:
        """Bind and accept. Raises ListenError, with a sentence, when the address cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self._api, self, self._metrics, self._limits),
                address.host,
                address.port,
                backlog=_BACKLOG,
            )
        except OSError as error:
            raise ListenError("listen", str(address), error) from None
        self._sweeper = asyncio.create_task(self._sweep(), name="connection sweeper")

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing more, and wait until what was accepted has been answered."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.stop_reading()
        self._drained = asyncio.Event()
        self.quiet()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_s)

    async def stop(self) -> None:
        """Close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close("stopping")
        # The transports close in the next turn of the loop.
        await asyncio.sleep(0)

    def health(self) -> list[str]:
        """Return why brokers cannot connect, one sentence; nothing when they can."""
        listens = self._server is not None and self._server.is_serving()
        return [] if listens else ["The listener for brokers accepts no connections."]

    @property
    def port(self) -> int:
        """The port that is listened on: the system's choice where port 0 was asked for."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @property
    def held_bytes(self) -> int:
        """Bytes of requests, whole or in part, that clients hold of this process."""
        return self._held_bytes

    async def _sweep(self) -> None:
        """Close connections that are idle, or whose frame does not end; break off those that do not close."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._limits.sweep_s)
            now_s = loop.time()
            for connection in list(self._connections):
                reason = connection.overdue(now_s)
                if reason is not None:
                    connection.close(reason)
                connection.break_off_if_stuck(now_s)

    # For connections.

    def opened(self, connection: Connection) -> bool:
        """Count a connection in; False if there are too many."""
        self._metrics.connection_opened()
        if len(self._connections) >= self._limits.connections_max:
            return False
        self._connections.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        """Count a connection out."""
        self._connections.discard(connection)
        self._waiting_for_room.discard(connection)
        self.quiet()

    def quiet(self) -> None:
        """Note that a connection has no request under way any more."""
        if self._drained is not None and not any(connection.busy for connection in self._connections):
            self._drained.set()

    def hold(self, frame_bytes: int) -> None:
        """Count bytes in (or out, when negative); wake who waits for room."""
        self._held_bytes += frame_bytes
        if self._waiting_for_room and self._held_bytes < _ROOM_AGAIN * self._limits.queued_bytes_max:
            waiting, self._waiting_for_room = self._waiting_for_room, set()
            loop = asyncio.get_running_loop()
            for connection in waiting:
                loop.call_soon(connection.room_again)

    @property
    def full(self) -> bool:
        """True when clients hold as much as they may together."""
        return self._held_bytes >= self._limits.queued_bytes_max

    def wait_for_room(self, connection: Connection) -> None:
        """Call the connection's `room_again` when clients hold less."""
        self._waiting_for_room.add(connection)
