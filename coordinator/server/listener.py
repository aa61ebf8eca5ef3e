"""The wire listener: accepts connections and keeps the bounds that they share."""

import asyncio
import logging
from contextlib import suppress

from coordinator import hot
from coordinator.config import HostPort
from coordinator.errors import ListenError
from coordinator.metrics import Metrics
from coordinator.security.doorway import Doorway, PlainDoorway, TlsDoorway, peer_of
from coordinator.security.principals import UnmappedCertificate
from coordinator.security.tls import Trust
from coordinator.server.api import Api
from coordinator.server.connection import Connection
from coordinator.server.entrance import Entrance, Handler, WireSecurity
from coordinator.server.gate import Gate
from coordinator.server.limits import ServerLimits
from coordinator.server.room import Room

_logger = logging.getLogger(__name__)

_BACKLOG = 1_024
# So much of what clients may hold together parts of frames may take when it is full.
_PARTS_OF_FRAMES = 0.5


class Listener:
    """Listens on one address. `start`, then `drain`, then `stop`."""

    def __init__(
        self,
        api: Api,
        metrics: Metrics,
        limits: ServerLimits,
        security: WireSecurity | None = None,
    ) -> None:
        self._security = security or WireSecurity()
        self._entrance = Entrance(api, self._security, metrics)
        self._metrics = metrics
        self._limits = limits
        self._watching: list[asyncio.Task[None]] = []
        self._doorway = self._make_doorway()
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: set[Connection] = set()
        self.room = Room(limits.queued_bytes_max)
        self._drained: asyncio.Event | None = None

    async def start(self, address: HostPort) -> None:
        """Bind and accept. Raises ListenError, with a sentence, when the address cannot be had."""
        try:
            await self._doorway.start(address.host, address.port, _BACKLOG)
        except OSError as error:
            raise ListenError("listen", str(address), error) from None
        self._sweeper = asyncio.create_task(self._sweep(), name="connection sweeper")
        self._watching = [
            asyncio.create_task(watched.watch(self._security.reload_s), name="watching security files")
            for watched in self._security.watched
        ]

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing more, and wait until what was accepted has been answered."""
        self._doorway.close()
        self.room.draining = True
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
        for watching in self._watching:
            watching.cancel()
        self._doorway.stop()
        for connection in list(self._connections):
            connection.close("stopping")
        # The transports close in the next turn of the loop.
        await asyncio.sleep(0)

    def health(self) -> list[str]:
        """Return why brokers cannot connect, one sentence; nothing when they can."""
        return [] if self._doorway.is_serving else ["The listener for brokers accepts no connections."]

    @property
    def port(self) -> int:
        """The port that is listened on: the system's choice where port 0 was asked for."""
        return self._doorway.port

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @property
    def held_bytes(self) -> int:
        """Bytes of requests, whole or in part, that clients hold of this process."""
        return self.room.held_bytes

    async def _sweep(self) -> None:
        """Close connections that are idle, or whose frame does not end; break off those that do not close."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._limits.sweep_s)
            now_s = loop.time()
            for connection in list(self._connections):
                reason = connection.overdue(now_s, self._entrance.clock.now_ms())
                if reason is not None:
                    connection.close(reason)
                connection.break_off_if_stuck(now_s)
            self._make_room()

    def _make_room(self) -> None:
        """Close those with the largest parts of frames where these fill what all clients may hold together.

        Nobody is read on then, so no frame would end, and everybody would wait until they are overdue.  What
        whole requests take is let go of by itself.
        """
        if not self.room.full:
            return
        parts = sum(connection.partial_bytes for connection in self._connections)
        largest_first = sorted(self._connections, key=lambda one: one.partial_bytes, reverse=True)
        for connection in largest_first:
            if parts <= _PARTS_OF_FRAMES * self._limits.queued_bytes_max:
                break
            parts -= connection.partial_bytes
            connection.close("no_room")

    # Who comes in.

    def _make_doorway(self) -> Doorway:
        security = self._security
        tls = security.tls
        if tls is None:
            return PlainDoorway(self._connection)
        return TlsDoorway(
            lambda: tls.context,
            security.handshake_s,
            lambda: self._limits.connections_max - len(self._connections),
            self._come_in,
            self._turn_away,
        )

    def _connection(self, handler: Handler | None = None, trust: Trust | None = None) -> asyncio.Protocol:
        """Make a connection for a client; without a handler, of one that has shown nothing yet."""
        api, limits = self._entrance.api, self._limits
        if self._security.mechanisms:
            handler = Gate(self._entrance)
        connection = Connection(handler or api, self, self._metrics, limits, trust)
        writes = api.plain_writes
        if hot.compiled is None or writes is None:
            return connection
        one_at_a_time = limits.requests_in_flight_max == 1
        in_front: asyncio.Protocol = hot.compiled.Lane(
            connection, api, writes, limits.frame_bytes_max, one_at_a_time
        )
        return in_front

    def _come_in(self, secured: asyncio.Transport) -> asyncio.Protocol | None:
        """Return the connection of a client whose TLS handshake is over, None for one that is nobody."""
        if self._drained is not None:
            return None
        certificate, tls = secured.get_extra_info("peercert"), self._security.tls
        trust = Trust(tls, certificate) if certificate and tls is not None else None
        if self._security.mechanisms:
            # Known by its login, whatever it showed before.
            return self._connection(trust=trust)
        try:
            handler = self._entrance.handler_of_certificate(certificate, peer_of(secured))
        except UnmappedCertificate as error:
            self._turn_away(
                "unmapped_certificate",
                f"no rule of listen.ssl.principal.mapping.rules fits a client's certificate: {error}",
                peer_of(secured),
            )
            return None
        return self._connection(handler, trust)

    def _turn_away(self, reason: str, sentence: str, peer: str) -> None:
        """Count a client that did not come as far as a connection."""
        self._metrics.connection_opened()
        self._metrics.connection_closed(reason)
        if sentence:
            self.complain(sentence, peer)

    # For connections.

    def complain(self, sentence: str, peer: str) -> None:
        """Warn of what a client does wrong, unless that was said just now."""
        self._entrance.complaints.say(sentence, peer=peer)

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
        self.room.waiting.discard(connection)
        self.quiet()

    def quiet(self) -> None:
        """Note that a connection has no request under way any more."""
        if self._drained is not None and not any(connection.busy for connection in self._connections):
            self._drained.set()
