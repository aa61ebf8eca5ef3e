"""A running coordinator, asked over HTTP, and a cluster that fills in what it does not know.

An answer is what the API gives, as plain values; nothing here knows what is in a coordinator.
"""

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from coordinator.errors import ConfigError, CoordinatorError

if TYPE_CHECKING:
    from coordinator.config import Config

_TIMEOUT_S = 30
_PAGE = 1_000

Answer = dict[str, Any]


class Refused(CoordinatorError):
    """The coordinator answered that it has no answer; `status` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AdminApi:
    """The HTTP side of one coordinator. Raises ConfigError for what is no address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError("--url", url, "http://HOST:PORT")
        self.url = url.rstrip("/")

    def get(self, path: str, **query: object) -> Answer:
        """Return an answer. Raises Refused, or CoordinatorError if there is none at all."""
        given = {name: value for name, value in query.items() if value is not None}
        address = f"{self.url}{path}" + (f"?{urlencode(given)}" if given else "")
        request = Request(address, headers={"Accept": "application/json"})
        try:
            with urlopen(request, timeout=_TIMEOUT_S) as response:
                answer: Answer = json.load(response)
                return answer
        except HTTPError as error:
            # /healthz answers in full with status 503 while a coordinator is not ready.
            answer = _read(error)
            if "message" not in answer and error.code == 503:
                return answer
            raise Refused(error.code, _told(answer, error)) from None
        except (URLError, OSError, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise CoordinatorError(f"no coordinator answers at {self.url}: {reason}") from None

    def items(self, path: str, **query: object) -> Iterator[Answer]:
        """Yield all items of a list, page by page."""
        offset = 0
        while True:
            page = self.get(path, limit=_PAGE, offset=offset, **query)
            yield from page["items"]
            offset += _PAGE
            if offset >= page["total"]:
                return


def _read(error: HTTPError) -> Answer:
    try:
        answer = json.load(error)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _told(answer: Answer, error: HTTPError) -> str:
    """Return what went wrong, and who should be asked instead."""
    message = str(answer.get("message", f"HTTP status {error.code}"))
    owner = answer.get("owner") or {}
    page = owner.get("page")
    return f"{message}; ask {page}" if page and page not in message else message


def cluster_config(extra: list[str]) -> "Config | None":
    """Load the settings of a client of the cluster; None without bootstrap.servers. Raises ConfigError."""
    from coordinator.cli.settings_flags import pairs_of_flags
    from coordinator.config import load_config

    flags = dict(pairs_of_flags(extra))
    config = load_config(flags, os.environ, None).config
    return config if config.bootstrap_servers else None


def fill_in(items: list[Answer], config: "Config | None") -> None:
    """Add names of topics, end offsets and lags that the coordinator does not know and the cluster does.

    Raises CoordinatorError if the cluster cannot be asked.
    """
    wanting = [item for item in items if item["topic"] is None or item["end_offset"] is None]
    if config is None or not wanting:
        return
    import asyncio

    from coordinator.kafka.security import Security
    from coordinator.kafka.user_topics import UserTopics
    from coordinator.topics import lag_of
    from protocol.state_records import parse_topic_id

    async def ask() -> None:
        topics = UserTopics(config.bootstrap_servers, security=Security.of(config))
        try:
            keys = [(parse_topic_id(item["topic_id"]), item["partition"]) for item in wanting]
            names = await topics.names({topic_id for topic_id, _ in keys})
            ends = await topics.end_offsets(keys)
        finally:
            await topics.close()
        for item, key in zip(wanting, keys, strict=True):
            item["topic"] = names.get(key[0])
            item["end_offset"] = ends.get(key)
            item["lag"] = lag_of(item["start_offset"], item["delivery_complete_count"], item["end_offset"])

    asyncio.run(ask())
