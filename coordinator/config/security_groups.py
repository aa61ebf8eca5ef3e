"""Groups of TLS and SASL settings, which several listeners and connections have with different prefixes."""

from coordinator.config.fields import (
    ClientAuth,
    File,
    MappingRulesText,
    SaslMechanism,
    Secret,
    SettingGroup,
    named_field,
    require_values,
)


class TlsSettings(SettingGroup):
    """The TLS files of outgoing connections."""

    certificate_location: File = ""
    """A PEM file with the client certificate. Empty: none."""

    key_location: File = ""
    """A PEM file with the private key, if it is a separate file."""

    key_password: Secret = ""
    """The password of the private key."""

    ca_location: File = ""
    """A PEM file with the trusted authorities. Empty: the system's authorities."""


class ListenerTlsSettings(TlsSettings):
    """The TLS files of a listener, which are reloaded when they change, and its clients' certificates."""

    certificate_location: File = ""
    """A PEM file with the server certificate. This file and those below are reloaded when they change."""

    ca_location: File = ""
    """A PEM file with the authorities of client certificates."""

    client_auth: ClientAuth = "none"
    """Whether clients present a certificate. requested: a missing certificate is accepted, an invalid
    certificate is not."""

    principal_mapping_rules: MappingRulesText = "DEFAULT"
    """As Kafka's ssl.principal.mapping.rules."""

    def check_files(self, prefix: str, given: str) -> None:
        """Raise ConfigError if a file is missing. `given` says why TLS is used."""
        require_values({f"{prefix}.certificate.location": self.certificate_location}, given)
        if self.client_auth != "none":
            reason = f"given with {prefix}.client.auth={self.client_auth}"
            require_values({f"{prefix}.ca.location": self.ca_location}, reason)


class SaslSettings(SettingGroup):
    """The SASL login of outgoing connections."""

    mechanism: SaslMechanism = "PLAIN"
    """The SASL mechanism."""

    username: str = ""
    """The SASL user name."""

    password: Secret = ""
    """The SASL password. Set a password in the environment or in a file: other users can see flags."""

    token_file: File = named_field("oauthbearer.token.file", "")
    """With OAUTHBEARER: a file with the token; read at each login."""

    def check_login(self, prefix: str, given: str) -> None:
        """Raise ConfigError if a setting of the mechanism is missing. `given` says why SASL is used."""
        names = ("username", "password")
        wanted = {f"{prefix}.{name}": getattr(self, name) for name in names}
        if self.mechanism == "OAUTHBEARER":
            wanted = {f"{prefix}.oauthbearer.token.file": self.token_file}
        require_values(wanted, given)
