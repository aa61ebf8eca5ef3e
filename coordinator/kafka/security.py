"""How connections to brokers are secured, and the TLS context that goes with it."""

import ssl
from typing import NamedTuple, Self

from coordinator.config import Config
from coordinator.errors import ConfigError


class Security(NamedTuple):
    """Kafka's security settings; empty texts are what was not given. Files are PEM."""

    protocol: str = "PLAINTEXT"
    mechanism: str = "PLAIN"
    username: str = ""
    password: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = ""
    check_hostname: bool = True
    token_file: str = ""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return what the settings say."""
        return cls(
            protocol=config.security_protocol,
            mechanism=config.sasl_mechanism,
            username=config.sasl_username,
            password=config.sasl_password,
            ca_file=config.ssl_ca_location,
            certificate_file=config.ssl_certificate_location,
            key_file=config.ssl_key_location,
            key_password=config.ssl_key_password,
            check_hostname=config.ssl_endpoint_identification_algorithm == "https",
            token_file=config.sasl_token_file,
        )

    @property
    def uses_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for connections, None without TLS. Raises ConfigError for files of no use."""
        if not self.uses_tls:
            return None
        context = ssl.create_default_context()
        context.check_hostname = self.check_hostname
        if self.ca_file:
            try:
                context.load_verify_locations(self.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    "ssl.ca.location", self.ca_file, f"a PEM file of certificates ({error})"
                ) from None
        if self.certificate_file:
            try:
                context.load_cert_chain(
                    self.certificate_file, self.key_file or None, lambda: self.key_password
                )
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    "ssl.certificate.location",
                    self.certificate_file,
                    f"a PEM file of a certificate, its key there or in ssl.key.location ({error})",
                ) from None
        return context
