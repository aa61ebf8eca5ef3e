"""How a client shows who it is, and whom it trusts: TLS and SASL, with Kafka's names.

Files are read at each new connection, so certificates and tokens may be renewed while a client runs.
"""

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from coordinator.client.tls import client_context
from coordinator.errors import ConfigError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# What a client sends once it has heard that its token is no good (RFC 7628).
_UNDERSTOOD = b"\x01"

# Sends a token to the server, and returns the server's. Raises what `Connection.open` raises.
SendToken = Callable[[bytes], Awaitable[bytes]]


class ClientSecurity(NamedTuple):
    """Kafka's security settings of a client; empty texts are what was not given. Files are PEM.

    `ca_file` empty: those whom the system trusts. `key_file` empty: the key is with the certificate.
    `token_file`: the token for OAUTHBEARER.
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
        """Leave passwords out: this may end up in a log."""
        return f"ClientSecurity({self.protocol}, {self.mechanism}, {self.username!r})"

    @property
    def uses_sasl(self) -> bool:
        """True if the client logs in."""
        return self.protocol.startswith("SASL")

    @property
    def uses_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for a connection, None without TLS. Raises ConfigError for files of no use."""
        if not self.uses_tls:
            return None
        return client_context(
            ca=self.ca_file,
            certificate=self.certificate_file,
            key=self.key_file,
            key_password=self.key_password,
            check_hostname=self.check_hostname,
            prefix="ssl.",
        )

    async def log_in(self, send: SendToken) -> None:
        """Exchange the tokens of the mechanism. Raises ConfigError, ValueError if the server is nobody."""
        if self.mechanism == "PLAIN":
            await send(f"\0{self.username}\0{self.password}".encode())
        elif self.mechanism == "OAUTHBEARER":
            if await send(f"n,,\x01auth=Bearer {self._token()}\x01\x01".encode()):
                # The server says why not, and once more as an error.
                await send(_UNDERSTOOD)
        else:
            await self._log_in_by_scram(send)

    async def _log_in_by_scram(self, send: SendToken) -> None:
        # Only clients that need it pay for the import.
        from scramp import ScramClient, ScramException

        try:
            scram = ScramClient([self.mechanism], self.username, self.password)
            scram.set_server_first((await send(scram.get_client_first().encode())).decode())
            # The server, too, shows that it knows the password, or what is kept of it.
            scram.set_server_final((await send(scram.get_client_final().encode())).decode())
        except ScramException as error:
            raise ValueError(str(error)) from None

    def _token(self) -> str:
        try:
            return Path(self.token_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                "sasl.oauthbearer.token.file", self.token_file, f"a file with a token ({error})"
            ) from None
