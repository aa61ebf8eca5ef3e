"""The user name of a SASL message as Kafka reads it; ambiguous messages have no user name."""

import base64
import json
from base64 import urlsafe_b64encode

import pytest

from coordinator.serve.relay.sasl import RelayedExchange, parse_user
from protocol.errors import DecodeError
from tests.unit.relay.fake_peers import encode_frame, handshake_request, token_request


def make_bearer_token(claims: object, *, authzid: str = "", more: str = "", scheme: str = "Bearer") -> bytes:
    payload = base64.urlsafe_b64encode(
        claims.encode() if isinstance(claims, str) else json.dumps(claims).encode()
    )
    jwt = f"aGVhZGVy.{payload.decode().rstrip('=')}.c2lnbmF0dXJl"
    return f"n,{authzid},\x01auth={scheme} {jwt}\x01{more}\x01".encode()


@pytest.mark.parametrize(
    ("mechanism", "message", "user"),
    [
        ("PLAIN", b"\0kafka\0secret", "kafka"),
        ("PLAIN", b"kafka\0kafka\0secret", "kafka"),
        ("PLAIN", "\0käfka\0secret".encode(), "käfka"),
        ("PLAIN", b"kafka\0eve\0secret", None),
        ("PLAIN", b"\0\0secret", None),
        ("PLAIN", b"\0kafka\0secret\0kafka", None),
        ("PLAIN", b"\0kafka", None),
        ("PLAIN", b"\0kafka\xff\0secret", None),
        ("SCRAM-SHA-512", b"n,,n=kafka,r=nonce", "kafka"),
        ("SCRAM-SHA-256", b"n,a=kafka,n=kafka,r=nonce", "kafka"),
        ("SCRAM-SHA-512", b"n,,n=a=2Cb=3Dc,r=nonce", "a,b=c"),
        ("SCRAM-SHA-512", b"n,a=eve,n=kafka,r=nonce", None),
        ("SCRAM-SHA-512", b"n,,n=kaf=ka,r=nonce", None),
        ("SCRAM-SHA-512", b"n,,m=x,n=kafka,r=nonce", None),
        ("SCRAM-SHA-512", b"y,,n=kafka,r=nonce", None),
        ("SCRAM-SHA-512", b"n,,n=,r=nonce", None),
        ("SCRAM-SHA-512", b"n,,n=kafka", None),
        # For a delegation token, the name is the token id instead of the owner.
        ("SCRAM-SHA-512", b"n,,n=kafka,r=nonce,tokenauth=true", None),
        ("OAUTHBEARER", make_bearer_token({"sub": "kafka", "exp": 1}), "kafka"),
        ("OAUTHBEARER", make_bearer_token({"sub": "kafka"}, authzid="a=kafka"), "kafka"),
        ("OAUTHBEARER", make_bearer_token({"sub": "kafka"}, more="logicalCluster=one\x01"), "kafka"),
        ("OAUTHBEARER", make_bearer_token({"sub": "kafka"}, scheme="bearer"), "kafka"),
        ("OAUTHBEARER", make_bearer_token({"sub": "kafka"}, authzid="a=eve"), None),
        ("OAUTHBEARER", make_bearer_token({"sub": "kafka"}, more="auth=Bearer a.b.c\x01"), None),
        ("OAUTHBEARER", make_bearer_token({"sub": "kafka"}, scheme="Basic"), None),
        ("OAUTHBEARER", make_bearer_token({"sub": 7}), None),
        ("OAUTHBEARER", make_bearer_token({"user": "kafka"}), None),
        ("OAUTHBEARER", make_bearer_token('{"sub":"eve","sub":"kafka"}'), None),
        ("OAUTHBEARER", make_bearer_token(["kafka"]), None),
        ("OAUTHBEARER", make_bearer_token("no json"), None),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer opaque\x01\x01", None),
        ("GSSAPI", b"\0kafka\0secret", None),
        ("", b"", None),
    ],
)
def test_user_is_read_from_the_first_message(mechanism: str, message: bytes, user: str | None) -> None:
    assert parse_user(mechanism, message, "sub") == user


def test_claim_with_the_user_name_is_configurable() -> None:
    assert parse_user("OAUTHBEARER", make_bearer_token({"sub": "7", "client": "kafka"}), "client") == "kafka"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_sasl_exchange_is_followed_in_each_version(version: int) -> None:
    exchange = RelayedExchange("sub")
    exchange.handle_request(handshake_request())
    exchange.handle_response(17, encode_frame(b"\0\0\0\1\0\0\0\0\0\1\0\5PLAIN"))
    assert (exchange.mechanism, exchange.failed) == ("PLAIN", False)
    exchange.handle_request(token_request(b"\0kafka\0secret", version))
    lifetime = b"" if version == 0 else b"\0\0\0\0\0\0\x0b\xb8"
    message, no_bytes = (b"\0", b"\1") if version == 2 else (b"\xff\xff", b"\0\0\0\0")
    tags = b"\0" if version == 2 else b""
    exchange.handle_response(
        36, encode_frame(b"\0\0\0\1" + tags + b"\0\0" + message + no_bytes + lifetime + tags)
    )
    assert (exchange.user, exchange.accepted, exchange.failed) == ("kafka", True, False)
    assert exchange.session_lifetime_ms == (0 if version == 0 else 3000)


def test_only_the_next_request_of_the_exchange_is_accepted() -> None:
    exchange = RelayedExchange("sub")
    before = [(18, 5), (17, 1)]
    assert all(exchange.belongs_to_exchange(*request) for request in before)
    assert not any(exchange.belongs_to_exchange(*request) for request in ((36, 2), (17, 0), (17, 2), (3, 1)))
    exchange.mechanism = "PLAIN"
    assert exchange.belongs_to_exchange(36, 2)
    assert not any(exchange.belongs_to_exchange(*request) for request in (*before, (36, 3), (3, 1)))


@pytest.mark.parametrize(
    "frame", [encode_frame(b"\0\x11\0\1"), encode_frame(b"\0\x11\0\1\0\0\0\0\xff\xff\0\x09PLAIN")]
)
def test_malformed_sasl_request_is_a_decode_error(frame: bytes) -> None:
    with pytest.raises(DecodeError):
        RelayedExchange("sub").handle_request(frame)


def test_deeply_nested_token_has_no_user() -> None:
    claims = urlsafe_b64encode(b'{"sub":' + b"[" * 100_000).rstrip(b"=")
    assert parse_user("OAUTHBEARER", b"n,,\x01auth=Bearer e30." + claims + b".AAAA\x01\x01", "sub") is None
