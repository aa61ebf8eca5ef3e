"""The nodes that a client talks to: one connection for each node id, opened when it is first needed.

A node id at a new address is a new node: the old connection is given up.  Node ids below zero are ours,
for the addresses that the client was made with.
"""

import asyncio
from typing import NamedTuple

from coordinator.client.connection import Connection, ConnectionLimits
from coordinator.client.errors import ClientClosed, Disconnected
from coordinator.client.security import ClientSecurity
from protocol.errors import ErrorCode


class Node(NamedTuple):
    """Where a share coordinator is."""

    node_id: int
    host: str
    port: int


class _NodeConnection(NamedTuple):
    """A node's connection, or the attempt to make it."""

    node: Node
    opening: asyncio.Task[Connection]

    @property
    def is_closed(self) -> bool:
        """True if there is no connection here and none to come."""
        if not self.opening.done():
            return False
        if self.opening.cancelled() or self.opening.exception() is not None:
            return True
        return not self.opening.result().usable


class Nodes:
    """The connections of one client. Held by one event loop."""

    def __init__(
        self, client_id: str, limits: ConnectionLimits, security: ClientSecurity | None = None
    ) -> None:
        self._client_id = client_id
        self._limits = limits
        self._security = security
        self._connections: dict[int, _NodeConnection] = {}
        self._closed = False

    async def connection(self, node: Node) -> Connection:
        """Return the connection to a node; callers that come while it is being made share it.

        Raises what `Connection.open` raises, and ClientClosed.
        """
        if self._closed:
            raise self._closed_error()
        place = self._connections.get(node.node_id)
        if place is None or place.is_closed or place.node != node:
            if place is not None:
                place.opening.add_done_callback(_close_when_open)
            place = self._connections[node.node_id] = _NodeConnection(
                node, asyncio.create_task(self._open(node))
            )
        # Unlike `await`, `wait` leaves the task to the other callers when this one is cancelled.
        await asyncio.wait({place.opening})
        if place.opening.cancelled():
            raise self._closed_error()
        return place.opening.result()

    async def close(self) -> None:
        """Close every connection; does not wait for any peer. Closing twice is harmless."""
        self._closed = True
        openings = [place.opening for place in self._connections.values()]
        self._connections.clear()
        for opening in openings:
            opening.cancel()
        for opened in await asyncio.gather(*openings, return_exceptions=True):
            if isinstance(opened, Connection):
                await opened.close()

    async def _open(self, node: Node) -> Connection:
        return await Connection.open(
            node.host,
            node.port,
            client_id=self._client_id,
            limits=self._limits,
            security=self._security,
        )

    @staticmethod
    def _closed_error() -> ClientClosed:
        return ClientClosed(ErrorCode.NETWORK_EXCEPTION, "The client was closed.")


def _close_when_open(opening: asyncio.Task[Connection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abandon(Disconnected(ErrorCode.NETWORK_EXCEPTION, "The node is elsewhere now."))
