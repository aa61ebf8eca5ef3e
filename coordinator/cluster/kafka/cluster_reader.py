"""The base class of queries to a cluster that are not limited to one topic."""

from collections.abc import Mapping

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
        channel_timeouts_s: Mapping[str, float] | None = None,
    ) -> None:
        """Create the object without connecting. Raises ConfigError for TLS files that cannot be used."""
        self._connections = Connections(
            bootstrap_servers,
            None,
            security=security,
            client_id=client_id,
            request_timeout_s=request_timeout_s,
            channel_timeouts_s=channel_timeouts_s,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()
