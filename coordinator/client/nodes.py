"""Connections of a client: one for each node id, opened at the first use.

If a node id has a new address, its old connection is abandoned.  Negative node ids are assigned by the client
to its bootstrap addresses.
"""

import asyncio
from typing import NamedTuple

from coordinator.client.connection import Connection, ConnectionLimits
from coordinator.client.errors import ClientClosed, Disconnected
from coordinator.client.security import ClientSecurity
from protocol.errors import ErrorCode


class Node(NamedTuple):
    """Id and address of a share coordinator."""

    node_id: int
    host: str
    port: int


class _NodeConnection(NamedTuple):
    """A node's connection, or the task that opens it."""

    node: Node
    opening: asyncio.Task[Connection]

    @property
    def is_closed(self) -> bool:
        """True if the connection is lost or could not be opened."""
        if not self.opening.done():
            return False
        if self.opening.cancelled() or self.opening.exception() is not None:
            return True
        return not self.opening.result().is_usable


class NodeConnections:
    """The connections of one client. Owned by one event loop."""

    def __init__(
        self, client_id: str, limits: ConnectionLimits, security: ClientSecurity | None = None
    ) -> None:
        self._client_id = client_id
        self._limits = limits
        self._security = security
        self._connections: dict[int, _NodeConnection] = {}
        self._closed = False

    async def get_connection(self, node: Node) -> Connection:
        """Return the connection to a node; concurrent callers share the same attempt to open it.

        Raises the exceptions of `Connection.open`, and ClientClosed.
        """
        if self._closed:
            raise self._make_closed_error()
        place = self._connections.get(node.node_id)
        if place is None or place.is_closed or place.node != node:
            if place is not None:
                place.opening.add_done_callback(_close_when_open)
            place = self._connections[node.node_id] = _NodeConnection(
                node, asyncio.create_task(self._open_connection(node))
            )
        # If this caller is cancelled, `wait` does not cancel the task, which other callers may share.
        await asyncio.wait({place.opening})
        if place.opening.cancelled():
            raise self._make_closed_error()
        return place.opening.result()

    async def close(self) -> None:
        """Close every connection without waiting for peers. A second call is harmless."""
        self._closed = True
        openings = [place.opening for place in self._connections.values()]
        self._connections.clear()
        for opening in openings:
            opening.cancel()
        for opened in await asyncio.gather(*openings, return_exceptions=True):
            if isinstance(opened, Connection):
                await opened.close()

    async def _open_connection(self, node: Node) -> Connection:
        return await Connection.open(
            node.host,
            node.port,
            client_id=self._client_id,
            limits=self._limits,
            security=self._security,
        )

    @staticmethod
    def _make_closed_error() -> ClientClosed:
        return ClientClosed(ErrorCode.NETWORK_EXCEPTION, "The client was closed.")


def _close_when_open(opening: asyncio.Task[Connection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abort(Disconnected(ErrorCode.NETWORK_EXCEPTION, "The node has a new address."))
