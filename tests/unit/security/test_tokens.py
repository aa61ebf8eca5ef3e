"""OAUTHBEARER tokens: validation, refusals as in Kafka, and key sets from files and URLs."""

import asyncio
import json
import ssl
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jwt
import pytest

from coordinator.errors import ConfigError
from coordinator.security import jwks
from coordinator.security.jwks import UrlKeySource, open_key_source
from coordinator.security.sasl import AuthenticationFailed, Identity
from coordinator.security.tokens import InvalidToken, TokenExchange, TokenRules, TokenValidator
from tests.certificates import CertificateAuthority
from tests.manual_clock import ManualClock
from tests.unit import clock_skipping
from tests.unit.coroutine_tests import wait_until
from tests.unit.security.token_issuer import NOW_S, TokenIssuer

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)

SETTING = "listen.sasl.oauthbearer.jwks.endpoint.url"
ISSUER = TokenIssuer()


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    return ISSUER.write_keys(tmp_path / "keys.json")


def make_validator(
    location: str, rules: TokenRules | None = None, now_s: float = NOW_S + 1
) -> TokenValidator:
    return TokenValidator(
        open_key_source(location, SETTING, 3600), rules or TokenRules(), ManualClock(round(now_s * 1000))
    )


def first_message(token: str, authorization_id: str = "") -> bytes:
    authorization = f"a={authorization_id}" if authorization_id else ""
    return f"n,{authorization},\x01auth=Bearer {token}\x01\x01".encode()


async def test_valid_token_gives_subject_and_expiry(key_file: str) -> None:
    turn = await TokenExchange(make_validator(key_file)).process_token(first_message(ISSUER.token()))
    assert turn.response == b""
    assert turn.identity == Identity("alice", (NOW_S + 3600) * 1000)
    # The token may omit the id of its key.
    identity, _ = await make_validator(key_file).validate(ISSUER.token(key_id=None))
    assert identity.principal == "User:alice"


# JSON that is nested too deeply for the parser.
DEEP = urlsafe_b64encode(b"[" * 100_000).rstrip(b"=").decode()
RULES = TokenRules(audiences=("kafka", "other"), issuer="https://issuer")


@pytest.mark.parametrize(
    ("token", "rules", "reason"),
    [
        (ISSUER.token(exp=NOW_S - 30), None, "expired"),
        (ISSUER.token(iat=NOW_S + 60), None, "not valid yet"),
        (ISSUER.token(nbf=NOW_S + 60), None, "not valid yet"),
        (ISSUER.token(exp=None), None, "without times for exp and iat"),
        (ISSUER.token(iat=None), None, "without times for exp and iat"),
        (ISSUER.token(exp=1e300), None, "without times for exp and iat"),
        (ISSUER.token(exp=10**400), None, "without times for exp and iat"),
        (ISSUER.token(iat=-1e300), None, "without times for exp and iat"),
        (DEEP + ".e30.AAAA", None, "no token"),
        (ISSUER.token(subject=None), None, "without sub"),
        (ISSUER.token(subject=" "), None, "without sub"),
        (ISSUER.token(), TokenRules(subject_claim="azp"), "without azp"),
        (ISSUER.token(iss="https://issuer"), RULES, 'missing the "aud" claim'),
        (ISSUER.token(iss="https://issuer", aud="else"), RULES, "Audience doesn't match"),
        (ISSUER.token(aud="kafka"), RULES, 'missing the "iss" claim'),
        (ISSUER.token(aud="kafka", iss="https://else"), RULES, "Invalid issuer"),
        (TokenIssuer().token(), None, "Signature verification failed"),
        (ISSUER.token(key_id="other"), None, "not in the set"),
        (jwt.encode({"sub": "a"}, "x" * 32, algorithm="HS256"), None, "signed with HS256"),
        (jwt.encode({"sub": "a"}, "", algorithm="none"), None, "signed with none"),
        ("no.token", None, "no token"),
    ],
)
async def test_invalid_token_is_refused(
    key_file: str, token: str, rules: TokenRules | None, reason: str
) -> None:
    with pytest.raises(InvalidToken, match=reason):
        await make_validator(key_file, rules).validate(token)


async def test_audience_issuer_and_subject_claim_are_checked(key_file: str) -> None:
    token = ISSUER.token(aud=["else", "kafka"], iss="https://issuer", azp="client-7")
    identity, _ = await make_validator(key_file, RULES._replace(subject_claim="azp")).validate(token)
    assert identity.name == "client-7"
    # A clock difference of up to 30 s is allowed.
    assert await make_validator(key_file, now_s=NOW_S - 29).validate(ISSUER.token())
    assert await make_validator(key_file, now_s=NOW_S + 3629).validate(ISSUER.token())


async def test_invalid_token_response_is_that_of_kafka(key_file: str) -> None:
    exchange = TokenExchange(make_validator(key_file))
    turn = await exchange.process_token(first_message(ISSUER.token(exp=NOW_S - 60)))
    assert turn.identity is None
    assert json.loads(turn.response) == {"status": "invalid_token"}
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        await exchange.process_token(b"\x01")


@pytest.mark.parametrize(
    "message",
    [b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Basic abc\x01\x01", b"n,,auth=Bearer abc", b"\xff"],
)
async def test_malformed_first_message_is_refused(key_file: str, message: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="invalid credentials with SASL mechanism OAUTHBEARER"):
        await TokenExchange(make_validator(key_file)).process_token(message)


async def test_authorization_id_must_equal_the_principal(key_file: str) -> None:
    exchange = TokenExchange(make_validator(key_file))
    assert (await exchange.process_token(first_message(ISSUER.token(), "alice"))).identity is not None
    with pytest.raises(AuthenticationFailed, match="different from the token's principal name"):
        await exchange.process_token(first_message(ISSUER.token(), "bob"))


@pytest.mark.parametrize("key_id", ["", None], ids=["named", "unnamed"])
@pytest.mark.parametrize("other", [TokenIssuer(), TokenIssuer("key-2")], ids=["replaced", "removed"])
async def test_login_ends_when_the_key_of_its_token_is_removed(
    tmp_path: Path, key_id: str | None, other: TokenIssuer
) -> None:
    """The login ends also if the token does not name its key, or if another key has the same id."""
    issuer = TokenIssuer()
    file = tmp_path / "keys.json"
    issuer.write_keys(file)
    validator = make_validator(str(file))

    login = await TokenExchange(validator).process_token(first_message(issuer.token(key_id=key_id)))
    assert isinstance(validator.keys, jwks.FileKeySource)
    both = [key for one in (other, issuer) for key in json.loads(one.keys)["keys"]]
    file.write_text(json.dumps({"keys": both}))
    assert validator.keys.reload_if_changed()
    assert login.is_valid()
    other.write_keys(file)
    assert validator.keys.reload_if_changed()
    assert not login.is_valid()


def test_key_that_cannot_be_used_does_not_affect_other_keys() -> None:
    known = json.loads(ISSUER.keys)
    known["keys"].insert(0, known["keys"][0] | {"alg": ["RS256"]})
    assert len(jwks.parse_keys(json.dumps(known).encode())) == 1


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        '{"keys": []}',
        '{"keys": [{"kty": "oct", "k": "AAAA", "alg": "HS256"}]}',
        ISSUER.keys.replace("sig", "enc"),
        ISSUER.keys.replace('"use"', '"alg": ["RS256"], "use"'),
        "[" * 100_000,
        ISSUER.keys + " " * jwks.KEY_SET_BYTES_MAX,
    ],
)
def test_key_file_without_signature_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        open_key_source(str(file), SETTING, 3600)
    assert str(raised.value).startswith(
        f"{SETTING}={file} cannot be used: it must be a JSON Web Key Set: it "
    )


class KeyServer(ThreadingHTTPServer):
    """An HTTP server of a key set. Without a key set, it responds with 503. `asked` counts the requests."""

    keys: str | None = None
    asked = 0


class _KeyHandler(BaseHTTPRequestHandler):
    server: KeyServer

    def do_GET(self) -> None:
        self.server.asked += 1
        body = (self.server.keys or "").encode()
        self.send_response(200 if body else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Suppress the request log."""


@contextmanager
def key_server(certificate: Path | None = None) -> Iterator[tuple[KeyServer, str]]:
    """Run a key server, over TLS if a certificate is given; yield the server and its URL."""
    with KeyServer(("127.0.0.1", 0), _KeyHandler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            scheme = "http" if certificate is None else "https"
            yield server, f"{scheme}://127.0.0.1:{server.server_address[1]}/keys"
        finally:
            server.shutdown()
            thread.join()


async def test_unknown_key_is_fetched_at_most_once_per_retry_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr(jwks, "seconds_since_boot", lambda: now_s)

    with key_server() as (server, url):
        keys = open_key_source(url, SETTING, 3600)
        assert isinstance(keys, UrlKeySource)
        # The first request fails. The request is not repeated before the retry interval has passed.
        assert await keys.find_keys("key-1") == []
        server.keys = ISSUER.keys
        assert await keys.find_keys("key-1") == []
        assert server.asked == 1
        now_s += jwks.RETRY_INTERVAL_S
        assert len(await keys.find_keys("key-1")) == 1
        # The server has a new key.
        server.keys = TokenIssuer("key-2").keys
        assert await keys.find_keys("key-2") == []
        now_s += jwks.RETRY_INTERVAL_S
        assert len(await keys.find_keys("key-2")) == 1
        # The last keys stay in use while the server fails.
        server.keys = None
        now_s += jwks.RETRY_INTERVAL_S
        assert await keys.find_keys("key-3") == []
        assert len(await keys.find_keys("key-2")) == 1
        assert server.asked == 4


async def test_login_ends_when_its_key_is_removed_from_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "RETRY_INTERVAL_S", 0.01)

    with key_server() as (server, url):
        server.keys = ISSUER.keys
        validator = make_validator(url)
        assert isinstance(validator.keys, UrlKeySource)
        validator.keys._refresh_s = 0.02
        watch = asyncio.create_task(validator.keys.watch(0.01))
        login = await TokenExchange(validator).process_token(first_message(ISSUER.token()))
        server.asked = 0
        await wait_until(lambda: server.asked > 2)
        assert login.is_valid()
        server.keys = TokenIssuer("key-2").keys
        await wait_until(lambda: not login.is_valid())
        watch.cancel()


async def test_key_server_must_have_a_certificate_of_the_given_authority(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, other = CertificateAuthority(tmp_path / "ours"), CertificateAuthority(tmp_path / "other")

    with key_server(authority.issue_certificate("keys").combined_file) as (server, url):
        server.keys = ISSUER.keys
        trusting = open_key_source(url, SETTING, 3600, ca_file=str(authority.certificate))
        assert len(await trusting.find_keys("key-1")) == 1
        for ca_file in ("", str(other.certificate)):
            assert await open_key_source(url, SETTING, 3600, ca_file=ca_file).find_keys("key-1") == []
        assert server.asked == 1
    refusals = [record for record in caplog.records if "The previous keys stay in use" in record.message]
    assert len(refusals) == 2
    assert all("CERTIFICATE_VERIFY_FAILED" in record.reason for record in refusals)  # type: ignore[attr-defined]


async def test_key_server_certificate_must_match_the_host_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = CertificateAuthority(tmp_path)

    with key_server(authority.issue_certificate("else", hosts=("else.example",)).combined_file) as (
        server,
        url,
    ):
        server.keys = ISSUER.keys
        trusting = open_key_source(url, SETTING, 3600, ca_file=str(authority.certificate))
        assert await trusting.find_keys("key-1") == []
        assert server.asked == 0
    (refusal,) = [record for record in caplog.records if "The previous keys stay in use" in record.message]
    assert "certificate is not valid for" in refusal.reason  # type: ignore[attr-defined]


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
def test_invalid_key_server_url_is_refused(scheme: str) -> None:
    with pytest.raises(ConfigError, match="an http or https URL, or a file"):
        open_key_source(f"{scheme}://keys.example:99999/", SETTING, 3600)


def test_unreadable_key_server_authority_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        open_key_source("https://keys.example/", SETTING, 3600, ca_file="/nowhere")
    assert str(raised.value).startswith(
        "listen.sasl.oauthbearer.jwks.endpoint.ca.location=/nowhere cannot be used: it must be a PEM file"
    )
