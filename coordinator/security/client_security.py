"""Create the security settings of outgoing connections to brokers and to other coordinators."""

from coordinator.client import ClientSecurity
from coordinator.config import Config


def make_client_security(config: Config) -> ClientSecurity:
    """Return the settings of `security.protocol`, `sasl.*` and `ssl.*`, for connections to brokers."""
    return ClientSecurity(
        protocol=config.security_protocol,
        mechanism=config.sasl_mechanism,
        username=config.sasl_username,
        password=config.sasl_password,
        token_file=config.sasl_token_file,
        ca_file=config.ssl_ca_location,
        certificate_file=config.ssl_certificate_location,
        key_file=config.ssl_key_location,
        key_password=config.ssl_key_password,
        check_hostname=config.ssl_endpoint_identification_algorithm == "https",
    )


def make_peer_security(config: Config) -> ClientSecurity:
    """Return the settings for connections to other coordinators; they use the listener's certificate."""
    return ClientSecurity(
        protocol=config.listen_security_protocol,
        mechanism=config.forwarding_sasl_mechanism,
        username=config.forwarding_sasl_username,
        password=config.forwarding_sasl_password,
        token_file=config.forwarding_sasl_token_file,
        ca_file=config.listen_ssl_ca_location,
        certificate_file=config.listen_ssl_certificate_location,
        key_file=config.listen_ssl_key_location,
        key_password=config.listen_ssl_key_password,
        check_hostname=config.forwarding_endpoint_identification == "https",
    )
