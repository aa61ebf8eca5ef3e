"""Upstream servers that the relay connects to: address, TLS files and server name."""

import ssl
from typing import NamedTuple

from coordinator.client.tls import client_context
from coordinator.config import HostPort
from coordinator.security.reloading_files import ReloadingFiles
from coordinator.serve.relay.streams import PlainStream, TlsStream, connect_stream


class UpstreamTlsFiles(NamedTuple):
    """PEM files of outgoing connections; "" is unset. If `ca` is unset, the system's CAs are used."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = ""

    def __repr__(self) -> str:
        """Omit the password, because the text may be logged."""
        return f"UpstreamTlsFiles({self.ca!r}, {self.certificate!r}, {self.key!r})"


class ClientTls(ReloadingFiles):
    """TLS of outgoing connections, reloaded when the files change. Invalid new files are not used."""

    def __init__(self, files: UpstreamTlsFiles, prefix: str, *, check_hostname: bool = True) -> None:
        """Load the files. `prefix` is the prefix of the settings that name the files. Raises ConfigError."""
        super().__init__("TLS files", tuple(filter(None, (files.certificate, files.key, files.ca))))
        self._files = files
        self._prefix = prefix
        self._check_hostname = check_hostname
        self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context for a connection, a new one if the files have changed and are valid."""
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


class UpstreamServer(NamedTuple):
    """A server to connect to. The server's certificate must be valid for `server_name`."""

    address: HostPort
    tls: ClientTls | None = None
    server_name: str = ""

    async def connect(self, timeout_s: float) -> PlainStream | TlsStream:
        """Connect. Raises OSError."""
        context = self.tls.context() if self.tls is not None else None
        return await connect_stream(self.address, context, self.server_name or self.address.host, timeout_s)
