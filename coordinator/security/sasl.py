"""The server side of SASL: exchanges, steps and identities.

A mechanism creates one exchange for each authentication.  The exchange processes the client's tokens one by
one until the client is authenticated.  This module is independent of Kafka's frames.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"


class AuthenticationFailed(Exception):
    """Authentication failed; the exception text is sent to the client, so it contains no secrets."""


class Identity(NamedTuple):
    """An authenticated client and the expiry of its credential (ms since 1970; None: never)."""

    name: str
    expires_ms: int | None = None

    @property
    def principal(self) -> str:
        return f"User:{self.name}"


class SaslStep(NamedTuple):
    """The response to a token; with an identity, the authentication is complete.

    If the response refuses the token, `refusal` is the reason for the log. `is_valid` returns whether the
    client's credential still exists.
    """

    response: bytes
    identity: Identity | None = None
    refusal: str = ""
    is_valid: Callable[[], bool] = lambda: True


class SaslExchange(Protocol):
    """One authentication. An exchange processes the tokens of one connection, one token at a time."""

    async def process_token(self, token: bytes) -> SaslStep:
        """Process the client's next token.

        Raises AuthenticationFailed; afterwards the exchange must not be used.
        """


Mechanism = Callable[[], SaslExchange]


def invalid_credentials(mechanism: str) -> AuthenticationFailed:
    """Return Kafka's error for a wrong password; an unknown user gets the same error."""
    return AuthenticationFailed(
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        f"{mechanism}"
    )
