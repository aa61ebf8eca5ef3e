"""SASL OAUTHBEARER (RFC 7628): validate signed tokens as Kafka brokers do.

The checks are those of Kafka's BrokerJwtValidator: a signature by a key of the set, the subject, the issue
time, the expiry, and the configured issuer and audience.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import jwt

from coordinator.process.clock import Clock
from coordinator.security.jwks import KeySource
from coordinator.security.sasl import (
    OAUTHBEARER,
    AuthenticationFailed,
    Identity,
    SaslStep,
    invalid_credentials,
)

# Asymmetric signatures only: with a shared key, every verifier could create tokens.
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)

# The message is n,(a=authorization,)^A key=value^A ... ^A^A; the values of extensions are ignored.
_CLIENT_FIRST_MESSAGE = re.compile(r"n,(?:a=([^,\x01]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)*)\x01")
_BEARER = re.compile(r"bearer +([-_.+/~=A-Za-z0-9]+) *", re.IGNORECASE)
_UNDERSTOOD = b"\x01"
# Times after the year 9999 are rejected: a float of 1e300 cannot be converted to milliseconds.
_TIME_MAX_S = 253_402_300_800


class TokenRules(NamedTuple):
    """Conditions for valid tokens; a condition with an empty value is not checked."""

    audiences: tuple[str, ...] = ()
    issuer: str = ""
    subject_claim: str = "sub"
    clock_skew_s: int = 30


class InvalidToken(Exception):
    """A token is invalid; the exception text is logged and contains the reason but no part of the token."""


class ValidToken(NamedTuple):
    """The identity in a valid token, and the key of its signature."""

    identity: Identity
    key: jwt.PyJWK


class TokenValidator:
    """Validates tokens for all connections of a listener."""

    def __init__(self, keys: KeySource, rules: TokenRules, clock: Clock) -> None:
        self.keys = keys
        self._rules = rules
        self._clock = clock

    async def validate(self, token: str) -> ValidToken:
        """Return the identity in a valid token, and its key. Raises InvalidToken."""
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, RecursionError, ValueError) as error:
            raise InvalidToken(f"no token: {error}") from None
        if header.get("alg") not in ALGORITHMS:
            raise InvalidToken(f"signed with {header.get('alg')}, which is not accepted")
        keys = await self.keys.find_keys(header.get("kid"))
        if not keys:
            raise InvalidToken(f"signed with key {header.get('kid')!r}, which is not in the set")
        claims, key = self._decode_claims(token, keys)
        expires_s = self._validate_times(claims)
        subject = claims.get(self._rules.subject_claim)
        if not isinstance(subject, str) or not subject.strip():
            raise InvalidToken(f"without {self._rules.subject_claim}")
        return ValidToken(Identity(subject, int(expires_s * 1000)), key)

    def _decode_claims(self, token: str, keys: list[jwt.PyJWK]) -> tuple[Mapping[str, Any], jwt.PyJWK]:
        rules = self._rules
        why: Exception | None = None
        for key in keys:
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    key,
                    algorithms=[key.algorithm_name] if key.algorithm_name in ALGORITHMS else [],
                    audience=rules.audiences or None,
                    issuer=rules.issuer or None,
                    # `_validate_times` validates the times with the injected clock.
                    options={
                        "verify_aud": bool(rules.audiences),
                        "verify_exp": False,
                        "verify_iat": False,
                        "verify_nbf": False,
                    },
                )
            except (jwt.PyJWTError, RecursionError, ValueError) as error:
                why = error
                continue
            return claims, key
        raise InvalidToken(str(why))

    def _validate_times(self, claims: Mapping[str, Any]) -> float:
        """Return the expiry of a token (s since 1970). Raises InvalidToken if it is not valid now."""
        now_s = self._clock.now_ms() / 1000
        skew_s = self._rules.clock_skew_s
        begins_s, issued_s, expires_s = (claims.get(name) for name in ("nbf", "iat", "exp"))
        if not _is_valid_time(expires_s) or not _is_valid_time(issued_s):
            raise InvalidToken("without times for exp and iat")
        if now_s - skew_s >= expires_s:
            raise InvalidToken("expired")
        if issued_s > now_s + skew_s or (_is_valid_time(begins_s) and begins_s > now_s + skew_s):
            raise InvalidToken("not valid yet")
        return float(expires_s)


def _is_valid_time(claim: object) -> TypeGuard[float]:
    return isinstance(claim, int | float) and not isinstance(claim, bool) and abs(claim) < _TIME_MAX_S


class TokenExchange:
    """OAUTHBEARER: one token; after a refusal, the client sends one more message."""

    def __init__(self, tokens: TokenValidator) -> None:
        self._tokens = tokens
        self._refused = ""

    async def process_token(self, token: bytes) -> SaslStep:
        """Process a token.

        After a refusal, the client sends one more message and receives the error again
        (OAuthBearerSaslServer).
        """
        if self._refused and token == _UNDERSTOOD:
            raise AuthenticationFailed(self._refused)
        self._refused = ""
        authorization_id, bearer = _parse_bearer_token(token)
        try:
            identity, key = await self._tokens.validate(bearer)
        except InvalidToken as error:
            self._refused = json.dumps({"status": "invalid_token"}, separators=(",", ":"))
            return SaslStep(self._refused.encode(), refusal=str(error))
        if authorization_id and authorization_id != identity.name:
            raise AuthenticationFailed(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is "
                f"different from the token's principal name ({identity.name})"
            )
        return SaslStep(b"", identity, is_valid=lambda: self._tokens.keys.contains(key))


def _parse_bearer_token(token: bytes) -> tuple[str, str]:
    """Return the authorization id ("" if none) and the bearer token of a client's first message."""
    try:
        first = _CLIENT_FIRST_MESSAGE.fullmatch(token.decode())
    except UnicodeDecodeError:
        first = None
    if first is None:
        raise invalid_credentials(OAUTHBEARER)
    pairs = dict(pair.split("=", 1) for pair in first[2].split("\x01") if pair)
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise invalid_credentials(OAUTHBEARER)
    return first[1] or "", bearer[1]
