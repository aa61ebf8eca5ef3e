"""What somebody in the middle can read of a SASL exchange: mechanism, user, and how long it is good for.

The broker alone decides whether the exchange is right. What is read here is worth something only after the
broker has proved that it took it (see `authentication`). A name that cannot be read with certainty is none:
whoever sent it is not led to the coordinator.

Sources: RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628 (OAUTHBEARER); Kafka's PlainSaslServer, ScramMessages,
OAuthBearerClientInitialResponse, SaslServerAuthenticator; KIP-152, KIP-368.
"""

import base64
import binascii
import json
import re
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages import request_header, response_header, sasl_authenticate, sasl_handshake

API_VERSIONS = 18
SASL_HANDSHAKE = sasl_handshake.API_KEY
SASL_AUTHENTICATE = sasl_authenticate.API_KEY

# The first version after which tokens travel in frames of SaslAuthenticate; before, they were bare (KIP-152).
_FRAMED_TOKENS_VERSION = 1
_AUTHENTICATE_VERSION_MAX = 2
_AUTHENTICATE_FLEXIBLE_VERSION = 2
_SIZE_BYTES = 4

# The first message of SCRAM. An extension in front (m=) is of no known meaning, and Kafka's tokenauth=true
# makes the name that of a delegation token.
_SCRAM_FIRST = re.compile(
    r"n,(?:a=(?P<authzid>[^,]+))?,n=(?P<user>(?:[^,=]|=2C|=3D)+),r=[^,]+(?P<rest>(?:,.*)?)"
)
_BEARER_FIRST = re.compile(r"n,(?:a=(?P<authzid>[^,]+))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)*)\x01")
_BEARER = re.compile(r"[Bb]earer +(?P<token>[\w.~+/=-]+)")


class Exchange:
    """Follows one SASL exchange: the requests of the peer, and the broker's answers, each in its turn."""

    def __init__(self, sub_claim: str) -> None:
        """`sub_claim` is the claim of a token that holds the name (sasl.oauthbearer.sub.claim.name)."""
        self._sub_claim = sub_claim
        self._wanted = ""
        self._authenticate_version = 0
        self._rounds = 0
        self.mechanism = ""
        self.user: str | None = None
        self.accepted = False
        self.failed = False
        self.session_lifetime_ms = 0

    def is_next(self, api_key: int, version: int) -> bool:
        """Tell whether a request with this header is the next of the exchange, and one that can be followed.

        The one that is not ends the exchange, whatever it is. A broker takes ApiVersions before the
        handshake, one handshake, and SaslAuthenticate after it.
        """
        if not self.mechanism:
            return api_key == API_VERSIONS or (
                api_key == SASL_HANDSHAKE and version == _FRAMED_TOKENS_VERSION
            )
        return api_key == SASL_AUTHENTICATE and 0 <= version <= _AUTHENTICATE_VERSION_MAX

    def handle_request(self, frame: bytes) -> None:
        """Take the frame (with its size) of a request that `is_next`. Raises DecodeError."""
        header, at = request_header.decode(frame, _SIZE_BYTES, 1)
        if header.request_api_key == SASL_HANDSHAKE:
            self._wanted = sasl_handshake.decode_request(frame, at, header.request_api_version).mechanism
        elif header.request_api_key == SASL_AUTHENTICATE:
            self._authenticate_version = header.request_api_version
            if self._authenticate_version >= _AUTHENTICATE_FLEXIBLE_VERSION:
                _, at = request_header.decode(frame, _SIZE_BYTES, 2)
            token = sasl_authenticate.decode_request(frame, at, self._authenticate_version).auth_bytes
            self._rounds += 1
            # Only the first message counts: whatever is said after it, the broker goes by that one.
            if self._rounds == 1:
                self.user = user_of(self.mechanism, token, self._sub_claim)

    def handle_response(self, api_key: int, frame: bytes) -> None:
        """Take the frame (with its size) of the answer to the last request. Raises DecodeError."""
        if api_key == SASL_HANDSHAKE:
            _, at = response_header.decode(frame, _SIZE_BYTES, 0)
            handshake = sasl_handshake.decode_response(frame, at, _FRAMED_TOKENS_VERSION)
            if handshake.error_code == ErrorCode.NONE:
                self.mechanism = self._wanted
            self.failed = not self.mechanism
        elif api_key == SASL_AUTHENTICATE:
            flexible = self._authenticate_version >= _AUTHENTICATE_FLEXIBLE_VERSION
            _, at = response_header.decode(frame, _SIZE_BYTES, 1 if flexible else 0)
            answer = sasl_authenticate.decode_response(frame, at, self._authenticate_version)
            self.accepted = answer.error_code == ErrorCode.NONE
            self.failed = not self.accepted
            self.session_lifetime_ms = answer.session_lifetime_ms if self.accepted else 0


def user_of(mechanism: str, token: bytes, sub_claim: str) -> str | None:
    """Return the name that the first message of an exchange gives, None if it gives none for certain."""
    try:
        text = token.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if mechanism == "PLAIN":
        return _plain_user(text)
    if mechanism.startswith("SCRAM-"):
        return _scram_user(text)
    if mechanism == "OAUTHBEARER":
        return _bearer_user(text, sub_claim)
    return None


def _plain_user(text: str) -> str | None:
    parts = text.split("\0")
    if len(parts) != 3:
        return None
    authorization_id, user, _ = parts
    return user if user and authorization_id in ("", user) else None


def _scram_user(text: str) -> str | None:
    found = _SCRAM_FIRST.fullmatch(text)
    if found is None or "tokenauth" in found["rest"]:
        return None
    user = found["user"]
    if found["authzid"] not in (None, user):
        return None
    return user.replace("=2C", ",").replace("=3D", "=")


def _bearer_user(text: str, sub_claim: str) -> str | None:
    found = _BEARER_FIRST.fullmatch(text)
    if found is None:
        return None
    pairs = [pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair]
    bearers = [value for name, value in pairs if name.lower() == "auth"]
    if len(bearers) != 1 or (bearer := _BEARER.fullmatch(bearers[0])) is None:
        return None
    user = _claims(bearer["token"]).get(sub_claim)
    if not isinstance(user, str) or not user or found["authzid"] not in (None, user):
        return None
    return user


def _claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT, whose signature is the broker's to check; none if it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = json.loads(payload, object_pairs_hook=_reject_duplicates)
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse what two readers may read differently."""
    claims = dict(pairs)
    if len(claims) != len(pairs):
        raise ValueError("a claim is there twice")
    return claims
