"""A look whether a topic exists, which never creates it."""

from coordinator.client import ClientSecurity
from coordinator.kafka import cluster as kafka
from coordinator.kafka.connections import Connections


class TopicExistence:
    """Asks the cluster behind bootstrap servers, "host:port,host:port", about one topic.

    Made for a question a minute: nothing stays connected.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        security: ClientSecurity | None = None,
        client_id: str = "share-coordinator",
        request_timeout_s: float = 5.0,
    ) -> None:
        """Prepare; nothing is connected. Raises ConfigError for TLS files that cannot be used."""
        self._topic = topic
        self._connections = Connections(
            bootstrap_servers,
            topic,
            security=security,
            client_id=client_id,
            request_timeout_s=request_timeout_s,
        )

    async def exists(self) -> bool | None:
        """Tell whether the topic exists; None: we may not see it, be it there or not.

        Raises LogUnavailable if no broker answers.
        """
        metadata = await self._connections.fetch_metadata()
        codes = (code for code, topic, *_ in metadata.topics if topic == self._topic)
        code = next(codes, kafka.UNKNOWN_TOPIC_OR_PARTITION)
        if code == kafka.TOPIC_AUTHORIZATION_FAILED:
            return None
        return bool(code != kafka.UNKNOWN_TOPIC_OR_PARTITION)
