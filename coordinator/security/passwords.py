"""The mechanisms with a password: PLAIN (RFC 4616) and SCRAM (RFC 5802), as Kafka's servers answer them."""

import asyncio
from collections.abc import Callable
from functools import partial

from scramp import ScramException, ScramMechanism

from coordinator.security.sasl import AuthenticationFailed, Identity, SaslStep, invalid_credentials
from coordinator.security.users import Users

_PARTS = 3


def validity_of(users: Users, name: str) -> Callable[[], bool]:
    """Return what tells whether a login of a user is still valid."""
    user = users.find(name)
    return partial(users.is_unchanged, name, user) if user is not None else lambda: False


class PlainExchange:
    """PLAIN: one token, with the password in it. Over TLS only, or where everybody may listen."""

    def __init__(self, users: Users) -> None:
        self._users = users

    async def take(self, token: bytes) -> SaslStep:
        """Take the token. The texts of errors are those of Kafka's PlainSaslServer."""
        authorization_id, name, password = _parse_plain_token(token)
        if not await self._matches(name, password):
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != name:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return SaslStep(b"", Identity(name), is_valid=validity_of(self._users, name))

    async def _matches(self, name: str, password: str) -> bool:
        # To derive keys takes some ms, and clients can ask for it often: not on the event loop.
        return await asyncio.to_thread(self._users.matches, name, password)


class ScramExchange:
    """SCRAM: two tokens; the password itself never travels."""

    def __init__(self, mechanism: str, users: Users) -> None:
        self._mechanism = mechanism
        self._users = users
        self._known = False
        self._name = ""
        self._server = ScramMechanism(mechanism).make_server(self._keys_of)
        self._begun = False

    async def take(self, token: bytes) -> SaslStep:
        """Take a token; whatever is wrong, the client hears the same."""
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
        return SaslStep(final, Identity(self._name), is_valid=validity_of(self._users, self._name))

    def _keys_of(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._name = name
        user = self._users.find(name)
        keys = user.keys.get(self._mechanism) if user is not None else None
        self._known = keys is not None
        return keys or self._users.decoy_keys(name, self._mechanism)


def _parse_plain_token(token: bytes) -> tuple[str, str, str]:
    # Bytes that are no UTF-8 are replaced, as in Java, and are nobody's name or password then.
    parts = token.decode("utf-8", "replace").split("\0")
    if len(parts) != _PARTS:
        raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
    authorization_id, name, password = parts
    if not name:
        raise AuthenticationFailed("Authentication failed: username not specified")
    if not password:
        raise AuthenticationFailed("Authentication failed: password not specified")
    return authorization_id, name, password
