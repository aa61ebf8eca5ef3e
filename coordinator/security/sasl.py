"""The server side of SASL: exchanges, steps and identities.

A mechanism makes one exchange for each authentication.  The exchange processes the client's tokens one by one
until the client is authenticated.  This module is independent of Kafka's frames.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"


class AuthenticationFailed(Exception):
    """The authentication failed; the text is sent to the client, so it reveals nothing secret."""


class Identity(NamedTuple):
    """An authenticated client, and when its credential expires (ms since 1970; None: never)."""

    name: str
    expires_ms: int | None = None

    @property
    def principal(self) -> str:
        """The name in the format of Kafka's principals."""
        return f"User:{self.name}"


class SaslStep(NamedTuple):
    """The response to a token; with an identity, the authentication is complete.

    `refusal` is the reason to log if the response tells the client that its token was refused. `is_valid`
    returns later whether the client's credential still exists.
    """

    response: bytes
    identity: Identity | None = None
    refusal: str = ""
    is_valid: Callable[[], bool] = lambda: True


class Exchange(Protocol):
    """One authentication. Used by one connection, one token at a time."""

    async def take(self, token: bytes) -> SaslStep:
        """Process the client's next token.

        Raises AuthenticationFailed; the exchange is unusable afterwards.
        """
        ...


Mechanism = Callable[[], Exchange]


def invalid_credentials(mechanism: str) -> AuthenticationFailed:
    """Return Kafka's error for a wrong password, which is also the one for an unknown user."""
    return AuthenticationFailed(
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        f"{mechanism}"
    )
