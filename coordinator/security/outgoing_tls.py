"""TLS of outgoing connections, reloaded when its files change."""

import ssl

from coordinator.client import ClientSecurity
from coordinator.security.reloading_files import ReloadingFiles


class OutgoingTls(ReloadingFiles):
    """TLS of outgoing connections; its files are reloaded when they change, unless they are invalid."""

    def __init__(self, security: ClientSecurity, prefix: str = "ssl.") -> None:
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
