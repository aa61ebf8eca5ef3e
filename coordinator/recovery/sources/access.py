"""The way to a topic, from the settings that `serve` has for it too."""

from typing import Any

from coordinator.config import Config
from coordinator.kafka.security import Security


def access_of(config: Config) -> dict[str, Any]:
    """Return what `open_source` takes for a topic."""
    return {
        "bootstrap_servers": config.bootstrap_servers,
        "request_timeout_s": config.request_timeout_ms / 1000,
        "security": Security(
            protocol=config.security_protocol,
            mechanism=config.sasl_mechanism,
            username=config.sasl_username,
            password=config.sasl_password,
            ca_file=config.ssl_ca_location,
            certificate_file=config.ssl_certificate_location,
            key_file=config.ssl_key_location,
            key_password=config.ssl_key_password,
            check_hostname=config.ssl_endpoint_identification_algorithm == "https",
        ),
    }
