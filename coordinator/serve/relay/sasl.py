"""Read mechanism, user and session lifetime from a SASL exchange that the relay forwards.

Only the broker decides whether the exchange succeeds. The user read here is valid only after
`authentication` has verified that the broker accepted the login. If the name is ambiguous, the user is None
and the peer is not routed to the coordinator.

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

# Since this version of SaslHandshake, tokens are sent in SaslAuthenticate requests instead of bare (KIP-152).
_FRAMED_TOKENS_VERSION = 1
_AUTHENTICATE_VERSION_MAX = 2
_AUTHENTICATE_FLEXIBLE_VERSION = 2
_SIZE_BYTES = 4

# The first SCRAM message. A mandatory extension (m=) is rejected. With Kafka's tokenauth=true, the name is
# that of a delegation token.
_SCRAM_FIRST = re.compile(
    r"n,(?:a=(?P<authzid>[^,]+))?,n=(?P<user>(?:[^,=]|=2C|=3D)+),r=[^,]+(?P<rest>(?:,.*)?)"
)
_BEARER_FIRST = re.compile(r"n,(?:a=(?P<authzid>[^,]+))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)*)\x01")
_BEARER = re.compile(r"[Bb]earer +(?P<token>[\w.~+/=-]+)")


class RelayedExchange:
    """Follows the requests and responses of one SASL exchange."""

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
        """Return whether a request with this header belongs to the exchange in a supported version.

        Any other request ends the exchange. A broker accepts ApiVersions before the handshake, one handshake,
        and SaslAuthenticate after it.
        """
        if not self.mechanism:
            return api_key == API_VERSIONS or (
                api_key == SASL_HANDSHAKE and version == _FRAMED_TOKENS_VERSION
            )
        return api_key == SASL_AUTHENTICATE and 0 <= version <= _AUTHENTICATE_VERSION_MAX

    def handle_request(self, frame: bytes) -> None:
        """Process the frame (including its size) of a request that `is_next`. Raises DecodeError."""
        header, at = request_header.decode(frame, _SIZE_BYTES, 1)
        if header.request_api_key == SASL_HANDSHAKE:
            self._wanted = sasl_handshake.decode_request(frame, at, header.request_api_version).mechanism
        elif header.request_api_key == SASL_AUTHENTICATE:
            self._authenticate_version = header.request_api_version
            if self._authenticate_version >= _AUTHENTICATE_FLEXIBLE_VERSION:
                _, at = request_header.decode(frame, _SIZE_BYTES, 2)
            token = sasl_authenticate.decode_request(frame, at, self._authenticate_version).auth_bytes
            self._rounds += 1
            # The broker takes the user from the first message only.
            if self._rounds == 1:
                self.user = parse_user(self.mechanism, token, self._sub_claim)

    def handle_response(self, api_key: int, frame: bytes) -> None:
        """Process the frame (including its size) of the response to the last request. Raises DecodeError."""
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


def parse_user(mechanism: str, token: bytes, sub_claim: str) -> str | None:
    """Return the user in the first message of an exchange, None if there is none or it is ambiguous."""
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
    user = _decode_claims(bearer["token"]).get(sub_claim)
    if not isinstance(user, str) or not user or found["authzid"] not in (None, user):
        return None
    return user


def _decode_claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT, {} for any other text. The broker verifies the signature."""
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
    """Return the pairs as a dict. Raises ValueError for duplicate names: parsers resolve them differently."""
    claims = dict(pairs)
    if len(claims) != len(pairs):
        raise ValueError("duplicate claim")
    return claims
