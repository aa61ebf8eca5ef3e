"""Settings of the HTTP server: authentication, and authorization to read and write.

If Kafka has a listener setting, the name is Kafka's with the prefix `http.`.
"""

from ipaddress import ip_address

from coordinator.config.fields import (
    MASK,
    ClientAuth,
    File,
    HostPort,
    Principals,
    SettingGroup,
    Switch,
)
from coordinator.config.security_groups import ListenerTlsSettings
from coordinator.errors import ConfigError

ANONYMOUS = "User:ANONYMOUS"


class HttpTlsSettings(ListenerTlsSettings):
    """The TLS settings of the HTTP server, which uses TLS if it has a certificate."""

    client_auth: ClientAuth = "none"
    """required: every client needs a certificate, including probes. requested: clients without one can use
    the probes, and need a token for everything else."""


class HttpSettings(SettingGroup):
    """The settings of `Config` for the HTTP server."""

    http_ssl: HttpTlsSettings = HttpTlsSettings()
    """Empty: no TLS."""

    http_token_file: File = ""
    """The bearer tokens: a file with lines NAME SCOPE TOKEN, reloaded when it changes. SCOPE is read or
    write; TOKEN may be sha256:HEX. Empty: no tokens."""

    http_allowed_principals: Principals = ""
    """The principals of client certificates that may read. User:ANONYMOUS allows every client."""

    http_write_principals: Principals = ""
    """The principals of client certificates that may read and, with http.writes=true, write."""

    http_writes: Switch = "false"
    """true: authorized clients may hand over shards and run expiry. false: HTTP is read-only."""

    http_metrics_open: Switch = "false"
    """true: /metrics requires neither token nor certificate."""

    @property
    def http_allows_writes(self) -> bool:
        """True if authorized clients may make changes over HTTP."""
        return self.http_writes == "true"

    @property
    def http_uses_tls(self) -> bool:
        return bool(self.http_ssl.certificate_location)

    @property
    def http_requires_login(self) -> bool:
        return bool(self.http_token_file or self.http_uses_tls or self.http_allowed_principals)

    def check_http(self) -> None:
        tls = self.http_ssl
        by_certificate = tls.client_auth != "none"
        tls_only = {
            "http.ssl.key.location": tls.key_location,
            "http.ssl.key.password": tls.key_password and MASK,
            "http.ssl.ca.location": tls.ca_location,
            "http.ssl.client.auth": tls.client_auth if by_certificate else "",
        }
        for name, value in tls_only.items():
            if value and not self.http_uses_tls:
                raise ConfigError(name, value, "given together with http.ssl.certificate.location")
        if self.http_uses_tls:
            tls.check_files("http.ssl", "given with TLS")
        readers = self.http_allowed_principals or self.http_write_principals
        if self.http_requires_login and not (
            self.http_token_file or (by_certificate and readers) or ANONYMOUS in self.http_allowed_principals
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
                "http.token.file or http.ssl.client.auth, or restrict who can connect to it"
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
