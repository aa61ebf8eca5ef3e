"""The settings of who may connect to the Kafka protocol port, and how coordinators connect to each other.

Names are Kafka's behind `listen.`, as Kafka's own are behind `listener.name.NAME.`. Without a prefix they are
for connections that we make to brokers.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from coordinator.config.admin import is_loopback
from coordinator.config.fields import INT32_MAX, HostPort, Milliseconds, SettingInfo, upper
from coordinator.errors import ConfigError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_FILE = "a file"
_ANONYMOUS = "User:ANONYMOUS"


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _mechanisms(value: object) -> object:
    if not isinstance(value, str):
        return value
    names = [name.strip().upper() for name in value.split(",") if name.strip()]
    if not set(names) <= set(MECHANISMS):
        raise ValueError(value)
    return ",".join(dict.fromkeys(names))


class ListenerSecuritySettings(BaseModel):
    """The part of `Config` that concerns the security of the Kafka protocol port."""

    listen_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        BeforeValidator(upper),
        SettingInfo(
            "listen.security.protocol",
            "How connections to listen are secured. With anything but PLAINTEXT, listen.allowed.principals "
            "says who is let in. See docs/security.md.",
        ),
    ] = "PLAINTEXT"
    listen_plaintext_allowed: Annotated[
        Literal["true", "false"],
        BeforeValidator(_lower),
        SettingInfo(
            "listen.plaintext.allowed",
            "true: with PLAINTEXT, listen may be an address that other machines reach, where everybody who "
            "does may read and write all state. Set it where a network lets none but brokers through.",
        ),
    ] = "false"
    listen_allowed_principals: Annotated[
        str,
        SettingInfo(
            "listen.allowed.principals",
            "Who is let in, with TLS or SASL, as in Kafka's super.users: brokers, other coordinators, tools. "
            "Others are answered CLUSTER_AUTHORIZATION_FAILED. Empty: nobody.",
            "User:NAME;User:NAME",
        ),
    ] = ""
    listen_ssl_certificate_location: Annotated[
        str,
        SettingInfo(
            "listen.ssl.certificate.location",
            "With SSL or SASL_SSL: our certificate for those who connect, a PEM file. It is read again when "
            "it changes, as are the other files.",
            _FILE,
        ),
    ] = ""
    listen_ssl_key_location: Annotated[
        str,
        SettingInfo(
            "listen.ssl.key.location",
            "The key of that certificate, if it is not in the same file: a PEM file.",
            _FILE,
        ),
    ] = ""
    listen_ssl_key_password: Annotated[
        str, SettingInfo("listen.ssl.key.password", "The password of that key, if it has one.", secret=True)
    ] = ""
    listen_ssl_ca_location: Annotated[
        str,
        SettingInfo(
            "listen.ssl.ca.location",
            "Who signs the certificates of those who connect: a PEM file. Other coordinators' certificates "
            "are checked by it too.",
            _FILE,
        ),
    ] = ""
    listen_ssl_client_auth: Annotated[
        Literal["none", "requested", "required"],
        BeforeValidator(_lower),
        SettingInfo(
            "listen.ssl.client.auth",
            "Whether those who connect show a certificate. With SSL it is what they are known by.",
        ),
    ] = "none"
    listen_ssl_principal_mapping_rules: Annotated[
        str,
        SettingInfo(
            "listen.ssl.principal.mapping.rules",
            "How the subject of a certificate becomes a principal, as Kafka's ssl.principal.mapping.rules.",
            "DEFAULT, or RULE:pattern/replacement/[LU], several with commas between",
        ),
    ] = "DEFAULT"
    listen_sasl_enabled_mechanisms: Annotated[
        str,
        BeforeValidator(_mechanisms),
        SettingInfo(
            "listen.sasl.enabled.mechanisms",
            "With a SASL protocol: how clients may log in.",
            f"some of {', '.join(MECHANISMS)}, with commas between",
        ),
    ] = ""
    listen_sasl_users_file: Annotated[
        str,
        SettingInfo(
            "listen.sasl.users.file",
            "For PLAIN and SCRAM: a .properties file of lines NAME=PASSWORD, or "
            "NAME=SCRAM-SHA-512=[salt=...,stored_key=...,server_key=...,iterations=...] as Kafka keeps "
            "passwords.",
            _FILE,
        ),
    ] = ""
    listen_jwks_url: Annotated[
        str,
        SettingInfo(
            "listen.sasl.oauthbearer.jwks.endpoint.url",
            "For OAUTHBEARER: the public keys that tokens are signed with, a JSON Web Key Set.",
            "https://..., http://... or a file",
        ),
    ] = ""
    listen_jwks_ca_location: Annotated[
        str,
        SettingInfo(
            "listen.sasl.oauthbearer.jwks.endpoint.ca.location",
            "Who signs the certificate of an https URL of keys: a PEM file. Empty: those whom the system "
            "trusts.",
            _FILE,
        ),
    ] = ""
    listen_jwks_refresh_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "listen.sasl.oauthbearer.jwks.endpoint.refresh.ms",
            "How often a URL is asked for keys anew; a key that is not known yet is asked for at once.",
        ),
    ] = 3_600_000
    listen_token_audience: Annotated[
        str,
        SettingInfo(
            "listen.sasl.oauthbearer.expected.audience",
            "For OAUTHBEARER: tokens must be meant for one of these. Empty: for anybody.",
            "names with commas between",
        ),
    ] = ""
    listen_token_issuer: Annotated[
        str,
        SettingInfo(
            "listen.sasl.oauthbearer.expected.issuer",
            "For OAUTHBEARER: who must have issued a token. Empty: anybody who has a key.",
        ),
    ] = ""
    listen_token_sub_claim: Annotated[
        str,
        Field(min_length=1),
        SettingInfo(
            "listen.sasl.oauthbearer.sub.claim.name",
            "For OAUTHBEARER: the claim of a token that holds the user.",
            "the name of a claim",
        ),
    ] = "sub"
    listen_token_clock_skew_s: Annotated[
        int,
        Field(ge=0, le=600),
        SettingInfo(
            "listen.sasl.oauthbearer.clock.skew.seconds",
            "How much the clock of who issues tokens may differ from ours.",
        ),
    ] = 30
    listen_reauth_max_ms: Annotated[
        int,
        Field(ge=0, le=INT32_MAX),
        SettingInfo(
            "listen.connections.max.reauth.ms",
            "With a SASL protocol: how long a login holds; the client logs in again on the same connection "
            "before (KIP-368). 0: as long as the connection, or the token. A token's end always counts.",
        ),
    ] = 0
    listen_failed_authentication_delay_ms: Annotated[
        int,
        Field(ge=0, le=60_000),
        SettingInfo(
            "listen.connection.failed.authentication.delay.ms",
            "How long a login that failed waits for its answer, against guessing.",
        ),
    ] = 100
    listen_handshake_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "listen.handshake.timeout.ms", "How long a client may take for TLS, and again to log in."
        ),
    ] = 30_000
    listen_reload_interval_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "listen.reload.interval.ms",
            "How often files of certificates, keys and users are looked at, whether they have changed.",
        ),
    ] = 5_000

    forwarding_sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"],
        BeforeValidator(upper),
        SettingInfo(
            "forwarding.sasl.mechanism",
            "With ownership=group and SASL: how we log in to other coordinators. TLS is that of listen: we "
            "show the same certificate, and theirs must be signed by listen.ssl.ca.location.",
        ),
    ] = "SCRAM-SHA-512"
    forwarding_sasl_username: Annotated[
        str, SettingInfo("forwarding.sasl.username", "Our name for other coordinators.")
    ] = ""
    forwarding_sasl_password: Annotated[
        str, SettingInfo("forwarding.sasl.password", "Our password for other coordinators.", secret=True)
    ] = ""
    forwarding_sasl_token_file: Annotated[
        str,
        SettingInfo(
            "forwarding.sasl.oauthbearer.token.file",
            "Our token for other coordinators; the file is read at each login.",
            _FILE,
        ),
    ] = ""
    forwarding_endpoint_identification: Annotated[
        Literal["https", "none"],
        SettingInfo(
            "forwarding.ssl.endpoint.identification.algorithm",
            "https: another coordinator's certificate must be for the host that it advertises. none: any "
            "that is signed will do.",
        ),
    ] = "https"

    @property
    def listen_uses_tls(self) -> bool:
        """True if brokers connect over TLS."""
        return self.listen_security_protocol in ("SSL", "SASL_SSL")

    @property
    def listen_mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms in the order given; none without SASL."""
        if not self.listen_security_protocol.startswith("SASL"):
            return ()
        return tuple(filter(None, self.listen_sasl_enabled_mechanisms.split(",")))

    def check_listener_security(self, listen: HostPort, *, forwards: bool) -> None:
        """Raise ConfigError if the settings do not go together."""
        protocol = self.listen_security_protocol
        if protocol == "PLAINTEXT":
            self._check_plaintext(listen)
            return
        given = f"given with listen.security.protocol={protocol}"
        if self.listen_uses_tls and not self.listen_ssl_certificate_location:
            raise ConfigError("listen.ssl.certificate.location", "", given)
        if not self.listen_allowed_principals:
            raise ConfigError("listen.allowed.principals", "", f"{given}: without it nobody is let in")
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
                f"required or requested with listen.security.protocol=SSL: without a certificate everybody "
                f"is {_ANONYMOUS}, who is not on the list",
            )

    def listen_risk(self, listen: HostPort) -> str | None:
        """Return a warning about an address that anybody on the network can use, or None."""
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
                "a loopback address with listen.security.protocol=PLAINTEXT; or set "
                "listen.plaintext.allowed=true where none but brokers can reach it",
            )
        # Whoever gives one of these means to have somebody checked, and nobody would be.
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
                    "left out with listen.security.protocol=PLAINTEXT, where nobody has a name",
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
