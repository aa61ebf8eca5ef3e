"""Create the Kafka client for a topic from the settings. This module does not import aiokafka."""

from typing import TYPE_CHECKING

from coordinator.config import Config
from coordinator.errors import ConfigError
from coordinator.process.optional_dependencies import KAFKA_EXTRA
from coordinator.security.client_security import make_client_security

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers


def make_brokers(
    config: Config,
    topic: str,
    *,
    bootstrap_servers: str | None = None,
    client_id: str = "share-coordinator",
    setting: str,
    value: str,
) -> "Brokers":
    """Return a client, not yet connected, of a topic in the cluster at `bootstrap_servers`.

    Default: the configured cluster. Without aiokafka, raises ConfigError for the setting that needs it.
    """
    try:
        from coordinator.cluster.kafka.brokers import Brokers
    except ModuleNotFoundError:
        raise ConfigError(setting, value, f"used with aiokafka: {KAFKA_EXTRA}") from None
    return Brokers(
        config.bootstrap_servers if bootstrap_servers is None else bootstrap_servers,
        topic,
        security=make_client_security(config),
        client_id=client_id,
        request_timeout_s=config.request_timeout_ms / 1000,
    )
