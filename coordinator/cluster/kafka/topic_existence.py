"""Find out whether a topic exists, without creating it."""

from collections.abc import Callable

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.connections import Connections
from coordinator.cluster.kafka.metadata import topic_error_code
from protocol.errors import ErrorCode


class TopicExistence:
    """Checks whether one topic exists in the cluster at bootstrap servers ("host:port,host:port").

    Connections are closed after each check, because a check is made only about once a minute.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        security: ClientSecurity | None = None,
        request_timeout_s: float = 5.0,
    ) -> None:
        """Create the object without connecting. Raises ConfigError for TLS files that cannot be used."""
        self._topic = topic

        def make_connections() -> Connections:
            return Connections(
                bootstrap_servers,
                topic,
                security=security,
                client_id="share-coordinator",
                request_timeout_s=request_timeout_s,
            )

        self._make_connections: Callable[[], Connections] = make_connections
        make_connections()

    async def exists(self) -> bool | None:
        """Return whether the topic exists, None if this client may not describe it.

        Raises LogUnavailable if no broker answers.
        """
        connections = self._make_connections()
        try:
            await connections.refresh()
            code = topic_error_code(await connections.refresh(wait_for_others=True), self._topic)
        finally:
            await connections.close()
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return None
        return code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
