"""The base class of queries to a cluster that are not limited to one topic."""

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.connections import Connections


class ClusterReader:
    """Queries the cluster at the bootstrap servers ("host:port,host:port"). Used on one event loop."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        security: ClientSecurity | None = None,
        client_id: str = "share-coordinator-view",
        request_timeout_s: float = 10.0,
    ) -> None:
        """Create the object without connecting. Raises ConfigError for TLS files that cannot be used."""
        self._connections = Connections(
            bootstrap_servers,
            None,
            security=security,
            client_id=client_id,
            request_timeout_s=request_timeout_s,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()
