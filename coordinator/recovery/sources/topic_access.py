"""Make the options for connecting to a state topic from the coordinator's settings."""

from typing import Any

from coordinator.config import Config
from coordinator.security.client_security import make_client_security


def make_topic_options(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of `open_source` for a state topic."""
    return {
        "bootstrap_servers": config.bootstrap_servers,
        "request_timeout_s": config.request_timeout_ms / 1000,
        "security": make_client_security(config),
    }
