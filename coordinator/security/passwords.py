"""SASL mechanisms with a password: PLAIN (RFC 4616) and SCRAM (RFC 5802), compatible with Kafka brokers."""

import asyncio
from functools import partial

from scramp import ScramException, ScramMechanism

from coordinator.security.sasl import AuthenticationFailed, Identity, SaslStep, invalid_credentials
from coordinator.security.users import User, Users

_PARTS = 3
# The time for SASLprep increases with the square of the length: seconds for 64 KiB of combining characters.
_SCRAM_TOKEN_BYTES_MAX = 1024


class PlainExchange:
    """PLAIN: one token, which contains the password. Use it over TLS or on loopback only."""

    def __init__(self, users: Users) -> None:
        self._users = users

    async def process_token(self, token: bytes) -> SaslStep:
        """Process the token. The error texts are those of Kafka's PlainSaslServer."""
        authorization_id, name, password = _parse_plain_token(token)
        user = self._users.find_user(name)
        if not await self._matches_password(name, password):
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != name:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return SaslStep(b"", Identity(name), is_valid=partial(self._users.has_same_credentials, name, user))

    async def _matches_password(self, name: str, password: str) -> bool:
        # Deriving keys takes milliseconds, and clients can request it often, so it runs on a thread.
        return await asyncio.to_thread(self._users.matches_password, name, password)


class ScramExchange:
    """SCRAM: two tokens; the password is never sent."""

    def __init__(self, mechanism: str, users: Users) -> None:
        self._mechanism = mechanism
        self._users = users
        self._known = False
        self._name = ""
        # The user whose keys verify this exchange, even if the file is reloaded before the second token.
        self._user: User | None = None
        self._server = ScramMechanism(mechanism).make_server(self._find_keys)
        self._begun = False

    async def process_token(self, token: bytes) -> SaslStep:
        """Process a token; the client gets the same error for every failure."""
        if len(token) > _SCRAM_TOKEN_BYTES_MAX:
            raise invalid_credentials(self._mechanism)
        try:
            text = token.decode()
            if not self._begun:
                self._begun = True
                self._server.set_client_first(text)
                return SaslStep(self._server.get_server_first().encode())
            self._server.set_client_final(text)
            final = self._server.get_server_final().encode()
        except (ScramException, ValueError):
            raise invalid_credentials(self._mechanism) from None
        if not self._known:
            raise invalid_credentials(self._mechanism)
        is_valid = partial(self._users.has_same_credentials, self._name, self._user)
        return SaslStep(final, Identity(self._name), is_valid=is_valid)

    def _find_keys(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._name = name
        self._user = user = self._users.find_user(name)
        keys = user.keys.get(self._mechanism) if user is not None else None
        self._known = keys is not None
        return keys or self._users.decoy_keys(name, self._mechanism)


def _parse_plain_token(token: bytes) -> tuple[str, str, str]:
    # As in Java, invalid UTF-8 is replaced, so it matches no name and no password.
    parts = token.decode("utf-8", "replace").split("\0")
    if len(parts) != _PARTS:
        raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
    authorization_id, name, password = parts
    if not name:
        raise AuthenticationFailed("Authentication failed: username not specified")
    if not password:
        raise AuthenticationFailed("Authentication failed: password not specified")
    return authorization_id, name, password
