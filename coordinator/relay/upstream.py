"""Where the relay connects to: an address, and how the way there is secured."""

import ssl
from typing import NamedTuple

from coordinator.client.tls import client_context
from coordinator.config import HostPort
from coordinator.relay.streams import PlainStream, TlsStream, connect
from coordinator.security.reloading_files import ReloadingFiles


class UpstreamTlsFiles(NamedTuple):
    """PEM files; empty texts are what was not given. `ca` empty: those whom the system trusts."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = ""

    def __repr__(self) -> str:
        """Leave the password out: this may end up in a log."""
        return f"UpstreamTlsFiles({self.ca!r}, {self.certificate!r}, {self.key!r})"


class ClientTls(ReloadingFiles):
    """The TLS of connections that we open. A connection takes the files that were good last."""

    def __init__(self, files: UpstreamTlsFiles, prefix: str, *, check_hostname: bool = True) -> None:
        """Load the files; `prefix` is what their settings begin with. Raises ConfigError."""
        super().__init__("TLS files", tuple(filter(None, (files.certificate, files.key, files.ca))))
        self._files = files
        self._prefix = prefix
        self._check_hostname = check_hostname
        self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context for a connection, a new one if files changed and are good."""
        self.reload_if_changed()
        return self._context

    def _load(self) -> None:
        files = self._files
        self._context = client_context(
            ca=files.ca,
            certificate=files.certificate,
            key=files.key,
            key_password=files.key_password,
            check_hostname=self._check_hostname,
            prefix=self._prefix,
        )


class Upstream(NamedTuple):
    """A place to connect to. `server_name` is whose certificate it must show."""

    address: HostPort
    tls: ClientTls | None = None
    server_name: str = ""

    async def connect(self, timeout_s: float) -> PlainStream | TlsStream:
        """Connect. Raises OSError."""
        context = self.tls.context() if self.tls is not None else None
        return await connect(self.address, context, self.server_name or self.address.host, timeout_s)
