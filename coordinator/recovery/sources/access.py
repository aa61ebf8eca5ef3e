"""The way to a topic, from the settings that `serve` has for it too."""

import json
from typing import Any

from coordinator.config import Config
from coordinator.security.client_side import client_security_of


def access_of(config: Config) -> dict[str, Any]:
    """Return what `open_source` takes for a topic."""
    return {
        "bootstrap_servers": config.bootstrap_servers,
        "request_timeout_s": config.request_timeout_ms / 1000,
        "security": client_security_of(config),
    }


def stream_options(config: Config) -> dict[str, str]:
    """Return the options of the Spark data source for a topic; none without bootstrap servers."""
    if not config.bootstrap_servers:
        return {}
    security = json.dumps(client_security_of(config)._asdict())
    return {"bootstrap_servers": config.bootstrap_servers, "security": security}
