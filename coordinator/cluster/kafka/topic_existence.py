"""Find out whether a topic exists, without creating it."""

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.connections import Connections
from coordinator.cluster.kafka.metadata import topic_error_code
from protocol.errors import ErrorCode


async def topic_exists(
    bootstrap_servers: str,
    topic: str,
    *,
    security: ClientSecurity | None = None,
    request_timeout_s: float = 5.0,
) -> bool | None:
    """Return whether a topic exists in a cluster, None if this client may not describe it.

    Connections are closed afterwards, because a check is made only about once a minute. Raises LogUnavailable
    if no broker answers, and ConfigError for TLS files that cannot be used.
    """
    connections = Connections(
        bootstrap_servers,
        topic,
        security=security,
        client_id="share-coordinator",
        request_timeout_s=request_timeout_s,
    )
    try:
        await connections.refresh()
        code = topic_error_code(await connections.refresh(wait_for_others=True), topic)
    finally:
        await connections.close()
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return None
    return code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
