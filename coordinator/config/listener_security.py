"""Security settings of the Kafka protocol listener, and of connections between coordinators.

Names are Kafka's with the prefix `listen.`, like Kafka's own prefix `listener.name.NAME.`. Names without a
prefix apply to connections to brokers.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from coordinator.config.admin import is_loopback
from coordinator.config.fields import INT32_MAX, HostPort, Milliseconds, SettingInfo, to_upper
from coordinator.errors import ConfigError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_FILE = "a file"
_ANONYMOUS = "User:ANONYMOUS"


def _to_lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _parse_mechanisms(value: object) -> object:
    if not isinstance(value, str):
        return value
    names = [name.strip().upper() for name in value.split(",") if name.strip()]
    if not set(names) <= set(MECHANISMS):
        raise ValueError(value)
    return ",".join(dict.fromkeys(names))


class ListenerSecuritySettings(BaseModel):
    """The settings of `Config` for the security of the Kafka protocol listener."""

    listen_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        BeforeValidator(to_upper),
        SettingInfo(
            "listen.security.protocol",
            "The security protocol of listen. All except PLAINTEXT require listen.allowed.principals. "
            "See docs/security.md.",
        ),
    ] = "PLAINTEXT"
    listen_plaintext_allowed: Annotated[
        Literal["true", "false"],
        BeforeValidator(_to_lower),
        SettingInfo(
            "listen.plaintext.allowed",
            "true: a PLAINTEXT listener may have an address that other hosts can reach. Only brokers "
            "may reach it, because every client can change all state.",
        ),
    ] = "false"
    listen_allowed_principals: Annotated[
        str,
        SettingInfo(
            "listen.allowed.principals",
            "With TLS or SASL: the allowed principals (brokers, coordinators, tools) in the format of "
            "Kafka's super.users. Others get CLUSTER_AUTHORIZATION_FAILED.",
            "User:NAME;User:NAME",
        ),
    ] = ""
    listen_ssl_certificate_location: Annotated[
        str,
        SettingInfo(
            "listen.ssl.certificate.location",
            "With SSL or SASL_SSL: a PEM file with the server certificate. All files of listen are "
            "reloaded when they change.",
            _FILE,
        ),
    ] = ""
    listen_ssl_key_location: Annotated[
        str,
        SettingInfo(
            "listen.ssl.key.location",
            "A PEM file with the key, if it is not in that of the certificate.",
            _FILE,
        ),
    ] = ""
    listen_ssl_key_password: Annotated[
        str, SettingInfo("listen.ssl.key.password", "The password of the key.", secret=True)
    ] = ""
    listen_ssl_ca_location: Annotated[
        str,
        SettingInfo(
            "listen.ssl.ca.location",
            "A PEM file with the authorities of clients and of other coordinators.",
            _FILE,
        ),
    ] = ""
    listen_ssl_client_auth: Annotated[
        Literal["none", "requested", "required"],
        BeforeValidator(_to_lower),
        SettingInfo(
            "listen.ssl.client.auth",
            "Whether clients present a certificate. With SSL, it identifies the client.",
        ),
    ] = "none"
    listen_ssl_principal_mapping_rules: Annotated[
        str,
        SettingInfo(
            "listen.ssl.principal.mapping.rules",
            "As Kafka's ssl.principal.mapping.rules.",
            "DEFAULT, or RULE:pattern/replacement/[LU], several with commas between",
        ),
    ] = "DEFAULT"
    listen_sasl_enabled_mechanisms: Annotated[
        str,
        BeforeValidator(_parse_mechanisms),
        SettingInfo(
            "listen.sasl.enabled.mechanisms",
            "The enabled SASL mechanisms.",
            f"some of {', '.join(MECHANISMS)}, with commas between",
        ),
    ] = ""
    listen_sasl_users_file: Annotated[
        str,
        SettingInfo(
            "listen.sasl.users.file",
            "For PLAIN and SCRAM: a .properties file with lines NAME=PASSWORD, or "
            "NAME=SCRAM-SHA-512=[salt=...,stored_key=...,server_key=...,iterations=...] in Kafka's "
            "format.",
            _FILE,
        ),
    ] = ""
    listen_jwks_url: Annotated[
        str,
        SettingInfo(
            "listen.sasl.oauthbearer.jwks.endpoint.url",
            "For OAUTHBEARER: a JSON Web Key Set that verifies tokens.",
            "https://..., http://... or a file",
        ),
    ] = ""
    listen_jwks_ca_location: Annotated[
        str,
        SettingInfo(
            "listen.sasl.oauthbearer.jwks.endpoint.ca.location",
            "A PEM file with the authority of an https URL of keys. Empty: the system's authorities.",
            _FILE,
        ),
    ] = ""
    listen_jwks_refresh_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "listen.sasl.oauthbearer.jwks.endpoint.refresh.ms",
            "How often keys are fetched from a URL. An unknown key is fetched at once. With 45000, logins "
            "end within a minute after their key was removed.",
        ),
    ] = 3_600_000
    listen_token_audience: Annotated[
        str,
        SettingInfo(
            "listen.sasl.oauthbearer.expected.audience",
            "The accepted audiences of tokens. Empty: any.",
            "names with commas between",
        ),
    ] = ""
    listen_token_issuer: Annotated[
        str,
        SettingInfo(
            "listen.sasl.oauthbearer.expected.issuer",
            "The accepted issuer of tokens. Empty: any whose key is in the set.",
        ),
    ] = ""
    listen_token_sub_claim: Annotated[
        str,
        Field(min_length=1),
        SettingInfo(
            "listen.sasl.oauthbearer.sub.claim.name",
            "The claim that contains the user name.",
            "the name of a claim",
        ),
    ] = "sub"
    listen_token_clock_skew_s: Annotated[
        int,
        Field(ge=0, le=600),
        SettingInfo(
            "listen.sasl.oauthbearer.clock.skew.seconds",
            "The allowed clock difference to the token issuer.",
        ),
    ] = 30
    listen_reauth_max_ms: Annotated[
        int,
        Field(ge=0, le=INT32_MAX),
        SettingInfo(
            "listen.connections.max.reauth.ms",
            "The lifetime of a SASL login; clients re-authenticate before its end (KIP-368). 0: "
            "unlimited. A login ends with its token.",
        ),
    ] = 0
    listen_failed_authentication_delay_ms: Annotated[
        int,
        Field(ge=0, le=60_000),
        SettingInfo(
            "listen.connection.failed.authentication.delay.ms",
            "The delay of the response to a failed login, which slows down guessing.",
        ),
    ] = 100
    listen_handshake_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "listen.handshake.timeout.ms", "The time limit for the TLS handshake, and again for the login."
        ),
    ] = 30_000
    listen_reload_interval_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "listen.reload.interval.ms",
            "How often files of certificates, keys and users are checked for changes.",
        ),
    ] = 5_000

    forwarding_sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"],
        BeforeValidator(to_upper),
        SettingInfo(
            "forwarding.sasl.mechanism",
            "With ownership=group and SASL: the mechanism for connections to other coordinators. TLS "
            "uses the settings listen.ssl.",
        ),
    ] = "SCRAM-SHA-512"
    forwarding_sasl_username: Annotated[
        str, SettingInfo("forwarding.sasl.username", "The user name at other coordinators.")
    ] = ""
    forwarding_sasl_password: Annotated[
        str,
        SettingInfo("forwarding.sasl.password", "The password at other coordinators.", secret=True),
    ] = ""
    forwarding_sasl_token_file: Annotated[
        str,
        SettingInfo(
            "forwarding.sasl.oauthbearer.token.file",
            "A file with the token for other coordinators; read at each login.",
            _FILE,
        ),
    ] = ""
    forwarding_endpoint_identification: Annotated[
        Literal["https", "none"],
        SettingInfo(
            "forwarding.ssl.endpoint.identification.algorithm",
            "https: another coordinator's certificate must match its advertised host. none: the host "
            "is not checked.",
        ),
    ] = "https"

    @property
    def listen_uses_tls(self) -> bool:
        """True if the listener uses TLS."""
        return self.listen_security_protocol in ("SSL", "SASL_SSL")

    @property
    def listen_mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms in the configured order; empty without SASL."""
        if not self.listen_security_protocol.startswith("SASL"):
            return ()
        return tuple(filter(None, self.listen_sasl_enabled_mechanisms.split(",")))

    def check_listener_security(self, listen: HostPort, *, forwards: bool) -> None:
        """Raise ConfigError if the settings are inconsistent."""
        protocol = self.listen_security_protocol
        if protocol == "PLAINTEXT":
            self._check_plaintext(listen)
            return
        given = f"given with listen.security.protocol={protocol}"
        if self.listen_uses_tls and not self.listen_ssl_certificate_location:
            raise ConfigError("listen.ssl.certificate.location", "", given)
        if not self.listen_allowed_principals:
            raise ConfigError("listen.allowed.principals", "", f"{given}; without it no client is allowed")
        if self.listen_ssl_client_auth != "none" and not self.listen_ssl_ca_location:
            raise ConfigError(
                "listen.ssl.ca.location",
                "",
                f"given with listen.ssl.client.auth={self.listen_ssl_client_auth}",
            )
        if protocol != "SSL":
            self._check_sasl(given, forwards=forwards)
        elif self.listen_ssl_client_auth == "none" and _ANONYMOUS not in self.listen_allowed_principals:
            raise ConfigError(
                "listen.ssl.client.auth",
                "none",
                f"required or requested with listen.security.protocol=SSL: clients without a certificate are "
                f"{_ANONYMOUS}, which is not allowed",
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
            ("listen.ssl.certificate.location", self.listen_ssl_certificate_location),
        ):
            if value:
                raise ConfigError(
                    setting,
                    value,
                    "omitted with listen.security.protocol=PLAINTEXT, which does not authenticate clients",
                )

    def _check_sasl(self, given: str, *, forwards: bool) -> None:
        mechanisms = self.listen_mechanisms
        if not mechanisms:
            raise ConfigError("listen.sasl.enabled.mechanisms", "", given)
        if set(mechanisms) != {"OAUTHBEARER"} and not self.listen_sasl_users_file:
            raise ConfigError(
                "listen.sasl.users.file",
                "",
                f"given with listen.sasl.enabled.mechanisms={self.listen_sasl_enabled_mechanisms}",
            )
        if "OAUTHBEARER" in mechanisms and not self.listen_jwks_url:
            raise ConfigError(
                "listen.sasl.oauthbearer.jwks.endpoint.url",
                "",
                "given with OAUTHBEARER in listen.sasl.enabled.mechanisms",
            )
        if not forwards:
            return
        wanted = (
            {"forwarding.sasl.oauthbearer.token.file": self.forwarding_sasl_token_file}
            if self.forwarding_sasl_mechanism == "OAUTHBEARER"
            else {
                "forwarding.sasl.username": self.forwarding_sasl_username,
                "forwarding.sasl.password": self.forwarding_sasl_password,
            }
        )
        for name, value in wanted.items():
            if not value:
                raise ConfigError(name, "", f"{given} and ownership=group")
