"""TLS and SASL settings of a client, with Kafka's names.

Files are read for each new connection, so certificates and tokens may be renewed while a client runs.
"""

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from coordinator.client.tls import client_context
from coordinator.errors import ConfigError

# The message that a client sends after its token was refused (RFC 7628).
_UNDERSTOOD = b"\x01"

# Sends a token to the server, and returns the server's token. Raises the exceptions of `Connection.open`.
SendToken = Callable[[bytes], Awaitable[bytes]]


class ClientSecurity(NamedTuple):
    """Kafka's security settings of a client; an empty string means not set. Files are in PEM format.

    If `ca_file` is empty, the system's authorities are trusted. If `key_file` is empty, the key is in the
    certificate file. `token_file` has the token for OAUTHBEARER.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str = "PLAIN"
    username: str = ""
    password: str = ""
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = ""
    check_hostname: bool = True

    def __repr__(self) -> str:
        """Omit passwords, because the text may be logged."""
        return f"ClientSecurity({self.protocol}, {self.mechanism}, {self.username!r})"

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    def tls_context(self, prefix: str = "ssl.") -> ssl.SSLContext | None:
        """Return the context for a connection, None without TLS.

        Raises ConfigError for an unusable file; the error names the setting of the file, with `prefix`.
        """
        if not self.uses_tls:
            return None
        return client_context(
            ca=self.ca_file,
            certificate=self.certificate_file,
            key=self.key_file,
            key_password=self.key_password,
            check_hostname=self.check_hostname,
            prefix=prefix,
        )

    async def log_in(self, send: SendToken) -> None:
        """Exchange the mechanism's tokens. Raises ConfigError; ValueError for an invalid server proof."""
        if self.mechanism == "PLAIN":
            await send(f"\0{self.username}\0{self.password}".encode())
        elif self.mechanism == "OAUTHBEARER":
            if await send(f"n,,\x01auth=Bearer {self._read_token()}\x01\x01".encode()):
                # The server returned the reason; after this message it returns the error.
                await send(_UNDERSTOOD)
        else:
            await self._log_in_by_scram(send)

    async def _log_in_by_scram(self, send: SendToken) -> None:
        # Importing scramp takes time, and only SCRAM needs it.
        from scramp import ScramClient, ScramException

        try:
            scram = ScramClient([self.mechanism], self.username, self.password)
            scram.set_server_first((await send(scram.get_client_first().encode())).decode())
            # The server's final message proves that it knows the user's credential.
            scram.set_server_final((await send(scram.get_client_final().encode())).decode())
        except ScramException as error:
            raise ValueError(str(error)) from None

    def _read_token(self) -> str:
        try:
            return Path(self.token_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                "sasl.oauthbearer.token.file", self.token_file, f"a file with a token ({error})"
            ) from None
