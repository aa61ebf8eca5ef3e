"""User files, and logins by PLAIN and SCRAM as Kafka's clients perform them."""

import os
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import pytest
from scramp import ScramClient

from coordinator.errors import ConfigError
from coordinator.security.passwords import PlainExchange, ScramExchange
from coordinator.security.sasl import AuthenticationFailed, Identity, SaslExchange
from coordinator.security.users import ScramKeys, Users, format_scram_keys, format_user_line
from tests.unit import clock_skipping

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)

SETTING = "listen.sasl.users.file"
BOTH = ("SCRAM-SHA-256", "SCRAM-SHA-512")
INVALID = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
)


@pytest.fixture
def make_users(tmp_path: Path) -> Callable[[str], Users]:
    def make_users(text: str) -> Users:
        file = tmp_path / "users.properties"
        file.write_text(text)
        return Users(str(file), SETTING, BOTH)

    return make_users


def format_derived_keys(password: str, mechanism: str) -> str:
    return format_scram_keys(mechanism, ScramKeys.derive(password, mechanism, b"salt" * 6, 8192))


async def log_in(exchange: SaslExchange, name: str, password: str, mechanism: str) -> Identity | None:
    """Log in by SCRAM as a client that verifies the server; return the identity."""
    client = ScramClient([mechanism], name, password)
    turn = await exchange.process_token(client.get_client_first().encode())
    assert turn.identity is None
    client.set_server_first(turn.response.decode())
    turn = await exchange.process_token(client.get_client_final().encode())
    client.set_server_final(turn.response.decode())
    return turn.identity


@pytest.mark.parametrize("mechanism", BOTH)
@pytest.mark.parametrize("as_keys", [False, True])
async def test_scram_accepts_only_the_correct_password(
    make_users: Callable[[str], Users], mechanism: str, as_keys: bool
) -> None:
    kept = format_derived_keys("alice-secret", mechanism) if as_keys else "alice-secret"
    users = make_users(f"alice={kept}\n")

    identity = await log_in(ScramExchange(mechanism, users), "alice", "alice-secret", mechanism)
    assert identity == Identity("alice")
    assert identity.principal == "User:alice"
    with pytest.raises(AuthenticationFailed):
        await log_in(ScramExchange(mechanism, users), "alice", "wrong", mechanism)


async def test_scram_refuses_unknown_users_like_wrong_passwords(
    make_users: Callable[[str], Users],
) -> None:
    users = make_users(f"alice=alice-secret\nbob={format_derived_keys('b', 'SCRAM-SHA-512')}\n")

    # bob has keys of another mechanism only.
    for name in ("alice", "mallory", "bob"):
        with pytest.raises(AuthenticationFailed) as raised:
            await log_in(ScramExchange("SCRAM-SHA-256", users), name, "wrong", "SCRAM-SHA-256")
        assert str(raised.value) == INVALID
    firsts = []
    for _ in range(2):
        exchange = ScramExchange("SCRAM-SHA-256", users)
        turn = await exchange.process_token(b"n,,n=mallory,r=abc")
        firsts.append(turn.response.decode().split(",")[1:])
    assert firsts[0] == firsts[1]


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff\xfe",
        b"n,,",
        b"n,,n=alice",
        b"n,a=bob,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,n=al=ice,r=abc",
        # Normalizing combining characters takes a time that increases with the square of their number.
        b"n,,n=" + ("\u0301\u0323" * 16_000).encode() + b",r=abc",
        b"n,,n=alice,r=" + b"a" * 65_000,
    ],
)
async def test_scram_refuses_a_malformed_first_message_soon(
    make_users: Callable[[str], Users], first: bytes
) -> None:
    users = make_users("alice=alice-secret\n")

    began_s = time.thread_time()
    with pytest.raises(AuthenticationFailed) as raised:
        await ScramExchange("SCRAM-SHA-256", users).process_token(first)
    assert time.thread_time() - began_s < 0.1
    assert str(raised.value) == INVALID


@pytest.mark.parametrize("mechanism", [BOTH[0], "PLAIN"])
async def test_login_during_a_change_of_the_password_is_not_valid_afterwards(
    make_users: Callable[[str], Users], monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    users = make_users("alice=alice-secret\n")

    def change_password() -> None:
        make_users("alice=another-secret\n")
        assert users.reload_if_changed()

    if mechanism == "PLAIN":
        matches_password = users.matches_password

        def change_password_after_check(name: str, password: str) -> bool:
            matches = matches_password(name, password)
            change_password()
            return matches

        monkeypatch.setattr(users, "matches_password", change_password_after_check)
        step = await PlainExchange(users).process_token(b"\0alice\0alice-secret")
    else:
        exchange, client = ScramExchange(mechanism, users), ScramClient([mechanism], "alice", "alice-secret")
        first = await exchange.process_token(client.get_client_first().encode())
        change_password()
        client.set_server_first(first.response.decode())
        step = await exchange.process_token(client.get_client_final().encode())
    assert step.identity == Identity("alice")
    assert not step.is_valid()


# PLAIN tokens and their errors, None for a successful login. The texts are those of Kafka's PlainSaslServer.
PLAIN_TOKENS = [
    (b"\0alice\0alice-secret", None),
    (b"alice\0alice\0alice-secret", None),
    (b"\0bob\0b", None),
    (b"\0bob\0c", "Authentication failed: Invalid username or password"),
    (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
    (b"\0mallory\0alice-secret", "Authentication failed: Invalid username or password"),
    (
        b"bob\0alice\0alice-secret",
        "Authentication failed: Client requested an authorization id that is different from username",
    ),
    (b"\0\0alice-secret", "Authentication failed: username not specified"),
    (b"\0alice\0", "Authentication failed: password not specified"),
    (b"alice\0alice-secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
    (b"\0a\0b\0c", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
    (b"\xff\0\0", "Authentication failed: username not specified"),
    (b"\0alice\0alice-secret\xff", "Authentication failed: Invalid username or password"),
]


@pytest.mark.parametrize(("token", "refusal"), PLAIN_TOKENS)
async def test_plain_token_is_checked_like_kafka(
    make_users: Callable[[str], Users], token: bytes, refusal: str | None
) -> None:
    users = make_users(f"alice=alice-secret\nbob={format_derived_keys('b', 'SCRAM-SHA-512')}\n")

    if refusal is None:
        turn = await PlainExchange(users).process_token(token)
        assert turn.response == b""
        assert turn.identity is not None
        assert turn.identity.name in ("alice", "bob")
        return
    with pytest.raises(AuthenticationFailed) as raised:
        await PlainExchange(users).process_token(token)
    assert str(raised.value) == refusal


@pytest.mark.parametrize("in_place", [True, False])
def test_new_password_of_equal_length_is_detected(
    make_users: Callable[[str], Users], tmp_path: Path, in_place: bool
) -> None:
    users, file = make_users("alice=one\n"), tmp_path / "users.properties"
    before = file.stat()
    if in_place:
        file.write_text("alice=two\n")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    else:
        # `cp -p` and archives keep the modification time, so both files may have the same.
        fresh = tmp_path / "fresh"
        fresh.write_text("alice=two\n")
        os.utime(fresh, ns=(before.st_atime_ns, before.st_mtime_ns))
        fresh.replace(file)
    assert users.reload_if_changed() is True
    alice = users.find_user("alice")
    assert alice is not None
    assert alice.password == "two"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("alice=\n", "line 1: there is no password"),
        ("alice=one\nalice=two\n", "line 2: alice was already given on line 1"),
        ("a=SCRAM-SHA-256=[salt=x]\n", "line 1: the credential is not SCRAM-SHA-256=["),
        ("a=SCRAM-SHA-1=[salt=x]\n", "line 1: the credential is not SCRAM-SHA-256=["),
        (f"a={format_derived_keys('p', BOTH[0]).replace('8192', '1')}\n", "with 4096 to 16384 iterations"),
        (
            f"a={format_derived_keys('p', BOTH[0]).replace('8192', '99999')}\n",
            "with 4096 to 16384 iterations",
        ),
    ],
)
def test_invalid_users_file_is_refused(make_users: Callable[[str], Users], text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_users(text)
    assert str(raised.value).startswith("listen.sasl.users.file=")
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_users_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="a readable file"):
        Users("/nowhere/users.properties", SETTING, BOTH)


def test_repr_of_a_user_hides_its_secrets(make_users: Callable[[str], Users]) -> None:
    user = make_users("alice=alice-secret\n").find_user("alice")
    assert user is not None
    assert repr(user) == "User()"
    assert repr(user.keys["SCRAM-SHA-256"]) == "ScramKeys(iterations=4096)"


@pytest.mark.parametrize("name", ["alice", "O=org,CN=b 1", "#x", "a:b\\c"])
def test_formatted_user_line_is_read_by_the_users_file(make_users: Callable[[str], Users], name: str) -> None:
    users = make_users(format_user_line(name, "the word", 4096) + "\n")
    user = users.find_user(name)
    assert user is not None
    assert user.password is None
    assert set(user.keys) == set(BOTH)
    assert all(keys.matches_password("the word", mechanism) for mechanism, keys in user.keys.items())


async def read_salt_length_and_iterations(users: Users, name: str, mechanism: str) -> tuple[int, int]:
    """Return the length of the salt and the iterations in the first SCRAM response for a user name."""
    exchange = ScramExchange(mechanism, users)
    client = ScramClient([mechanism], name, "a guess")
    response = (await exchange.process_token(client.get_client_first().encode())).response.decode()
    fields = dict(field.split("=", 1) for field in response.split(","))
    return len(b64decode(fields["s"])), int(fields["i"])


@pytest.mark.parametrize("mechanism", BOTH)
async def test_unknown_user_gets_the_salt_length_and_iterations_of_users(
    make_users: Callable[[str], Users], mechanism: str
) -> None:
    users = make_users(f"alice={format_derived_keys('alice-secret', mechanism)}\n")
    assert await read_salt_length_and_iterations(users, "alice", mechanism) == (24, 8192)
    assert await read_salt_length_and_iterations(users, "nobody", mechanism) == (24, 8192)
    assert await read_salt_length_and_iterations(
        users, "nobody", mechanism
    ) == await read_salt_length_and_iterations(users, "nobody", mechanism)


def test_plain_derives_keys_for_every_name_if_any_user_has_keys(
    make_users: Callable[[str], Users], monkeypatch: pytest.MonkeyPatch
) -> None:
    users = make_users(f"alice={format_derived_keys('alice-secret', 'SCRAM-SHA-256')}\nbob=bob-secret\n")
    derived: list[int] = []
    derive = ScramKeys.derive

    def count_derivation(password: str, mechanism: str, salt: bytes, iterations: int) -> ScramKeys:
        derived.append(iterations)
        return derive(password, mechanism, salt, iterations)

    monkeypatch.setattr(ScramKeys, "derive", count_derivation)
    for name, password, fits in (
        ("alice", "alice-secret", True),
        ("alice", "wrong", False),
        ("bob", "bob-secret", True),
        ("bob", "wrong", False),
        ("nobody", "wrong", False),
    ):
        assert users.matches_password(name, password) is fits
    assert len(derived) == 5
    assert set(derived) <= {4096, 8192}
