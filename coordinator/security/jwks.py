"""Load the public keys that verify tokens: a JSON Web Key Set (RFC 7517) from a file or a URL.

A file is reloaded when it changes.  A URL is fetched periodically, and once more if a token has an unknown
key id.  If a fetch fails, the last valid set stays in use.
"""

import asyncio
import json
import logging
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit
from urllib.request import url2pathname

import jwt

from coordinator.client.tls import client_context
from coordinator.config.fields import is_http_url
from coordinator.errors import ConfigError
from coordinator.process.clock import seconds_since_boot
from coordinator.security.reloading_files import ReloadingFiles

_logger = logging.getLogger(__name__)

KEY_SET_BYTES_MAX = 1 << 20
FETCH_TIMEOUT_S = 10.0
# Clients choose the key ids of their tokens, so unknown ids cause at most one fetch in this time.
RETRY_INTERVAL_S = 10.0


def parse_keys(text: bytes) -> list[jwt.PyJWK]:
    """Return the asymmetric signature keys of a key set. Raises ValueError with a message.

    Symmetric keys are ignored, because a verifier could sign tokens with them.
    """
    if len(text) > KEY_SET_BYTES_MAX:
        raise ValueError(f"it has more than {KEY_SET_BYTES_MAX} bytes")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    usable: list[jwt.PyJWK] = []
    listed = found.get("keys")
    for each in listed if isinstance(listed, list) else ():
        # PyJWT raises exceptions of several libraries for a key that it cannot use; the others stay valid.
        with suppress(Exception):
            usable.append(jwt.PyJWK(each))
    keys = [key for key in usable if key.key_type != "oct" and key.public_key_use in ("sig", None)]
    if not keys:
        raise ValueError("it has no key for signatures")
    return keys


class KeySource:
    """Source of verification keys; a subclass loads them into `_keys`."""

    _keys: Sequence[jwt.PyJWK] = ()

    def keys_with_id(self, key_id: str | None) -> list[jwt.PyJWK]:
        """Return the current keys with a key id; for None, return all keys."""
        return [key for key in self._keys if key_id is None or key.key_id == key_id]

    def contains(self, key: jwt.PyJWK) -> bool:
        """Return whether a key is still in the set, with the same key id."""
        return any(each.key == key.key for each in self.keys_with_id(key.key_id))

    async def find_keys(self, key_id: str | None) -> list[jwt.PyJWK]:
        """Return the keys with a key id; for None, return all keys. A subclass may load the keys first."""
        return self.keys_with_id(key_id)

    async def watch(self, interval_s: float) -> None:
        raise NotImplementedError


class FileKeySource(ReloadingFiles, KeySource):
    """The keys in a file."""

    def __init__(self, file: str, setting: str) -> None:
        """Read the file. Raises ConfigError."""
        super().__init__("keys for tokens", (file,))
        self._file = file
        self._setting = setting
        self._load()

    def _load(self) -> None:
        try:
            with open(self._file, "rb") as file:
                self._keys = parse_keys(file.read(KEY_SET_BYTES_MAX + 1))
        except OSError as error:
            raise ConfigError(self._setting, self._file, f"a readable file ({error.strerror})") from None
        except ValueError as error:
            raise ConfigError(self._setting, self._file, f"a JSON Web Key Set: {error}") from None


class UrlKeySource(KeySource):
    """The keys at a URL; empty until the first successful fetch.

    `jwt.PyJWKClient` (2.15.1) cannot replace this class. With a timeout of 10 s, PyJWKClient waited 60 s for
    a slow response, and it read a response of 300 MB, which took 600 MB of memory. When the lifetime of its
    keys had ended and the endpoint failed, PyJWKClient refused all tokens, and fetched once for each of 100
    unknown key ids.
    """

    def __init__(self, url: str, refresh_s: float, tls: Callable[[], ssl.SSLContext]) -> None:
        from coordinator.process.http_request import send_request

        self._send_request = send_request
        self._url = url
        self._tls = tls
        self._refresh_s = refresh_s
        self._fetched_s = -RETRY_INTERVAL_S
        self._refresh_task: asyncio.Task[None] | None = None

    async def find_keys(self, key_id: str | None) -> list[jwt.PyJWK]:
        """Return the keys with a key id, or all for None; fetch the URL if there are none (rate-limited)."""
        found = self.keys_with_id(key_id)
        if not found and (self._refresh_task is not None or self._keys_age_s() >= RETRY_INTERVAL_S):
            await self._refresh_keys()
            found = self.keys_with_id(key_id)
        return found

    async def watch(self, interval_s: float) -> None:
        """Fetch immediately, then periodically until cancelled; after a failure, fetch sooner."""
        while True:
            if not self._keys or self._keys_age_s() >= self._refresh_s:
                await self._refresh_keys()
            await asyncio.sleep(min(max(interval_s, RETRY_INTERVAL_S), self._refresh_s))

    def _keys_age_s(self) -> float:
        return seconds_since_boot() - self._fetched_s

    async def _refresh_keys(self) -> None:
        """Fetch the URL; concurrent callers wait for the same response."""
        if self._refresh_task is None:
            self._refresh_task = asyncio.create_task(self._fetch_keys(), name="fetching keys for tokens")
            self._refresh_task.add_done_callback(self._on_keys_refreshed)
        await asyncio.wait({self._refresh_task})

    def _on_keys_refreshed(self, asking: "asyncio.Task[None]") -> None:
        self._refresh_task = None

    async def _fetch_keys(self) -> None:
        self._fetched_s = seconds_since_boot()
        try:
            body = await self._send_request(
                "GET",
                self._url,
                tls=self._tls(),
                timeout_s=FETCH_TIMEOUT_S,
                bytes_max=KEY_SET_BYTES_MAX + 1,
                headers={"Accept": "application/json"},
            )
            self._keys = parse_keys(body)
        except (OSError, ValueError, ConfigError) as error:
            _logger.error(
                "The keys for tokens could not be fetched. The previous keys stay in use.",
                extra={"host": urlsplit(self._url).hostname, "reason": str(error)},
            )


def open_key_source(location: str, setting: str, refresh_s: float, *, ca_file: str = "") -> KeySource:
    """Return the key source of a location: http(s)://..., file://..., or a path. Raises ConfigError.

    `ca_file` has the trusted authorities for an https location; without it, the system's authorities are
    used. The file `ca_file` is read at each fetch.
    """
    if location.lower().startswith(("http:", "https:")):
        if not is_http_url(location):
            raise ConfigError(setting, location, "an http or https URL, or a file")
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
    file = url2pathname(urlsplit(location).path) if location.lower().startswith("file:") else location
    return FileKeySource(file, setting)
