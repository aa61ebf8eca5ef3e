"""Settings of the HTTP server: authentication, and authorization to read and write.

If Kafka has a listener setting, the name is Kafka's with the prefix `http.`.
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
    """The settings of `Config` for the HTTP server."""

    http_ssl_certificate_location: Annotated[
        str,
        SettingInfo(
            "http.ssl.certificate.location",
            "A PEM file with the server certificate of HTTP, reloaded when it changes. Empty: no TLS.",
            "a file",
        ),
    ] = ""
    http_ssl_key_location: Annotated[
        str,
        SettingInfo(
            "http.ssl.key.location",
            "A PEM file with the key, if it is not in that of the certificate.",
            "a file",
        ),
    ] = ""
    http_ssl_key_password: Annotated[
        str, SettingInfo("http.ssl.key.password", "The password of the key.", secret=True)
    ] = ""
    http_ssl_ca_location: Annotated[
        str,
        SettingInfo(
            "http.ssl.ca.location",
            "A PEM file with the authorities of client certificates, reloaded when it changes.",
            "a file",
        ),
    ] = ""
    http_ssl_client_auth: Annotated[
        Literal["none", "requested", "required"],
        SettingInfo(
            "http.ssl.client.auth",
            "required: every client needs a certificate, including probes. requested: clients without "
            "one can use the probes, and need a token for everything else.",
        ),
    ] = "none"
    http_ssl_principal_mapping_rules: Annotated[
        str,
        SettingInfo(
            "http.ssl.principal.mapping.rules",
            "As Kafka's ssl.principal.mapping.rules.",
            "Kafka's rules, RULE:pattern/replacement/ or DEFAULT, separated by commas",
        ),
    ] = "DEFAULT"
    http_token_file: Annotated[
        str,
        SettingInfo(
            "http.token.file",
            "The bearer tokens: a file with lines NAME SCOPE TOKEN, reloaded when it changes. SCOPE "
            "is read or write; TOKEN may be sha256:HEX. Empty: no tokens.",
            "a file",
        ),
    ] = ""
    http_allowed_principals: Annotated[
        str,
        SettingInfo(
            "http.allowed.principals",
            "The principals of client certificates that may read. User:ANONYMOUS allows every client.",
            "principals as User:NAME, separated by semicolons",
        ),
    ] = ""
    http_write_principals: Annotated[
        str,
        SettingInfo(
            "http.write.principals",
            "The principals of client certificates that may read and, with http.writes=true, write.",
            "principals as User:NAME, separated by semicolons",
        ),
    ] = ""
    http_writes: Annotated[
        _Switch,
        SettingInfo(
            "http.writes",
            "true: authorized clients may write snapshots, prune logs and hand over shards. false: "
            "HTTP is read-only.",
        ),
    ] = "false"
    http_metrics_open: Annotated[
        _Switch,
        SettingInfo(
            "http.metrics.open",
            "true: /metrics requires neither token nor certificate.",
        ),
    ] = "false"

    @property
    def http_allows_writes(self) -> bool:
        """True if authorized clients may make changes over HTTP."""
        return self.http_writes == "true"

    @property
    def http_uses_tls(self) -> bool:
        """True if the HTTP server uses TLS."""
        return bool(self.http_ssl_certificate_location)

    @property
    def http_requires_login(self) -> bool:
        """True if clients must authenticate to read."""
        return bool(self.http_token_file or self.http_uses_tls or self.http_allowed_principals)

    def check_http(self) -> None:
        """Raise ConfigError if the settings are inconsistent."""
        tls_only = {
            "http.ssl.key.location": self.http_ssl_key_location,
            "http.ssl.key.password": self.http_ssl_key_password and MASK,
            "http.ssl.ca.location": self.http_ssl_ca_location,
            "http.ssl.client.auth": "" if self.http_ssl_client_auth == "none" else self.http_ssl_client_auth,
        }
        for name, value in tls_only.items():
            if value and not self.http_uses_tls:
                raise ConfigError(name, value, "given together with http.ssl.certificate.location")
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
                "given with TLS, because no client may read without it. Or set http.allowed.principals with "
                f"http.ssl.client.auth=required; {ANONYMOUS} allows all clients",
            )
        if self.http_allows_writes and not (
            self.http_token_file or (by_certificate and self.http_write_principals)
        ):
            raise ConfigError(
                "http.writes",
                "true",
                "false, because no client can be authenticated. Set http.token.file, or "
                "http.write.principals and http.ssl.client.auth=required",
            )

    def http_exposure_warning(self, http: HostPort) -> str | None:
        """Return a warning if other hosts can reach the address without authentication or TLS, else None."""
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
    """Return whether only this host can reach the address. The only accepted host name is localhost."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
