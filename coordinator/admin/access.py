"""Who may look over HTTP, and who may change something.

Somebody is known by a bearer token, or by a certificate of their own.  What nobody needs a name for: the
probes, which a kubelet asks, and the page as such, which is the same everywhere and asks for a token itself.
"""

import logging
import re
from collections.abc import Mapping
from hashlib import sha256
from ipaddress import ip_address
from math import ceil
from typing import Any, NamedTuple

from coordinator.admin.attempts import Attempts
from coordinator.admin.tokens import TokenFile
from coordinator.clock import seconds_since_boot
from coordinator.config import Config
from coordinator.config.admin import is_loopback
from coordinator.errors import ConfigError
from coordinator.logs import AUDIT
from coordinator.security.principals import (
    ANONYMOUS,
    AllowedPrincipals,
    MappingRules,
    UnmappedCertificate,
    principal_of_certificate,
)
from coordinator.visible import written_out

audit = logging.getLogger(AUDIT)
# What was changed, and by whom, is told whatever else is not.
audit.setLevel(logging.INFO)

PROBES = frozenset(("/livez", "/readyz", "/startupz"))
_SAME_EVERYWHERE = frozenset(("/", "/openapi.json"))
_ASSETS = "/assets/"

_HOW_TO_SEND = (
    "send Authorization: Bearer TOKEN (commands: --token-file FILE) with a token of the file that "
    "http.token.file names there"
)
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="share-coordinator"'}


class Visitor(NamedTuple):
    """Somebody, by name: `who` is "token NAME" or a principal, `address` where they come from."""

    who: str
    address: str
    may_write: bool = False


class Denied(Exception):
    """An answer to somebody who may not: a status of HTTP, a sentence that says what to do, and headers."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


class Access:
    """The rules of one HTTP side. Used on one event loop."""

    def __init__(self, config: Config) -> None:
        """Read what the settings name. Raises ConfigError if it is of no use."""
        self._guarded = config.http_is_guarded
        self._only_here = not self._guarded and is_loopback(config.http.host)
        self._writes = config.http_may_write
        self._metrics_open = config.http_metrics_open == "true"
        self._by_certificate = config.http_ssl_client_auth != "none"
        self._tokens = TokenFile(config.http_token_file) if config.http_token_file else None
        self._readers = _principals("http.allowed.principals", config.http_allowed_principals)
        self._writers = _principals("http.write.principals", config.http_write_principals)
        rules = config.http_ssl_principal_mapping_rules
        try:
            self._rules = MappingRules.parse(rules)
        except ValueError as error:
            raise ConfigError("http.ssl.principal.mapping.rules", rules, f"rules; {error}") from None
        self._attempts = Attempts(seconds_since_boot)

    def reload_if_changed(self) -> bool:
        """Read the tokens again if their file changed; return True if so."""
        if self._tokens is None or not self._tokens.reload_if_changed():
            return False
        self._attempts.forget_proofs()
        return True

    def is_open(self, path: str) -> bool:
        """Tell whether everybody may look at a path."""
        return (
            path in PROBES
            or path in _SAME_EVERYWHERE
            or path.startswith(_ASSETS)
            or (self._metrics_open and path == "/metrics")
        )

    def check_name(self, host: str) -> None:
        """Raise Denied for a request whose Host is a name that somebody else may have given this machine.

        Where everybody on this machine may look, a web page that its reader opens must not: one that has its
        own name lead here (DNS rebinding) would be let in by the browser as if we were its own server.
        """
        if self._only_here and not _is_own_name(host):
            raise Denied(
                403,
                f"{written_out(host)} is not a name of this machine alone: ask for 127.0.0.1 or localhost, "
                f"set http.token.file, or let everybody look with http.allowed.principals={ANONYMOUS}",
            )

    def reader(self, address: str, authorization: str, certificate: Mapping[str, Any] | None) -> Visitor:
        """Return who asks, if they may look. Raises Denied."""
        if authorization and self._tokens is not None:
            return self._by_token(address, authorization)
        principal = self._principal(address, certificate)
        if principal != ANONYMOUS and self._writers.allows(principal):
            return Visitor(principal, address, may_write=True)
        if not self._guarded or self._readers.allows(principal):
            return Visitor(principal, address)
        if principal != ANONYMOUS:
            self.note(address, "not allowed", principal)
            raise Denied(403, f"{principal} may not look here: http.allowed.principals does not name it")
        if self._tokens is not None:
            also = ", or connect with a certificate" if self._by_certificate else ""
            raise Denied(401, f"a token is needed: {_HOW_TO_SEND}{also}", _CHALLENGE)
        raise Denied(
            401,
            "a certificate is needed: connect with one of a principal that http.allowed.principals names "
            "(commands: --cert FILE --key FILE)",
        )

    def writer(self, visitor: Visitor) -> None:
        """Let somebody pass who may change something. Raises Denied."""
        if visitor.who != ANONYMOUS and not (self._writes and visitor.may_write):
            self.note(visitor.address, "no right to write", visitor.who)
        if not self._writes:
            raise Denied(403, "this coordinator only shows: http.writes=true lets it take writes over HTTP")
        if not visitor.may_write:
            raise Denied(
                403,
                f"{visitor.who} may only look: writes take a token of scope write, or a certificate of a "
                "principal that http.write.principals names",
            )

    def _by_token(self, address: str, authorization: str) -> Visitor:
        assert self._tokens is not None
        kind, _, given = authorization.partition(" ")
        if kind.lower() != "bearer" or not given.strip():
            raise Denied(401, f"the Authorization header is not that of a token: {_HOW_TO_SEND}", _CHALLENGE)
        given = given.strip()
        digest = sha256(given.encode("utf-8", "surrogateescape")).digest()
        wait_s = self._attempts.wait_s(address)
        if wait_s and not self._attempts.was_right(address, digest):
            raise Denied(
                429,
                f"too many wrong tokens came from {address}: try again in {ceil(wait_s)} s",
                {"Retry-After": str(ceil(wait_s))},
            )
        token = self._tokens.find(given)
        if token is None:
            self._attempts.wrong(address)
            self.note(address, "wrong token")
            raise Denied(401, f"this token is not known here: {_HOW_TO_SEND}", _CHALLENGE)
        self._attempts.right(address, digest)
        return Visitor(f"token {token.name}", address, token.may_write)

    def _principal(self, address: str, certificate: Mapping[str, Any] | None) -> str:
        try:
            return principal_of_certificate(certificate, self._rules)
        except UnmappedCertificate as error:
            self.note(address, "no rule", str(error))
            raise Denied(
                403,
                f"no rule of http.ssl.principal.mapping.rules applies to the certificate of {error}",
            ) from None

    @staticmethod
    def note(address: str, why: str, who: str = "-") -> None:
        """Say in the audit log that somebody was refused."""
        audit.warning("refused", extra={"who": written_out(who), "address": address, "why": why})


def _is_own_name(host: str) -> bool:
    """Tell whether a Host header has an address, or a name that cannot lead elsewhere (RFC 6761)."""
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name == "" or name.lower() == "localhost" or name.lower().endswith(".localhost")
    return True


def _principals(setting: str, text: str) -> AllowedPrincipals:
    try:
        return AllowedPrincipals.parse(text)
    except ValueError as error:
        raise ConfigError(
            setting, text, f"principals as User:NAME, separated by semicolons; {error}"
        ) from None
