"""TLS of a listener: its context, and files that may be replaced while it runs.

Each handshake begins with its own context, without certificates, and then switches to the most recently
loaded context.  After a certificate authority is removed, no new connection trusts it.  OpenSSL caches TLS
1.2 sessions in the context in which a handshake began.  No other handshake uses that context, so no session
can be resumed.  Each client must therefore present a valid certificate again.
"""

import logging
import math
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509

from coordinator.config.security_groups import ListenerTlsSettings
from coordinator.errors import ConfigError
from coordinator.process.clock import SystemClock, format_utc
from coordinator.security.reloading_files import ReloadingFiles

_logger = logging.getLogger(__name__)
_VERIFY = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


_PEM = re.compile(rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.+?-----END", re.DOTALL)
# The setter of the C base class: SSLContext's own setter would create a reference cycle with the context.
_SNI_CALLBACK: Any = vars(ssl.SSLContext.__mro__[1])["sni_callback"]


class ServerTls(ReloadingFiles):
    """The TLS configuration of one listener; `watch` reloads its files."""

    def __init__(self, settings: ListenerTlsSettings, setting: str) -> None:
        """Load the files; `setting` is the prefix of their settings ("listen", "http").

        Raises ConfigError with the setting and the file if a file is invalid.
        """
        files = (settings.certificate_location, settings.key_location, settings.ca_location)
        super().__init__("TLS files", tuple(filter(None, files)))
        self._settings = settings
        self._setting = setting
        self._anchors: frozenset[bytes] = frozenset()
        # The expiry of the server certificate (s since 1970), or infinity after it was logged.
        self._ends_s = math.inf
        # Number of reloads that removed a certificate authority.
        self.removals = 0
        self._load()

    @property
    def context(self) -> ssl.SSLContext:
        """A new context for one handshake, so that no other handshake can resume its session."""
        context = _make_empty_context(self._settings.client_auth)
        _SNI_CALLBACK.__set__(context, self._on_server_name)
        return context

    def _on_server_name(self, connection: Any, server_name: str | None, context: ssl.SSLContext) -> None:
        """Switch a handshake to the most recently loaded context; OpenSSL calls this with or without SNI."""
        if connection.context is not self._current_context:
            connection.context = self._current_context

    def reload_if_changed(self) -> bool:
        """Reload the files like the base class; log once that the server certificate has expired."""
        is_reloaded = super().reload_if_changed()
        self._log_expiry()
        return is_reloaded

    def _log_expiry(self) -> None:
        if self._ends_s > SystemClock().now_ms() / 1000:
            return
        _logger.error(
            "The certificate in %s expired at %s. Clients refuse it until the file is replaced.",
            self._settings.certificate_location,
            format_utc(self._ends_s),
        )
        self._ends_s = math.inf

    def _load(self) -> None:
        context, ends_s = self._make_context(), _read_expiry_s(self._settings.certificate_location)
        ca = self._settings.ca_location
        anchors = frozenset(_PEM.findall(Path(ca).read_bytes())) if ca else frozenset()
        if self._anchors - anchors:
            self.removals += 1
        self._current_context, self._anchors = context, anchors
        self._ends_s = ends_s
        self._log_expiry()

    def _make_context(self) -> ssl.SSLContext:
        settings, prefix = self._settings, self._setting + ".ssl."
        certificate, ca = settings.certificate_location, settings.ca_location
        context = _make_empty_context(settings.client_auth)
        try:
            # Without a callback, OpenSSL would prompt for the password on the terminal.
            context.load_cert_chain(certificate, settings.key_location or None, lambda: settings.key_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                prefix + "certificate.location",
                certificate,
                f"a PEM file with a certificate, and its key there or in {prefix}key.location "
                f"({_describe_error(error)})",
            ) from None
        try:
            if ca:
                context.load_verify_locations(ca)
        except (OSError, ValueError) as error:
            raise ConfigError(
                prefix + "ca.location", ca, f"a PEM file with certificates ({_describe_error(error)})"
            ) from None
        return context


class CertificateTrust:
    """Checks whether a client certificate is still valid after its handshake."""

    def __init__(self, tls: ServerTls, certificate: Mapping[str, Any]) -> None:
        self._tls = tls
        self._removals = tls.removals
        self._ends_s = ssl.cert_time_to_seconds(certificate["notAfter"])

    def is_valid(self, now_ms: int) -> bool:
        """Return False if the certificate has expired, or if any authority was removed since the handshake.

        After a removal, all clients must reconnect; the next handshake accepts or rejects them.
        """
        return self._removals == self._tls.removals and now_ms / 1000 < self._ends_s


def _read_expiry_s(certificate_file: str) -> float:
    """Return when the first certificate in a file expires (s since 1970); infinity if it is not readable."""
    try:
        certificates = x509.load_pem_x509_certificates(Path(certificate_file).read_bytes())
    except ValueError:
        return math.inf
    return certificates[0].not_valid_after_utc.timestamp()


def _make_empty_context(client_auth: str) -> ssl.SSLContext:
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
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
