"""Security settings of the Kafka protocol listener, and of connections between coordinators.

Names are Kafka's with the prefix `listen.`, like Kafka's own prefix `listener.name.NAME.`. Names without a
prefix apply to connections to brokers.
"""

from typing import Annotated

from pydantic import Field

from coordinator.config.admin import ANONYMOUS, is_loopback
from coordinator.config.fields import (
    AllowedValues,
    ClaimName,
    EndpointIdentification,
    File,
    HostPort,
    Mechanisms,
    Milliseconds,
    NonNegative,
    Principals,
    SecurityProtocol,
    SettingGroup,
    Switch,
    named_field,
    require_values,
)
from coordinator.config.security_groups import ListenerTlsSettings, SaslSettings
from coordinator.errors import ConfigError


class ListenerSecuritySettings(SettingGroup):
    """The settings of `Config` for the security of the Kafka protocol listener."""

    listen_security_protocol: SecurityProtocol = "PLAINTEXT"
    """The security protocol of listen. All except PLAINTEXT require listen.allowed.principals. See
    docs/security.md."""

    listen_plaintext_allowed: Switch = "false"
    """true: a PLAINTEXT listener may have an address that other hosts can reach. Only brokers may reach such
    an address, because every client can change all state."""

    listen_allowed_principals: Principals = ""
    """With TLS or SASL: the allowed principals (brokers, coordinators, tools) in the format of Kafka's
    super.users. Others get CLUSTER_AUTHORIZATION_FAILED."""

    listen_ssl: ListenerTlsSettings = ListenerTlsSettings()
    """Required with SSL and SASL_SSL. Connections to other coordinators use these files, too."""

    listen_sasl_enabled_mechanisms: Mechanisms = ""
    """The enabled SASL mechanisms."""

    listen_sasl_users_file: File = ""
    """For PLAIN and SCRAM: a .properties file with lines NAME=PASSWORD, or 
    NAME=SCRAM-SHA-512=[salt=...,stored_key=...,server_key=...,iterations=...] in Kafka's format."""

    listen_jwks_url: Annotated[str, AllowedValues("https://..., http://... or a file")] = named_field(
        "listen.sasl.oauthbearer.jwks.endpoint.url", ""
    )
    """For OAUTHBEARER: a JSON Web Key Set that verifies tokens."""

    listen_jwks_ca_location: File = named_field("listen.sasl.oauthbearer.jwks.endpoint.ca.location", "")
    """A PEM file with the authority of the https URL of the key set. Empty: the system's authorities."""

    listen_jwks_refresh_ms: Milliseconds = named_field(
        "listen.sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000
    )
    """How often keys are fetched from a URL. If a token names an unknown key, keys are fetched at once. With
    45000, logins end within a minute after their key was removed."""

    listen_token_audience: Annotated[str, AllowedValues("names with commas between")] = named_field(
        "listen.sasl.oauthbearer.expected.audience", ""
    )
    """The accepted audiences of tokens. Empty: any."""

    listen_token_issuer: str = named_field("listen.sasl.oauthbearer.expected.issuer", "")
    """The accepted issuer of tokens. If empty, every issuer with a key in the key set is accepted."""

    listen_token_sub_claim: ClaimName = named_field("listen.sasl.oauthbearer.sub.claim.name", "sub")
    """The token claim that contains the user name."""

    listen_token_clock_skew_s: Annotated[int, Field(ge=0, le=600)] = named_field(
        "listen.sasl.oauthbearer.clock.skew.seconds", 30
    )
    """The allowed clock difference to the token issuer."""

    listen_reauth_max_ms: NonNegative = named_field("listen.connections.max.reauth.ms", 0)
    """The lifetime of a SASL login; clients re-authenticate before its end (KIP-368). 0: unlimited. A login
    by token ends when the token expires."""

    listen_failed_authentication_delay_ms: Annotated[int, Field(ge=0, le=60_000)] = named_field(
        "listen.connection.failed.authentication.delay.ms", 100
    )
    """The delay of the response to a failed login, which slows down guessing."""

    listen_handshake_timeout_ms: Milliseconds = 30_000
    """The time limit for the TLS handshake, and again for the login."""

    listen_reload_interval_ms: Milliseconds = 5000
    """How often files of certificates, keys and users are checked for changes."""

    forwarding_sasl: SaslSettings = SaslSettings(mechanism="SCRAM-SHA-512")
    """With ownership=group and SASL, for connections to other coordinators."""

    forwarding_endpoint_identification: EndpointIdentification = named_field(
        "forwarding.ssl.endpoint.identification.algorithm", "https"
    )
    """https: another coordinator's certificate must match its advertised host. none: the host is not
    checked."""

    @property
    def listen_uses_tls(self) -> bool:
        return self.listen_security_protocol in ("SSL", "SASL_SSL")

    @property
    def listen_mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms in the configured order; empty without SASL."""
        if not self.listen_security_protocol.startswith("SASL"):
            return ()
        return tuple(filter(None, self.listen_sasl_enabled_mechanisms.split(",")))

    def check_listener_security(self, listen: HostPort, *, forwards: bool) -> None:
        protocol = self.listen_security_protocol
        if protocol == "PLAINTEXT":
            self._check_plaintext(listen)
            return
        given = f"given with listen.security.protocol={protocol}"
        if self.listen_uses_tls:
            self.listen_ssl.check_files("listen.ssl", given)
        require_values(
            {"listen.allowed.principals": self.listen_allowed_principals},
            f"{given}; without it no client is allowed",
        )
        if protocol != "SSL":
            self._check_sasl(given, forwards=forwards)
        elif self.listen_ssl.client_auth == "none" and ANONYMOUS not in self.listen_allowed_principals:
            raise ConfigError(
                "listen.ssl.client.auth",
                "none",
                f"required or requested with listen.security.protocol=SSL: clients without a certificate are "
                f"{ANONYMOUS}, which is not allowed",
            )

    def listener_exposure_warning(self, listen: HostPort) -> str | None:
        """Return a warning if any host on the network can use the PLAINTEXT listener, else None."""
        if self.listen_security_protocol != "PLAINTEXT" or is_loopback(listen.host):
            return None
        return (
            f"listen={listen} is PLAINTEXT: every host that reaches it can read, change and delete the state "
            "of all share groups. Set listen.security.protocol, or let only brokers reach the port."
        )

    def _check_plaintext(self, listen: HostPort) -> None:
        if self.listen_plaintext_allowed == "false" and not is_loopback(listen.host):
            raise ConfigError(
                "listen",
                str(listen),
                "a loopback address with listen.security.protocol=PLAINTEXT, or set "
                "listen.plaintext.allowed=true if only brokers can reach it",
            )
        # An operator who sets one of these expects authentication, which PLAINTEXT does not provide.
        for setting, value in (
            ("listen.allowed.principals", self.listen_allowed_principals),
            ("listen.sasl.users.file", self.listen_sasl_users_file),
            ("listen.sasl.enabled.mechanisms", self.listen_sasl_enabled_mechanisms),
            ("listen.ssl.certificate.location", self.listen_ssl.certificate_location),
        ):
            if value:
                raise ConfigError(
                    setting,
                    value,
                    "omitted with listen.security.protocol=PLAINTEXT, which does not authenticate clients",
                )

    def _check_sasl(self, given: str, *, forwards: bool) -> None:
        mechanisms = self.listen_mechanisms
        require_values({"listen.sasl.enabled.mechanisms": ",".join(mechanisms)}, given)
        if set(mechanisms) != {"OAUTHBEARER"}:
            require_values(
                {"listen.sasl.users.file": self.listen_sasl_users_file},
                f"given with listen.sasl.enabled.mechanisms={self.listen_sasl_enabled_mechanisms}",
            )
        if "OAUTHBEARER" in mechanisms:
            require_values(
                {"listen.sasl.oauthbearer.jwks.endpoint.url": self.listen_jwks_url},
                "given with OAUTHBEARER in listen.sasl.enabled.mechanisms",
            )
        if forwards:
            self.forwarding_sasl.check_login("forwarding.sasl", f"{given} and ownership=group")
