"""Upstream servers that the relay connects to: address, TLS files and server name."""

import ssl
from typing import NamedTuple

from coordinator.client import ClientSecurity
from coordinator.config import HostPort
from coordinator.security.reloading_files import ReloadingFiles
from coordinator.serve.relay.streams import Stream, connect_stream


class ClientTls(ReloadingFiles):
    """TLS of outgoing connections, reloaded when the files change. Invalid new files are not used."""

    def __init__(self, security: ClientSecurity, prefix: str) -> None:
        """Load the files. `prefix` is the prefix of the settings that name the files. Raises ConfigError."""
        files = (security.certificate_file, security.key_file, security.ca_file)
        super().__init__("TLS files", tuple(filter(None, files)))
        self._security = security
        self._prefix = prefix
        self._load()

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a connection, a new one if the files have changed and are valid."""
        self.reload_if_changed()
        return self._context

    def _load(self) -> None:
        self._context = self._security.tls_context(self._prefix)


class UpstreamServer(NamedTuple):
    """A server to connect to. The server's certificate must be valid for `server_name`."""

    address: HostPort
    tls: ClientTls | None = None
    server_name: str = ""

    async def connect(self, timeout_s: float) -> Stream:
        """Connect. Raises OSError."""
        context = self.tls.context() if self.tls is not None else None
        return await connect_stream(self.address, context, self.server_name or self.address.host, timeout_s)
