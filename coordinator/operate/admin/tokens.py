"""Load bearer tokens and their scopes from a file.

::

    # name      scope   token
    prometheus  read    TOKEN
    alice       write   sha256:DIGEST

The process keeps and compares only digests of tokens. A comparison therefore takes the same time for every
wrong token, and a memory dump contains no token. If the new file is invalid, the previous tokens stay in use.
"""

import hmac
import re
from hashlib import sha256
from typing import NamedTuple

from coordinator.errors import ConfigError
from coordinator.security.reloading_files import ReloadingFiles

SETTING = "http.token.file"

# Shorter tokens can be guessed; `openssl rand -base64 32` prints 44 characters.
TOKEN_LENGTH_MIN = 16
# Maximum size of the file, so that a wrong path does not load a large file.
_FILE_BYTES_MAX = 1 << 20

_TOKEN = re.compile(rf"[\x21-\x7e]{{{TOKEN_LENGTH_MIN},}}")
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_SCOPES = ("read", "write")


class Token(NamedTuple):
    """A valid token: its name, and whether it may write."""

    name: str
    may_write: bool
    digest: bytes


class TokenFile(ReloadingFiles):
    """The tokens in a file, which is reloaded when it changes. Call all methods on one event loop."""

    def __init__(self, path: str) -> None:
        """Read the file. Raises ConfigError with file and line, but without any token."""
        super().__init__("tokens", (path,))
        self._path = path
        self._load()

    def _load(self) -> None:
        self._tokens = _read_tokens(self._path)

    def find_token(self, given: str) -> Token | None:
        """Return the token, or None; takes the same time for every wrong token."""
        digest = sha256(given.encode("utf-8", "surrogateescape")).digest()
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found


def _read_tokens(path: str) -> tuple[Token, ...]:
    try:
        with open(path, "rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1).decode("ascii")
    except OSError as error:
        raise _invalid_token_file(
            path, f"a readable file ({(error.strerror or str(error)).lower()})"
        ) from None
    except UnicodeDecodeError:
        raise _invalid_token_file(path, "a file of ASCII characters") from None
    if len(text) > _FILE_BYTES_MAX:
        raise _invalid_token_file(path, f"a file of at most {_FILE_BYTES_MAX} bytes")
    tokens: list[Token] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            tokens.append(_parse_token(path, number, words))
    if not tokens:
        raise _invalid_token_file(path, "a file with a token: a line of NAME, read or write, and TOKEN")
    for wrong, named in (("name", [token.name for token in tokens]), ("token", [t.digest for t in tokens])):
        if len(set(named)) < len(named):
            raise _invalid_token_file(path, f"a file without the same {wrong} twice")
    return tuple(tokens)


def _parse_token(path: str, number: int, words: list[str]) -> Token:
    if len(words) != 3 or words[1] not in _SCOPES:
        raise _invalid_token_file(
            path, f"a file of lines of NAME, read or write, and TOKEN; line {number} is none"
        )
    name, scope, token = words
    digest = _DIGEST.fullmatch(token)
    if digest is not None:
        return Token(name, scope == "write", bytes.fromhex(digest[1]))
    if _TOKEN.fullmatch(token) is None or token.startswith("sha256:"):
        raise _invalid_token_file(
            path,
            f"a file of tokens of at least {TOKEN_LENGTH_MIN} characters, or of sha256: and 64 digits; that "
            f"of line {number} is neither",
        )
    return Token(name, scope == "write", sha256(token.encode()).digest())


def _invalid_token_file(path: str, wanted: str) -> ConfigError:
    return ConfigError(SETTING, path, wanted)
