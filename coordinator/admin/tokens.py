"""Bearer tokens out of a file: who has one, and whether it is good for looking only.

::

    # name      scope   token
    prometheus  read    TOKEN
    alice       write   sha256:DIGEST

What is kept, and compared, are digests: a comparison takes the same time whatever is wrong with a token, and
a dump of memory has no token in it.  A file that cannot be read, or that became wrong, changes nothing.
"""

import hmac
import re
from hashlib import sha256
from typing import NamedTuple

from coordinator.errors import ConfigError
from coordinator.security.reloading_files import ReloadingFiles

SETTING = "http.token.file"

# Shorter ones can be guessed; `openssl rand -base64 32` makes 44 characters.
TOKEN_LENGTH_MIN = 16
# So that a file that is something else is not read whole.
_FILE_BYTES_MAX = 1 << 20

_TOKEN = re.compile(rf"[\x21-\x7e]{{{TOKEN_LENGTH_MIN},}}")
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_SCOPES = ("read", "write")


class Token(NamedTuple):
    """A token that is good: what its owner is called, and whether it may change something."""

    name: str
    may_write: bool
    digest: bytes


class TokenFile(ReloadingFiles):
    """The tokens of a file, which may change. Used on one event loop."""

    def __init__(self, path: str) -> None:
        """Read the file. Raises ConfigError, naming file and line and no token, if it is of no use."""
        super().__init__("tokens", (path,))
        self._path = path
        self._load()

    def _load(self) -> None:
        self._tokens = _read(self._path)

    def find(self, given: str) -> Token | None:
        """Return the token that was given, or None. Takes the same time for all that are wrong."""
        digest = sha256(given.encode("utf-8", "surrogateescape")).digest()
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found


def _read(path: str) -> tuple[Token, ...]:
    try:
        with open(path, "rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1).decode("ascii")
    except OSError as error:
        raise _invalid_token_file(
            path, f"a file that can be read ({(error.strerror or str(error)).lower()})"
        ) from None
    except UnicodeDecodeError:
        raise _invalid_token_file(path, "a file of ASCII characters") from None
    if len(text) > _FILE_BYTES_MAX:
        raise _invalid_token_file(path, f"a file of at most {_FILE_BYTES_MAX} bytes")
    tokens: list[Token] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            tokens.append(_token(path, number, words))
    if not tokens:
        raise _invalid_token_file(path, "a file with a token: a line of NAME, read or write, and TOKEN")
    for wrong, named in (("name", [token.name for token in tokens]), ("token", [t.digest for t in tokens])):
        if len(set(named)) < len(named):
            raise _invalid_token_file(path, f"a file without the same {wrong} twice")
    return tuple(tokens)


def _token(path: str, number: int, words: list[str]) -> Token:
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
