"""Where the relay connects to: an address, and how the way there is secured."""

import os
import ssl
from typing import NamedTuple

from coordinator.config import HostPort
from coordinator.errors import ConfigError
from coordinator.relay.ends import PlainEnd, TlsEnd, connect


class OutwardFiles(NamedTuple):
    """PEM files; empty texts are what was not given. `ca` empty: those whom the system trusts."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = ""

    def __repr__(self) -> str:
        """Leave the password out: this may end up in a log."""
        return f"OutwardFiles({self.ca!r}, {self.certificate!r}, {self.key!r})"


class ClientTls:
    """The TLS of connections that we open. A connection takes the files that were good last."""

    def __init__(self, files: OutwardFiles, prefix: str, *, check_hostname: bool = True) -> None:
        """Load the files; `prefix` is what their settings begin with. Raises ConfigError."""
        self._files = files
        self._prefix = prefix
        self._check_hostname = check_hostname
        self._looks = self._look()
        self._context = self._loaded()

    def context(self) -> ssl.SSLContext:
        """Return the context for a connection, a new one if files changed and are good."""
        looks = self._look()
        if looks != self._looks:
            try:
                self._context = self._loaded()
                self._looks = looks
            except ConfigError:
                # Half of them are there: the next connection looks again.
                pass
        return self._context

    def _look(self) -> tuple[tuple[int, ...], ...]:
        files = self._files
        looks = []
        for path in (files.ca, files.certificate, files.key):
            try:
                found = os.stat(path) if path else None
            except OSError:
                found = None
            looks.append((found.st_ino, found.st_size, found.st_mtime_ns) if found else ())
        return tuple(looks)

    def _loaded(self) -> ssl.SSLContext:
        files, prefix = self._files, self._prefix
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self._check_hostname
        try:
            if files.ca:
                context.load_verify_locations(files.ca)
            else:
                context.load_default_certs()
        except (OSError, ValueError) as error:
            raise ConfigError(
                prefix + "ca.location", files.ca, f"a PEM file of certificates ({error})"
            ) from None
        # As in Java, any certificate of the file is an anchor, not only one that signed itself.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            if files.certificate:
                context.load_cert_chain(files.certificate, files.key or None, lambda: files.key_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                prefix + "certificate.location",
                files.certificate,
                f"a PEM file of a certificate, its key there or in {prefix}key.location ({error})",
            ) from None
        return context


class Target(NamedTuple):
    """A place to connect to. `server_name` is whose certificate it must show."""

    address: HostPort
    tls: ClientTls | None = None
    server_name: str = ""

    async def connect(self, timeout_s: float) -> PlainEnd | TlsEnd:
        """Connect. Raises OSError."""
        context = self.tls.context() if self.tls is not None else None
        return await connect(self.address, context, self.server_name or self.address.host, timeout_s)
