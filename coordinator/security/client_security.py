"""Create the security settings of outgoing connections to brokers and to other coordinators."""

from coordinator.client import ClientSecurity
from coordinator.config import Config
from coordinator.config.security_groups import SaslSettings, TlsSettings


def make_client_security(config: Config) -> ClientSecurity:
    """Return the settings of `security.protocol`, `sasl.*` and `ssl.*`, for connections to brokers."""
    return combine_settings(
        config.security_protocol, config.ssl, config.sasl, config.ssl_endpoint_identification_algorithm
    )


def make_peer_connection_security(config: Config) -> ClientSecurity:
    """Return the settings for connections to other coordinators; they use the listener's certificate."""
    return combine_settings(
        config.listen_security_protocol,
        config.listen_ssl,
        config.forwarding_sasl,
        config.forwarding_endpoint_identification,
    )


def combine_settings(
    protocol: str, tls: TlsSettings, sasl: SaslSettings | None = None, identification: str = "https"
) -> ClientSecurity:
    """Return the security settings of a connection, made from TLS and SASL settings."""
    sasl = sasl or SaslSettings()
    return ClientSecurity(
        protocol=protocol,
        mechanism=sasl.mechanism,
        username=sasl.username,
        password=sasl.password,
        token_file=sasl.token_file,
        ca_file=tls.ca_location,
        certificate_file=tls.certificate_location,
        key_file=tls.key_location,
        key_password=tls.key_password,
        check_hostname=identification == "https",
    )
