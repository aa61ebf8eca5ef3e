"""The settings of the HTTP side: who may look, and who may change something.

Names are those of a Kafka listener behind `http.`, where Kafka has them.
"""

from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator

from coordinator.config.fields import MASK, HostPort, SettingInfo
from coordinator.errors import ConfigError

ANONYMOUS = "User:ANONYMOUS"

_Switch = Annotated[
    Literal["true", "false"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]


class HttpSettings(BaseModel):
    """The part of `Config` that concerns the HTTP side."""

    http_ssl_certificate_location: Annotated[
        str,
        SettingInfo(
            "http.ssl.certificate.location",
            "The certificate that HTTP is served with, over TLS: a PEM file, read again when it changes. "
            "Empty: no TLS.",
            "a file",
        ),
    ] = ""
    http_ssl_key_location: Annotated[
        str,
        SettingInfo(
            "http.ssl.key.location",
            "The key of that certificate, if it is not in the same file: a PEM file.",
            "a file",
        ),
    ] = ""
    http_ssl_key_password: Annotated[
        str, SettingInfo("http.ssl.key.password", "The password of that key, if it has one.", secret=True)
    ] = ""
    http_ssl_ca_location: Annotated[
        str,
        SettingInfo(
            "http.ssl.ca.location",
            "Who signs the certificates of those that connect: a PEM file, read again when it changes.",
            "a file",
        ),
    ] = ""
    http_ssl_client_auth: Annotated[
        Literal["none", "requested", "required"],
        SettingInfo(
            "http.ssl.client.auth",
            "required: nobody connects without a certificate, probes neither. requested: who has one is "
            "known by it; whoever has none gets answers to probes, and needs a token for the rest.",
        ),
    ] = "none"
    http_ssl_principal_mapping_rules: Annotated[
        str,
        SettingInfo(
            "http.ssl.principal.mapping.rules",
            "How the name in a certificate becomes a principal, as Kafka's ssl.principal.mapping.rules.",
            "Kafka's rules, RULE:pattern/replacement/ or DEFAULT, separated by commas",
        ),
    ] = "DEFAULT"
    http_token_file: Annotated[
        str,
        SettingInfo(
            "http.token.file",
            "Who may do what with a bearer token: a file of lines NAME SCOPE TOKEN, where SCOPE is read or "
            "write and TOKEN may be sha256:HEX. Read again when it changes. Empty: there are no tokens.",
            "a file",
        ),
    ] = ""
    http_allowed_principals: Annotated[
        str,
        SettingInfo(
            "http.allowed.principals",
            "Who may look with a certificate, separated by semicolons as in Kafka's super.users. "
            f"{ANONYMOUS}: everybody who connects, without anything.",
            "principals as User:NAME, separated by semicolons",
        ),
    ] = ""
    http_write_principals: Annotated[
        str,
        SettingInfo(
            "http.write.principals",
            "Who may look and, with http.writes=true, change something, with a certificate.",
            "principals as User:NAME, separated by semicolons",
        ),
    ] = ""
    http_writes: Annotated[
        _Switch,
        SettingInfo(
            "http.writes",
            "true: whoever has the right may have snapshots written, logs pruned and shards handed over. "
            "false: HTTP shows, and changes nothing.",
        ),
    ] = "false"
    http_metrics_open: Annotated[
        _Switch,
        SettingInfo(
            "http.metrics.open",
            "true: /metrics is answered without a token or a certificate, as probes are.",
        ),
    ] = "false"

    @property
    def http_allows_writes(self) -> bool:
        """True if something can be changed over HTTP, by whoever has the right."""
        return self.http_writes == "true"

    @property
    def http_uses_tls(self) -> bool:
        """True if HTTP is served over TLS."""
        return bool(self.http_ssl_certificate_location)

    @property
    def http_requires_login(self) -> bool:
        """True if not everybody who can connect may look."""
        return bool(self.http_token_file or self.http_uses_tls or self.http_allowed_principals)

    def check_http(self) -> None:
        """Raise ConfigError if the settings do not go together."""
        tls_only = {
            "http.ssl.key.location": self.http_ssl_key_location,
            "http.ssl.key.password": self.http_ssl_key_password and MASK,
            "http.ssl.ca.location": self.http_ssl_ca_location,
            "http.ssl.client.auth": "" if self.http_ssl_client_auth == "none" else self.http_ssl_client_auth,
        }
        for name, value in tls_only.items():
            if value and not self.http_uses_tls:
                raise ConfigError(name, value, "left out, or given with http.ssl.certificate.location")
        by_certificate = self.http_ssl_client_auth != "none"
        if by_certificate and not self.http_ssl_ca_location:
            raise ConfigError(
                "http.ssl.ca.location", "", f"given with http.ssl.client.auth={self.http_ssl_client_auth}"
            )
        named = self.http_allowed_principals or self.http_write_principals
        if self.http_requires_login and not (
            self.http_token_file or (by_certificate and named) or ANONYMOUS in self.http_allowed_principals
        ):
            raise ConfigError(
                "http.token.file",
                "",
                "given with TLS, or nobody may look; others that may are named by http.allowed.principals "
                f"with http.ssl.client.auth=required, and all by http.allowed.principals={ANONYMOUS}",
            )
        if self.http_allows_writes and not (
            self.http_token_file or (by_certificate and self.http_write_principals)
        ):
            raise ConfigError(
                "http.writes",
                "true",
                "false without http.token.file, and without http.write.principals and "
                "http.ssl.client.auth=required: nobody would be known by name",
            )

    def http_exposure_warning(self, http: HostPort) -> str | None:
        """Return a warning about an address that others can reach, or None."""
        if is_loopback(http.host):
            return None
        if not self.http_requires_login:
            return (
                f"http={http} shows groups, topics and offsets to everybody who can reach it; set "
                "http.token.file or http.ssl.client.auth, or let only those reach it who may look"
            )
        if not self.http_uses_tls:
            return f"http={http} takes tokens in clear; set http.ssl.certificate.location"
        return None


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address; a name other than localhost is none."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
