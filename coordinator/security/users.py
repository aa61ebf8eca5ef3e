"""Load the users that may log in with a password.

Each line of a users file is `name=password`, or a SCRAM credential of Kafka, which does not reveal a strong
password::

    alice=alice-secret
    bob=SCRAM-SHA-256=[salt=...,stored_key=...,server_key=...,iterations=8192]

(Source of the second format: Kafka's `ScramCredentialUtils`; `kafka-configs.sh --describe` prints it.)
"""

import hashlib
import hmac
import re
import secrets  # noqa: TID251
from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from coordinator.config.properties import parse_properties
from coordinator.errors import ConfigError
from coordinator.security.reloading_files import ReloadingFiles
from coordinator.security.sasl import SCRAM_SHA_256, SCRAM_SHA_512

DIGESTS = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
# Kafka's limits: fewer iterations are insecure, and more take too much processor time.
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
_SALT_BYTES = 24

_SCRAM_FORM = re.compile(r"(SCRAM-SHA-(?:256|512))=\[([^\]]*)\](?:,|$)")
_SCRAM_FIELDS = {"salt", "stored_key", "server_key", "iterations"}


class ScramKeys(NamedTuple):
    """A server's SCRAM credential (RFC 5802), which verifies a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def derive(cls, password: str, mechanism: str, salt: bytes, iterations: int) -> Self:
        """Derive the keys from a password, which takes milliseconds. Like Kafka, without SASLprep."""
        digest = DIGESTS[mechanism]
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        stored_key = hashlib.new(digest, client_key).digest()
        return cls(salt, stored_key, hmac.digest(salted, b"Server Key", digest), iterations)

    def matches_password(self, password: str, mechanism: str) -> bool:
        """Return whether a password matches, which takes milliseconds."""
        given = ScramKeys.derive(password, mechanism, self.salt, self.iterations)
        return hmac.compare_digest(given.stored_key, self.stored_key)

    def __repr__(self) -> str:
        """Omit the keys, because the text may be logged."""
        return f"ScramKeys(iterations={self.iterations})"


class User(NamedTuple):
    """A user's password, or None if only keys are known, and the keys by SCRAM mechanism."""

    password: str | None
    keys: dict[str, ScramKeys]

    def __repr__(self) -> str:
        """Omit password and keys, because the text may be logged."""
        return "User()"


class Users(ReloadingFiles):
    """The users in a file, which is reloaded when it changes."""

    def __init__(self, file: str, setting: str, mechanisms: Iterable[str]) -> None:
        """Read the file and derive the keys of the SCRAM mechanisms. Raises ConfigError."""
        super().__init__("users", (file,))
        self._file = file
        self._setting = setting
        self._mechanisms = [mechanism for mechanism in mechanisms if mechanism in DIGESTS]
        self._decoy_secret = secrets.token_bytes(_SALT_BYTES)
        self._load()

    def find_user(self, name: str) -> User | None:
        return self._users.get(name)

    def has_same_credentials(self, name: str, user: User | None) -> bool:
        """Return whether the user with this name still has the password or keys of `user`."""
        now = self.find_user(name)
        if now is None or user is None or now.password is None or user.password is None:
            return now == user
        return _equal_in_constant_time(now.password, user.password)

    def decoy_keys(self, name: str, mechanism: str) -> ScramKeys:
        """Return keys that match no password; an unknown name always gets the same keys.

        Salt length and iterations are those of users in the file, so that the response does not reveal that
        the user is unknown.
        """
        parameters = self._parameters.get(mechanism) or [(_SALT_BYTES, ITERATIONS_MIN)]
        digest = hmac.digest(self._decoy_secret, f"{mechanism} {name}".encode(), "sha512")
        # Salt lengths and iterations have the same distribution as those of the users.
        salt_bytes, iterations = parameters[int.from_bytes(digest[-4:], "big") % len(parameters)]
        salt = (digest * (1 + salt_bytes // len(digest)))[:salt_bytes]
        size = hashlib.new(DIGESTS[mechanism]).digest_size
        return ScramKeys(salt, secrets.token_bytes(size), secrets.token_bytes(size), iterations)

    def matches_password(self, name: str, password: str) -> bool:
        """Return whether the password of a user matches, which takes milliseconds.

        If any user has keys and no password, keys are derived for every name. The response time therefore
        does not reveal which names exist.
        """
        user = self.find_user(name)
        if not self._has_keys_only:
            return user is not None and _equal_in_constant_time(user.password or "", password)
        found = next(iter(user.keys.items()), None) if user is not None and user.password is None else None
        mechanism = found[0] if found is not None else self._work_mechanism
        keys = found[1] if found is not None else self.decoy_keys(name, mechanism)
        derived_fits = keys.matches_password(password, mechanism)
        if user is None or user.password is None:
            return derived_fits and user is not None
        return _equal_in_constant_time(user.password, password)

    def _load(self) -> None:
        try:
            entries = parse_properties(Path(self._file).read_text("utf-8-sig"))
            users = {entry.name: self._parse_user(entry.value, entry.line) for entry in entries}
        except OSError as error:
            raise ConfigError(self._setting, self._file, f"a readable file ({error.strerror})") from None
        except ValueError as error:
            raise ConfigError(self._setting, self._file, f"a file of lines name=password ({error})") from None
        self._users = users
        self._parameters = {
            mechanism: [
                (len(keys.salt), keys.iterations)
                for user in users.values()
                if (keys := user.keys.get(mechanism)) is not None
            ]
            for mechanism in DIGESTS
        }
        keys_only = [user for user in users.values() if user.password is None]
        self._has_keys_only = bool(keys_only)
        self._work_mechanism = next(iter(keys_only[0].keys)) if keys_only else SCRAM_SHA_256

    def _parse_user(self, text: str, line: int) -> User:
        """Parse the text after a name. Raises ValueError with a message that contains no part of the text."""
        if not text:
            raise ValueError(f"line {line}: there is no password")
        if text.startswith("SCRAM-SHA-"):
            try:
                return User(None, _parse_scram_keys(text))
            except ValueError:
                form = "SCRAM-SHA-256=[salt=...,stored_key=...,server_key=...,iterations=...]"
                raise ValueError(
                    f"line {line}: the credential is not {form} with {ITERATIONS_MIN} "
                    f"to {ITERATIONS_MAX} iterations"
                ) from None
        keys = {
            mechanism: ScramKeys.derive(text, mechanism, secrets.token_bytes(_SALT_BYTES), ITERATIONS_MIN)
            for mechanism in self._mechanisms
        }
        return User(text, keys)


def _equal_in_constant_time(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def format_scram_keys(mechanism: str, keys: ScramKeys) -> str:
    """Return keys in the format of a users file."""
    salt, stored_key, server_key = (b64encode(part).decode() for part in keys[:3])
    return (
        f"{mechanism}=[salt={salt},stored_key={stored_key},server_key={server_key},"
        f"iterations={keys.iterations}]"
    )


def format_user_line(name: str, password: str, iterations: int) -> str:
    """Return a line of a users file that verifies a password without containing it."""
    forms = ",".join(
        format_scram_keys(
            mechanism,
            ScramKeys.derive(password, mechanism, secrets.token_bytes(_SALT_BYTES), iterations),
        )
        for mechanism in DIGESTS
    )
    escaped = "".join("\\" + char if char in " :=#!\\" else char for char in name)
    return f"{escaped}={forms}"


def _parse_scram_keys(text: str) -> dict[str, ScramKeys]:
    found: dict[str, ScramKeys] = {}
    at = 0
    while at < len(text):
        form = _SCRAM_FORM.match(text, at)
        if form is None:
            raise ValueError
        at = form.end()
        fields = dict(field.split("=", 1) for field in form[2].split(","))
        if set(fields) != _SCRAM_FIELDS:
            raise ValueError
        salt, stored_key, server_key = (
            b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key")
        )
        keys = ScramKeys(salt, stored_key, server_key, int(fields["iterations"]))
        size = hashlib.new(DIGESTS[form[1]]).digest_size
        if not (
            len(keys.salt) >= 12
            and len(keys.stored_key) == len(keys.server_key) == size
            and ITERATIONS_MIN <= keys.iterations <= ITERATIONS_MAX
        ):
            raise ValueError
        found[form[1]] = keys
    return found
