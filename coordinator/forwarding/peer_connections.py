"""The connections to one other coordinator: a few, shared by all that goes there.

A server answers the requests of a connection in their order, so one that takes long delays those behind it:
each request takes the connection with the fewest others on it, and a new one as long as there may be more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordinator.client import ClientSecurity, Connection, ConnectionLimits, Disconnected, TimedOut
from coordinator.client.nodes import Node, Nodes
from coordinator.config import HostPort
from coordinator.forwarding.limits import ForwardingLimits
from protocol.errors import ErrorCode

# What HAProxy looks at (deploy/haproxy) is the part that all persisters of brokers share; the rest tells
# coordinators from brokers, whose client ids go on with a number.
FORWARDED_CLIENT_ID = "Persister-client-forwarded-"


class PeerConnections:
    """Another coordinator, at the address that it advertises. Held by one event loop."""

    def __init__(
        self, wire: str, instance: str, limits: ForwardingLimits, security: ClientSecurity | None = None
    ) -> None:
        self.wire = wire
        self._address = HostPort.parse(wire)
        self._limits = limits
        self._nodes = Nodes(
            FORWARDED_CLIENT_ID + instance,
            ConnectionLimits(connect_s=limits.connect_s, request_s=limits.request_age_max_s),
            security,
        )
        # How many requests use each of the connections.
        self._users = [0] * limits.connections_max
        self.in_flight = 0
        self._bytes = 0

    def reserve(self, request_bytes: int) -> bool:
        """Count a request in, unless there are too many; of any size if it is the only one."""
        if self.in_flight and (
            self.in_flight >= self._limits.requests_in_flight_max
            or self._bytes + request_bytes > self._limits.bytes_in_flight_max
        ):
            return False
        self.in_flight += 1
        self._bytes += request_bytes
        return True

    def release(self, request_bytes: int) -> None:
        """Count a request out."""
        self.in_flight -= 1
        self._bytes -= request_bytes

    @asynccontextmanager
    async def connection(self, connections_max: int) -> AsyncIterator[Connection]:
        """Give one of so many connections for one request; a request that is given up closes it.

        The other side then drops what it has not begun. Raises what `Connection.open` raises.
        """
        place = min(range(min(connections_max, len(self._users))), key=self._users.__getitem__)
        self._users[place] += 1
        try:
            connection = await self._open(place)
            try:
                yield connection
            except asyncio.CancelledError:
                connection.abandon(Disconnected(ErrorCode.NETWORK_EXCEPTION, "A request was given up."))
                raise
        finally:
            self._users[place] -= 1

    async def _open(self, place: int) -> Connection:
        try:
            # A splitter accepts connections also for a coordinator that is not there.
            async with asyncio.timeout(self._limits.connect_s):
                return await self._nodes.connection(Node(place, *self._address))
        except TimeoutError:
            message = f"No connection to {self.wire} within {self._limits.connect_s} s."
            raise TimedOut(ErrorCode.REQUEST_TIMED_OUT, message) from None

    async def close(self) -> None:
        """Close all connections."""
        await self._nodes.close()
