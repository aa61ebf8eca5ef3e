"""Manage a small pool of connections to one other coordinator.

A server answers the requests of a connection in order, so a slow request delays those after it.  Each request
therefore uses the connection with the fewest requests in flight.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordinator.client import ClientSecurity, Connection, ConnectionLimits, Disconnected, TimedOut
from coordinator.client.nodes import Node, NodeConnections
from coordinator.config import HostPort
from coordinator.serve.forwarding.limits import ForwardingLimits
from protocol.errors import ErrorCode

# HAProxy (deploy/haproxy) matches the prefix `Persister-client-` of the brokers' persisters. The rest of the
# client id distinguishes coordinators from brokers, whose client ids continue with a number.
FORWARDED_CLIENT_ID = "Persister-client-forwarded-"


class PeerConnections:
    """Connections to a coordinator at its advertised address. Call all methods on one event loop."""

    def __init__(
        self, wire: str, instance: str, limits: ForwardingLimits, security: ClientSecurity | None = None
    ) -> None:
        self.wire = wire
        self._address = HostPort.parse(wire)
        self._limits = limits
        self._nodes = NodeConnections(
            FORWARDED_CLIENT_ID + instance,
            ConnectionLimits(connect_s=limits.connect_s, request_s=limits.request_age_max_s),
            security,
        )
        # The number of requests on each connection.
        self._users = [0] * limits.connections_max
        self.in_flight = 0
        self._bytes = 0

    def reserve_capacity(self, request_bytes: int) -> bool:
        """Reserve capacity for a request; return False if a limit is reached. One request always fits."""
        if self.in_flight and (
            self.in_flight >= self._limits.requests_in_flight_max
            or self._bytes + request_bytes > self._limits.bytes_in_flight_max
        ):
            return False
        self.in_flight += 1
        self._bytes += request_bytes
        return True

    def release_capacity(self, request_bytes: int) -> None:
        self.in_flight -= 1
        self._bytes -= request_bytes

    @asynccontextmanager
    async def connection(self, connections_max: int) -> AsyncIterator[Connection]:
        """Provide one of at most `connections_max` connections for one request.

        A cancelled request closes the connection, so that the other coordinator drops requests that it has
        not started. Raises the exceptions of `Connection.open`.
        """
        index = min(range(min(connections_max, len(self._users))), key=self._users.__getitem__)
        self._users[index] += 1
        try:
            connection = await self._open_connection(index)
            try:
                yield connection
            except asyncio.CancelledError:
                connection.abort(Disconnected(ErrorCode.NETWORK_EXCEPTION, "A request was given up."))
                raise
        finally:
            self._users[index] -= 1

    async def _open_connection(self, index: int) -> Connection:
        try:
            # HAProxy accepts connections even if the coordinator behind it is down.
            async with asyncio.timeout(self._limits.connect_s):
                return await self._nodes.get_connection(Node(index, *self._address))
        except TimeoutError:
            message = f"No connection to {self.wire} within {self._limits.connect_s} s."
            raise TimedOut(ErrorCode.REQUEST_TIMED_OUT, message) from None

    async def close(self) -> None:
        await self._nodes.close()
