"""Forward a peer's SASL authentication to the broker, and read mechanism, user and session lifetime from it.

Only the broker decides whether a login succeeds. A response without an error is no proof: intermediate
responses have no error either, and their number depends on the mechanism. Before a peer is routed to the
coordinator, the relay therefore sends a request on the same connection. If the peer is not authenticated, the
broker answers this request with ILLEGAL_SASL_STATE or closes the connection (Kafka's
SaslServerAuthenticator). If the user name is ambiguous, the user is None and the peer is not routed to the
coordinator.

Sources: RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628 (OAUTHBEARER); Kafka's PlainSaslServer, ScramMessages,
OAuthBearerClientInitialResponse, SaslServerAuthenticator; KIP-152, KIP-368.
"""

import base64
import binascii
import json
import re
from struct import Struct
from typing import Any

from coordinator.serve.relay.frame_reader import SIZE_BYTES, EndOfStream, FrameReader
from coordinator.serve.relay.limits import RequestMemory
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
    """The state of one SASL exchange, read from its requests and responses."""

    def __init__(self, sub_claim: str) -> None:
        """`sub_claim` is the claim that contains the user name (sasl.oauthbearer.sub.claim.name)."""
        self._sub_claim = sub_claim
        self._requested_mechanism = ""
        self._authenticate_version = 0
        self._token_count = 0
        self.mechanism = ""
        self.user: str | None = None
        self.accepted = False
        self.failed = False
        self.session_lifetime_ms = 0

    def belongs_to_exchange(self, api_key: int, version: int) -> bool:
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
        """Process the frame (including its size) of a request of this exchange. Raises DecodeError."""
        header, at = request_header.decode(frame, _SIZE_BYTES, 1)
        if header.request_api_key == SASL_HANDSHAKE:
            self._requested_mechanism = sasl_handshake.decode_request(
                frame, at, header.request_api_version
            ).mechanism
        elif header.request_api_key == SASL_AUTHENTICATE:
            self._authenticate_version = header.request_api_version
            if self._authenticate_version >= _AUTHENTICATE_FLEXIBLE_VERSION:
                _, at = request_header.decode(frame, _SIZE_BYTES, 2)
            token = sasl_authenticate.decode_request(frame, at, self._authenticate_version).auth_bytes
            self._token_count += 1
            # The broker takes the user from the first message only.
            if self._token_count == 1:
                self.user = parse_user(self.mechanism, token, self._sub_claim)

    def handle_response(self, api_key: int, frame: bytes) -> None:
        """Process the frame (including its size) of the response to the last request. Raises DecodeError."""
        if api_key == SASL_HANDSHAKE:
            _, at = response_header.decode(frame, _SIZE_BYTES, 0)
            handshake = sasl_handshake.decode_response(frame, at, _FRAMED_TOKENS_VERSION)
            if handshake.error_code == ErrorCode.NONE:
                self.mechanism = self._requested_mechanism
            self.failed = not self.mechanism
        elif api_key == SASL_AUTHENTICATE:
            flexible = self._authenticate_version >= _AUTHENTICATE_FLEXIBLE_VERSION
            _, at = response_header.decode(frame, _SIZE_BYTES, 1 if flexible else 0)
            answer = sasl_authenticate.decode_response(frame, at, self._authenticate_version)
            self.accepted = answer.error_code == ErrorCode.NONE
            self.failed = not self.accepted
            self.session_lifetime_ms = answer.session_lifetime_ms if self.accepted else 0


def parse_user(mechanism: str, token: bytes, sub_claim: str) -> str | None:
    """Return the user in the first message of an exchange; None if the user is missing or ambiguous."""
    try:
        text = token.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if mechanism == "PLAIN":
        return _parse_plain_user(text)
    if mechanism.startswith("SCRAM-"):
        return _parse_scram_user(text)
    if mechanism == "OAUTHBEARER":
        return _parse_bearer_user(text, sub_claim)
    return None


def _parse_plain_user(text: str) -> str | None:
    parts = text.split("\0")
    if len(parts) != 3:
        return None
    authorization_id, user, _ = parts
    return user if user and authorization_id in ("", user) else None


def _parse_scram_user(text: str) -> str | None:
    found = _SCRAM_FIRST.fullmatch(text)
    if found is None or "tokenauth" in found["rest"]:
        return None
    user = found["user"]
    if found["authzid"] not in (None, user):
        return None
    return user.replace("=2C", ",").replace("=3D", "=")


def _parse_bearer_user(text: str, sub_claim: str) -> str | None:
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
        claims = json.loads(payload, object_pairs_hook=_reject_duplicate_names)
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict. Raises ValueError for duplicate names, which parsers treat differently."""
    claims = dict(pairs)
    if len(claims) != len(pairs):
        raise ValueError("duplicate claim")
    return claims


_DESCRIBE_CLUSTER = 60
# include_cluster_authorized_operations=false, no tags.
_DESCRIBE_CLUSTER_BODY = b"\0\0"
# Identifies the response to the relay's own request.
_CORRELATION_ID = 0x5EA5
# throttle_time_ms, error_code
_ANSWER = Struct(">ih")


class LoginFailed(EndOfStream):
    """The broker refused a login, and its response was sent to the peer."""


async def authenticate(
    peer: FrameReader, broker: FrameReader, exchange: RelayedExchange, request_memory: RequestMemory
) -> None:
    """Forward a SASL exchange until it is complete.

    Only the last response has a session lifetime. Without one, the exchange ends at the first request that
    is not part of it; this request stays in the buffer. Raises EndOfStream if either side closes, and
    LoginFailed after a failed login. Raises OSError, ProtocolError and RefusedConnection.
    """
    while not exchange.session_lifetime_ms:
        head = await peer.peek_head()
        if not exchange.belongs_to_exchange(head.api_key, head.api_version):
            return
        with request_memory.reserve_capacity(head):
            request = await peer.read_frame()
            exchange.handle_request(request)
            await broker.stream.send(request)
            del request
        answer = await broker.read_frame()
        exchange.handle_response(head.api_key, answer)
        await peer.stream.send(answer)
        if exchange.failed:
            # A peer gets one login attempt for each connection. After a failed login, the broker closes the
            # connection, too.
            raise LoginFailed


async def is_authenticated(broker: FrameReader) -> bool:
    """Ask the broker whether it has authenticated this peer. Raises OSError, ProtocolError."""
    try:
        await broker.stream.send(_describe_cluster_request())
        answer = await broker.read_frame()
    except (EndOfStream, ConnectionError):
        return False
    header, at = response_header.decode(answer, SIZE_BYTES, 1)
    if header.correlation_id != _CORRELATION_ID or len(answer) < at + _ANSWER.size:
        return False
    _, error_code = _ANSWER.unpack_from(answer, at)
    return bool(error_code == ErrorCode.NONE)


def _describe_cluster_request() -> bytes:
    """Return a DescribeCluster request, which any authenticated user may send."""
    header = request_header.RequestHeader(_DESCRIBE_CLUSTER, 0, _CORRELATION_ID, "share-coordinator-relay")
    body = request_header.encode(header, 2) + _DESCRIBE_CLUSTER_BODY
    return Struct(">i").pack(len(body)) + body
