"""Make the connection options of a topic from the coordinator's settings."""

import json
from typing import Any

from coordinator.config import Config
from coordinator.security.client_security import make_client_security


def make_topic_options(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of `open_source` for a topic."""
    return {
        "bootstrap_servers": config.bootstrap_servers,
        "request_timeout_s": config.request_timeout_ms / 1000,
        "security": make_client_security(config),
    }


def stream_options(config: Config) -> dict[str, str]:
    """Return the options of the Spark data source for a topic; none without bootstrap servers."""
    if not config.bootstrap_servers:
        return {}
    security = json.dumps(make_client_security(config)._asdict())
    return {"bootstrap_servers": config.bootstrap_servers, "security": security}
