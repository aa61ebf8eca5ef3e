"""Define what a listener provides to its connections: request memory, a work queue and callbacks."""

from typing import Any, Protocol

from coordinator.process.fair_queue import FairQueue
from coordinator.serve.server.request_memory import RequestMemory


class ConnectionRegistry(Protocol):
    """The limits that all connections of a listener share."""

    @property
    def request_memory(self) -> RequestMemory:
        """The memory for requests of all clients."""
        ...

    @property
    def untrusted_work(self) -> FairQueue:
        """The queue of the frames of clients that are not authorized."""
        ...

    def connection_opened(self, connection: Any) -> bool:
        """Register a connection; return False if there are too many."""
        ...

    def connection_closed(self, connection: Any) -> None:
        """Remove a closed connection."""
        ...

    def connection_idle(self) -> None:
        """Note that a connection has no request in progress."""
        ...

    def warn_client(self, sentence: str, peer: str) -> None:
        """Log a warning about a client's mistake, with a rate limit."""
        ...
