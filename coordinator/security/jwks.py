"""Load the public keys that verify tokens: a JSON Web Key Set (RFC 7517) from a file or a URL.

A file is reloaded when it changes.  A URL is fetched periodically, and once more if a token has an unknown
key id.  If a fetch fails, the last valid set stays in use.
"""

import asyncio
import json
import logging
import ssl
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

import jwt

from coordinator.client.tls import client_context
from coordinator.errors import ConfigError
from coordinator.process.clock import seconds_since_boot
from coordinator.security.reloading_files import ReloadingFiles

_logger = logging.getLogger(__name__)

KEY_SET_BYTES_MAX = 1 << 20
FETCH_TIMEOUT_S = 10.0
# Clients choose the key ids of their tokens, so unknown ids cause at most one fetch in this time.
RETRY_INTERVAL_S = 10.0


class KeySet:
    """Keys by key id. Only asymmetric keys are accepted, so that a verifier cannot sign tokens."""

    def __init__(self, keys: list[jwt.PyJWK]) -> None:
        self._keys = keys

    @classmethod
    def parse(cls, text: bytes) -> "KeySet":
        """Parse a key set; keys of other types and uses are ignored. Raises ValueError with a message."""
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
            raise ValueError('it has no list "keys"')
        keys = [key for entry in found["keys"] if (key := _parse_key(entry)) is not None]
        if not keys:
            raise ValueError("it has no key for signatures")
        return cls(keys)

    def find_keys(self, key_id: str | None) -> list[jwt.PyJWK]:
        """Return the keys with a key id; for None, return all keys."""
        return [key for key in self._keys if key_id is None or key.key_id == key_id]


class KeySource(Protocol):
    """Source of verification keys."""

    async def find_keys(self, key_id: str | None) -> list[jwt.PyJWK]:
        """Return the keys with a key id; for None, return all keys."""
        ...

    def has(self, key_id: str | None) -> bool:
        """Return whether the current set has a key with this id."""
        ...

    async def watch(self, interval_s: float) -> None:
        """Refresh the set periodically until cancelled."""
        ...


class FileKeySource(ReloadingFiles):
    """The keys in a file."""

    def __init__(self, file: str, setting: str) -> None:
        """Read the file. Raises ConfigError."""
        super().__init__("keys for tokens", (file,))
        self._file = file
        self._setting = setting
        self._load()

    async def find_keys(self, key_id: str | None) -> list[jwt.PyJWK]:
        """Return the keys with a key id; for None, return all keys."""
        return self._set.find_keys(key_id)

    def has(self, key_id: str | None) -> bool:
        """Return whether the current set has a key with this id."""
        return bool(self._set.find_keys(key_id))

    def _load(self) -> None:
        try:
            with open(self._file, "rb") as file:
                self._set = KeySet.parse(file.read(KEY_SET_BYTES_MAX))
        except OSError as error:
            raise ConfigError(self._setting, self._file, f"a readable file ({error.strerror})") from None
        except ValueError as error:
            raise ConfigError(self._setting, self._file, f"a JSON Web Key Set: {error}") from None


class UrlKeySource:
    """The keys at a URL; empty until the first successful fetch."""

    def __init__(self, url: str, refresh_s: float, tls: Callable[[], ssl.SSLContext]) -> None:
        self._url = url
        self._tls = tls
        self._refresh_s = refresh_s
        self._set = KeySet([])
        self._fetched_s = -RETRY_INTERVAL_S
        self._refresh_task: asyncio.Task[None] | None = None

    async def find_keys(self, key_id: str | None) -> list[jwt.PyJWK]:
        """Return the keys with a key id, or all for None. If none match, fetch the URL, with a rate limit."""
        found = self._set.find_keys(key_id)
        if not found and (self._refresh_task is not None or self._age_s() >= RETRY_INTERVAL_S):
            await self._refresh()
            found = self._set.find_keys(key_id)
        return found

    def has(self, key_id: str | None) -> bool:
        """Return whether the current set has a key with this id."""
        return bool(self._set.find_keys(key_id))

    async def watch(self, interval_s: float) -> None:
        """Fetch now and then periodically until cancelled; after a failure, fetch sooner."""
        while True:
            if not self._set.find_keys(None) or self._age_s() >= self._refresh_s:
                await self._refresh()
            await asyncio.sleep(min(max(interval_s, RETRY_INTERVAL_S), self._refresh_s))

    def _age_s(self) -> float:
        return seconds_since_boot() - self._fetched_s

    async def _refresh(self) -> None:
        """Fetch the URL; concurrent callers wait for the same response."""
        if self._refresh_task is None:
            self._refresh_task = asyncio.create_task(self._fetch_keys(), name="fetching keys for tokens")
            self._refresh_task.add_done_callback(self._on_refreshed)
        await asyncio.wait({self._refresh_task})

    def _on_refreshed(self, asking: "asyncio.Task[None]") -> None:
        self._refresh_task = None

    async def _fetch_keys(self) -> None:
        self._fetched_s = seconds_since_boot()
        try:
            self._set = KeySet.parse(await asyncio.to_thread(_http_get, self._url, self._tls()))
        except (OSError, ValueError, ConfigError) as error:
            _logger.error(
                "The keys for tokens could not be fetched. The previous keys stay in use.",
                extra={"url": self._url, "reason": str(error)},
            )


def open_key_source(location: str, setting: str, refresh_s: float, *, ca_file: str = "") -> KeySource:
    """Return the key source of a location: http(s)://..., file://..., or a path. Raises ConfigError.

    `ca_file` has the trusted authorities for an https location; without it, the system's are used. It is read
    at each fetch.
    """
    parts = urlsplit(location)
    if parts.scheme in ("http", "https"):
        tls = partial(
            client_context,
            ca=ca_file,
            certificate="",
            key="",
            key_password="",
            check_hostname=True,
            prefix=setting.removesuffix("url"),
        )
        tls()
        return UrlKeySource(location, refresh_s, tls)
    return FileKeySource(url2pathname(parts.path) if parts.scheme == "file" else location, setting)


def _http_get(url: str, context: ssl.SSLContext) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=FETCH_TIMEOUT_S, context=context) as response:
        body: bytes = response.read(KEY_SET_BYTES_MAX)
    return body


def _parse_key(entry: Any) -> jwt.PyJWK | None:
    """Return a key of a set, or None if it is not an asymmetric signature key."""
    if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
        return None
    try:
        return jwt.PyJWK.from_dict(entry)
    except jwt.PyJWTError:
        return None
