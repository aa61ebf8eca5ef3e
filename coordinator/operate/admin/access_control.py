"""Authenticate HTTP clients by bearer token or client certificate, and authorize reads and writes.

Probes need no authentication, because a kubelet sends no credentials. The web page's files need no
authentication either, because they contain no state. The page requests a token from its user.
"""

import logging
import re
from collections.abc import Mapping
from hashlib import sha256
from ipaddress import ip_address
from math import ceil
from typing import Any, NamedTuple

from coordinator.config import Config
from coordinator.config.admin import is_loopback
from coordinator.operate.admin.login_throttle import LoginThrottle
from coordinator.operate.admin.page_routes import RUNBOOK_PATH
from coordinator.operate.admin.tokens import TokenFile
from coordinator.printable import escape_unprintable
from coordinator.process.clock import seconds_since_boot
from coordinator.process.fair_queue import address_network
from coordinator.process.logging_setup import AUDIT
from coordinator.security.principals import (
    ANONYMOUS,
    AllowedPrincipals,
    MappingRules,
    UnmappedCertificate,
    parse_setting,
    principal_of_certificate,
)

audit = logging.getLogger(AUDIT)
# The audit log records every change at any log level.
audit.setLevel(logging.INFO)

PROBES = frozenset(("/livez", "/readyz", "/startupz"))
_PUBLIC_PATHS = frozenset(("/", "/openapi.json", RUNBOOK_PATH))
_ASSETS = "/assets/"

_TOKEN_HINT = (
    "send Authorization: Bearer TOKEN (commands: --token-file FILE) with a token from the coordinator's "
    "http.token.file"
)
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="share-coordinator"'}


class HttpPrincipal(NamedTuple):
    """A client: `who` is "token NAME" or a Kafka principal, `address` is its IP address."""

    who: str
    address: str
    may_write: bool = False


class AccessDenied(Exception):
    """A refused request: HTTP status, a message with a remedy, and response headers."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


class AccessControl:
    """The access rules of the HTTP server. All methods must be called on one event loop."""

    def __init__(self, config: Config) -> None:
        """Read the files named in the configuration. Raises ConfigError if a file is invalid."""
        self._requires_login = config.http_requires_login
        self._loopback_only = not self._requires_login and is_loopback(config.http.host)
        self._writes = config.http_allows_writes
        self._metrics_open = config.http_metrics_open == "true"
        self._by_certificate = config.http_ssl.client_auth != "none"
        self._tokens = TokenFile(config.http_token_file) if config.http_token_file else None
        self._readers = parse_setting(
            AllowedPrincipals.parse, "http.allowed.principals", config.http_allowed_principals
        )
        self._writers = parse_setting(
            AllowedPrincipals.parse, "http.write.principals", config.http_write_principals
        )
        self._rules = parse_setting(
            MappingRules.parse, "http.ssl.principal.mapping.rules", config.http_ssl.principal_mapping_rules
        )
        self._login_throttle = LoginThrottle(seconds_since_boot)

    def reload_if_changed(self) -> bool:
        """Reload the tokens if their file changed; return True if they were reloaded."""
        if self._tokens is None or not self._tokens.reload_if_changed():
            return False
        self._login_throttle.forget_known_good()
        return True

    def is_public(self, path: str) -> bool:
        return (
            path in PROBES
            or path in _PUBLIC_PATHS
            or path.startswith(_ASSETS)
            or (self._metrics_open and path == "/metrics")
        )

    def check_host_header(self, host: str) -> None:
        """Raise AccessDenied if a foreign DNS name in the Host header could resolve to this machine.

        On a loopback listener without login, every local user may read, but web pages in a local browser must
        not. With DNS rebinding, the name of a page's site resolves to 127.0.0.1. The browser would then treat
        this server as the origin of that page.
        """
        if self._loopback_only and not _is_safe_host(host):
            raise AccessDenied(
                403,
                f"{escape_unprintable(host)} is not a loopback name. Use 127.0.0.1 or localhost, "
                f"set http.token.file, or allow all clients to read with http.allowed.principals={ANONYMOUS}",
            )

    def authenticate(
        self, address: str, authorization: str, certificate: Mapping[str, Any] | None
    ) -> HttpPrincipal:
        """Return the client if the client may read. Raises AccessDenied."""
        if authorization and self._tokens is not None:
            return self._authenticate_token(address, authorization)
        principal = self._certificate_principal(address, certificate)
        if principal != ANONYMOUS and self._writers.allows_principal(principal):
            return HttpPrincipal(principal, address, may_write=True)
        if not self._requires_login or self._readers.allows_principal(principal):
            return HttpPrincipal(principal, address)
        if principal != ANONYMOUS:
            self.audit_refusal(address, "not allowed", principal)
            raise AccessDenied(403, f"{principal} may not read; add it to http.allowed.principals")
        if self._tokens is not None:
            also = ", or connect with a certificate" if self._by_certificate else ""
            raise AccessDenied(401, f"a token is required: {_TOKEN_HINT}{also}", _CHALLENGE)
        raise AccessDenied(
            401,
            "a client certificate of a principal in http.allowed.principals is required "
            "(commands: --cert FILE --key FILE)",
        )

    def authorize_write(self, principal: HttpPrincipal) -> None:
        if principal.who != ANONYMOUS and not (self._writes and principal.may_write):
            self.audit_refusal(principal.address, "no right to write", principal.who)
        if not self._writes:
            raise AccessDenied(
                403, "this coordinator is read-only over HTTP; set http.writes=true to allow changes"
            )
        if not principal.may_write:
            raise AccessDenied(
                403,
                f"{principal.who} may only read; a change requires a token of scope write "
                "or a certificate of a principal in http.write.principals",
            )

    def _authenticate_token(self, address: str, authorization: str) -> HttpPrincipal:
        assert self._tokens is not None
        kind, _, given = authorization.partition(" ")
        if kind.lower() != "bearer" or not given.strip():
            raise AccessDenied(
                401, f"the Authorization header has no bearer token: {_TOKEN_HINT}", _CHALLENGE
            )
        given = given.strip()
        digest = sha256(given.encode("utf-8", "surrogateescape")).digest()
        network = address_network((address,))
        wait_s = self._login_throttle.wait_s(network)
        if wait_s and not self._login_throttle.is_known_good(network, digest):
            raise AccessDenied(
                429,
                f"too many wrong tokens from {address}; try again in {ceil(wait_s)} s",
                {"Retry-After": str(ceil(wait_s))},
            )
        token = self._tokens.find_token(given)
        if token is None:
            self._login_throttle.record_failure(network)
            self.audit_refusal(address, "wrong token")
            raise AccessDenied(401, f"the token is not valid: {_TOKEN_HINT}", _CHALLENGE)
        self._login_throttle.record_success(network, digest)
        return HttpPrincipal(f"token {token.name}", address, token.may_write)

    def _certificate_principal(self, address: str, certificate: Mapping[str, Any] | None) -> str:
        try:
            return principal_of_certificate(certificate, self._rules)
        except UnmappedCertificate as error:
            self.audit_refusal(address, "no rule", str(error))
            raise AccessDenied(
                403,
                f"no rule of http.ssl.principal.mapping.rules matches the certificate of {error}",
            ) from None

    @staticmethod
    def audit_refusal(address: str, why: str, who: str = "-") -> None:
        audit.warning("refused", extra={"who": escape_unprintable(who), "address": address, "why": why})


def _is_safe_host(host: str) -> bool:
    """Return whether a Host header is an address or a name that always resolves to loopback (RFC 6761)."""
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name == "" or name.lower() == "localhost" or name.lower().endswith(".localhost")
    return True
