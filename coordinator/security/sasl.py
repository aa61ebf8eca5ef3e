"""SASL from the server's side: what a mechanism is asked, and what comes of it.

A mechanism makes an exchange for each authentication.  The exchange takes the client's tokens one by one, and
answers each, until it knows who the client is.  Nothing here knows of Kafka's frames.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"


class AuthenticationFailed(Exception):
    """The client is not who it says; the text is what it may be told, which is no more than it knows."""


class Identity(NamedTuple):
    """Who a client is, and until when that holds (ms since 1970; None: no end)."""

    name: str
    expires_ms: int | None = None

    @property
    def principal(self) -> str:
        """The name as Kafka writes principals."""
        return f"User:{self.name}"


class SaslStep(NamedTuple):
    """The answer to a token; with an identity, the authentication is complete.

    `refusal` is the reason, for the log, if the answer tells the client that its token was refused.
    `is_valid` tells later whether what the client logged in with still exists.
    """

    response: bytes
    identity: Identity | None = None
    refusal: str = ""
    is_valid: Callable[[], bool] = lambda: True


class Exchange(Protocol):
    """One authentication. Used by one connection, one token at a time."""

    async def take(self, token: bytes) -> SaslStep:
        """Take the client's next token. Raises AuthenticationFailed; the exchange is of no more use then."""
        ...


Mechanism = Callable[[], Exchange]


def invalid_credentials(mechanism: str) -> AuthenticationFailed:
    """Make the error that tells a client nothing: Kafka's text for a wrong password, and for any other."""
    return AuthenticationFailed(
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        f"{mechanism}"
    )
