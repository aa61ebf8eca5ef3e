"""TLS of a listener: its context, and files that may be replaced while it runs.

Each handshake begins with its own context, without certificates, and then switches to the most recently
loaded context.  After a certificate authority is removed, no new connection trusts it.  OpenSSL caches TLS
1.2 sessions in the context in which a handshake began.  No other handshake uses that context, so no session
can be resumed.  Each client must therefore present a valid certificate again.
"""

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from coordinator.config import Config
from coordinator.errors import ConfigError
from coordinator.security.reloading_files import ReloadingFiles

ClientAuth = Literal["none", "requested", "required"]

_VERIFY = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


_PEM = re.compile(rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.+?-----END", re.DOTALL)
# The setter of the C base class: SSLContext's own setter would create a reference cycle with the context.
_SNI_CALLBACK: Any = vars(ssl.SSLContext.__mro__[1])["sni_callback"]


class TlsFiles(NamedTuple):
    """The PEM files of a listener; an empty string means that the setting is not set.

    If `key` is empty, the key is in the certificate file. `client_auth` is Kafka's ssl.client.auth:
    "requested" accepts clients without a certificate, but rejects invalid certificates.
    """

    certificate: str
    key: str = ""
    key_password: str = ""
    ca: str = ""
    client_auth: ClientAuth = "none"

    def __repr__(self) -> str:
        """Omit the password, because the text may be logged."""
        return (
            f"TlsFiles({self.certificate!r}, {self.key!r}, ca={self.ca!r}, client_auth={self.client_auth!r})"
        )


class ServerTls(ReloadingFiles):
    """The TLS configuration of one listener; `watch` reloads its files."""

    def __init__(self, files: TlsFiles, setting: str) -> None:
        """Load the files; `setting` is the prefix of their settings ("listen", "http").

        Raises ConfigError with the setting and the file if a file is invalid.
        """
        super().__init__("TLS files", tuple(filter(None, (files.certificate, files.key, files.ca))))
        self._files = files
        self._setting = setting
        self._anchors: frozenset[bytes] = frozenset()
        # Number of times that a certificate authority was removed.
        self.removals = 0
        self._load()

    @property
    def context(self) -> ssl.SSLContext:
        """A new context for one handshake, so that no other handshake can resume its session."""
        context = _make_empty_context(self._files.client_auth)
        _SNI_CALLBACK.__set__(context, self._on_server_name)
        return context

    def _on_server_name(self, connection: Any, server_name: str | None, context: ssl.SSLContext) -> None:
        """Switch a handshake to the most recently loaded context; OpenSSL calls this with or without SNI."""
        if connection.context is not self._current_context:
            connection.context = self._current_context

    def _load(self) -> None:
        self._current_context = self._make_context()
        anchors = (
            frozenset(_PEM.findall(Path(self._files.ca).read_bytes())) if self._files.ca else frozenset()
        )
        if self._anchors - anchors:
            self.removals += 1
        self._anchors = anchors

    def _make_context(self) -> ssl.SSLContext:
        files, prefix = self._files, self._setting + ".ssl."
        context = _make_empty_context(files.client_auth)
        try:
            # Without a callback, OpenSSL would prompt for the password on the terminal.
            context.load_cert_chain(files.certificate, files.key or None, lambda: files.key_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                prefix + "certificate.location",
                files.certificate,
                f"a PEM file with a certificate, and its key there or in {prefix}key.location "
                f"({_describe_error(error)})",
            ) from None
        if files.client_auth != "none" and not files.ca:
            raise ConfigError(
                prefix + "ca.location", "", f"given with {prefix}client.auth={files.client_auth}"
            )
        if files.ca:
            try:
                context.load_verify_locations(files.ca)
            except (OSError, ValueError) as error:
                raise ConfigError(
                    prefix + "ca.location",
                    files.ca,
                    f"a PEM file with certificates ({_describe_error(error)})",
                ) from None
        return context


def make_server_tls(config: Config, prefix: Literal["listen", "http", "relay"]) -> ServerTls:
    """Return the TLS configuration of a listener, from its settings. Raises ConfigError for invalid files."""
    names = ("certificate_location", "key_location", "key_password", "ca_location", "client_auth")
    return ServerTls(TlsFiles(*(getattr(config, f"{prefix}_ssl_{name}") for name in names)), prefix)


class CertificateTrust:
    """Tells whether a client certificate is still valid after its handshake."""

    def __init__(self, tls: ServerTls, certificate: Mapping[str, Any]) -> None:
        self._tls = tls
        self._removals = tls.removals
        self._ends_s = ssl.cert_time_to_seconds(certificate["notAfter"])

    def holds(self, now_ms: int) -> bool:
        """Return False if the certificate has expired, or if any authority was removed since the handshake.

        After a removal, all clients must reconnect; the next handshake accepts or rejects them.
        """
        return self._removals == self._tls.removals and now_ms / 1000 < self._ends_s


def _make_empty_context(client_auth: ClientAuth) -> ssl.SSLContext:
    """Return a context without certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A ticket would let a client resume a session after its certificate or authority was removed.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    # As in Java, any certificate in the file is a trust anchor, not only a self-signed one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_mode = _VERIFY[client_auth]
    return context


def _describe_error(error: Exception) -> str:
    """Return a short description of the problem with a file."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
