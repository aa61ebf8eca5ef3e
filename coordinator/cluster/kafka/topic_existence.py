"""Find out whether a topic exists, without creating it."""

from collections.abc import Awaitable, Callable

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.connections import Connections
from coordinator.cluster.kafka.metadata import topic_error_code
from protocol.errors import ErrorCode


def make_topic_check(
    bootstrap_servers: str,
    topic: str,
    *,
    security: ClientSecurity | None = None,
    request_timeout_s: float = 5.0,
) -> Callable[[], Awaitable[bool | None]]:
    """Return a function that checks whether a topic exists in the cluster at bootstrap servers.

    The function returns None if this client may not describe the topic. The function raises LogUnavailable if
    no broker answers. Connections are closed after each check, because a check is made only about once a
    minute. Raises ConfigError for TLS files that cannot be used.
    """

    def make_connections() -> Connections:
        return Connections(
            bootstrap_servers,
            topic,
            security=security,
            client_id="share-coordinator",
            request_timeout_s=request_timeout_s,
        )

    async def topic_exists() -> bool | None:
        connections = make_connections()
        try:
            await connections.refresh()
            code = topic_error_code(await connections.refresh(wait_for_others=True), topic)
        finally:
            await connections.close()
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return None
        return code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    make_connections()
    return topic_exists
