"""Request the HTTP API of a running coordinator, and add topic names and end offsets from a cluster.

Responses are plain JSON values; this module does not depend on the server's code.
"""

import json
import os
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from http.client import BadStatusLine, HTTPException, HTTPMessage, RemoteDisconnected
from threading import Thread
from typing import IO, TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from coordinator.errors import ConfigError, CoordinatorError

if TYPE_CHECKING:
    from coordinator.config import Config

# The timeout of a whole response; a server could send single bytes forever.
_TIMEOUT_S = 30
# The timeout of a write request; snapshots of a large shard and hand-overs may take minutes.
_WRITE_TIMEOUT_S = 300
_PAGE = 1_000

Answer = dict[str, Any]


class _JsonObject(Answer):
    """A JSON object of a response. Another service or release may omit a field."""

    def __missing__(self, name: str) -> Any:
        raise CoordinatorError(
            f"the response has no {name!r}: the server is not a share coordinator, or has another release"
        )


class RequestRefused(CoordinatorError):
    """The coordinator refused the request; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AdminClient:
    """A client of one coordinator's HTTP API. Raises ConfigError for an invalid address or file."""

    def __init__(
        self, url: str, *, token_file: str = "", ca: str = "", cert: str = "", key: str = ""
    ) -> None:
        scheme = _parse_scheme(url)
        self.url = url.rstrip("/")
        self._headers = {"Accept": "application/json"}
        if token_file:
            self._headers["Authorization"] = f"Bearer {_read_token(token_file)}"
        context = _make_tls_context(scheme, ca, cert, key)
        self._opener = build_opener(HTTPSHandler(context=context), _NoRedirects())

    def get(self, path: str, **query: object) -> Answer:
        """Return a response. Raises RequestRefused, or CoordinatorError without a response."""
        given = {name: value for name, value in query.items() if value is not None}
        address = f"{self.url}{path}" + (f"?{urlencode(given)}" if given else "")
        return self._send_with_timeout(Request(address, headers=self._headers), _TIMEOUT_S)

    def post(self, path: str, order: Mapping[str, object]) -> Answer:
        """Send a write request and return the response. Raises like `get`."""
        body = json.dumps({name: value for name, value in order.items() if value is not None}).encode()
        headers = {**self._headers, "Content-Type": "application/json"}
        return self._send_with_timeout(Request(f"{self.url}{path}", body, headers), _WRITE_TIMEOUT_S)

    def items(self, path: str, **query: object) -> Iterator[Answer]:
        """Yield all items of a list, page by page; changes meanwhile neither repeat nor omit other items."""
        after, offset = None, 0
        while True:
            page = self.get(path, limit=_PAGE, after=after, offset=offset or None, **query)
            yield from page["items"]
            after = page.get("next")
            # The list of shards has no `next`, because shards neither come nor go.
            offset = 0 if "next" in page else offset + _PAGE
            if after is None and (not offset or offset >= page["total"]):
                return

    def _send_with_timeout(self, request: Request, timeout_s: float) -> Answer:
        asked: Future[Answer] = Future()

        def send() -> None:
            try:
                asked.set_result(self._open_request(request, timeout_s))
            except BaseException as error:
                asked.set_exception(error)

        # The thread may continue after the timeout: a server may never finish its response, and a socket's
        # timeout covers only one read.
        Thread(target=send, daemon=True).start()
        try:
            return asked.result(timeout_s)
        except (URLError, OSError, ValueError, HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            said = str(reason) or f"no complete response within {timeout_s} s"
            raise CoordinatorError(
                f"no coordinator answers at {self.url}: {said}{self._failure_hint(reason)}"
            ) from None

    def _open_request(self, request: Request, timeout_s: float) -> Answer:
        answer: object
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                answer = json.load(response, object_hook=_JsonObject)
        except HTTPError as error:
            answer = _read_error_body(error)
            # While a coordinator is not ready, /healthz has a complete body with status 503.
            if error.code != 503 or "reasons" not in answer:
                raise RequestRefused(error.code, _format_error(answer, error)) from None
        if not isinstance(answer, _JsonObject):
            raise CoordinatorError(f"no coordinator answers at {self.url}: the response is not a JSON object")
        return answer

    def _failure_hint(self, reason: object) -> str:
        """Return a hint for the user, as the end of a sentence."""
        if isinstance(reason, ssl.SSLCertVerificationError):
            return "; give the authority of its certificate with --ca FILE"
        if isinstance(reason, ssl.SSLError):
            if reason.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
                return "; check whether the server uses http:// without TLS"
            if "CERTIFICATE" in (reason.reason or ""):
                return "; give a client certificate with --cert FILE and --key FILE"
            return ""
        cut = isinstance(reason, RemoteDisconnected | BadStatusLine | ConnectionResetError)
        if cut and self.url.startswith("http:"):
            return "; check whether the server uses https://"
        if cut:
            return "; check whether it requires a client certificate (--cert FILE)"
        return ""


class _NoRedirects(HTTPRedirectHandler):
    """Follow no redirections: the token is for the given address only."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Treat a redirection as the response."""


def _parse_scheme(url: str) -> str:
    """Return http or https. Raises ConfigError for an invalid URL, without showing a password in it."""
    allowed = "http://HOST:PORT or https://HOST:PORT"
    if "@" in url:
        shown = f"********@{url.rpartition('@')[2]}"
        raise ConfigError("--url", shown, f"{allowed}, without a user name; give a token with --token-file")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError("--url", url, allowed) from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError("--url", url, allowed)
    return parts.scheme


def _read_token(path: str) -> str:
    """Return the token in a file, the last word of its first line that is not a comment.

    Raises ConfigError.
    """
    try:
        with open(path, encoding="ascii") as file:
            lines = [words for line in file if (words := line.split()) and not words[0].startswith("#")]
    except OSError as error:
        raise ConfigError("--token-file", path, f"a readable file ({error.strerror})") from None
    except ValueError:
        raise ConfigError("--token-file", path, "an ASCII file") from None
    if not lines:
        raise ConfigError("--token-file", path, "a file with a token")
    token = lines[0][-1]
    if token.startswith("sha256:"):
        raise ConfigError("--token-file", path, "a file with the token, not its digest")
    return token


def _make_tls_context(scheme: str, ca: str, cert: str, key: str) -> ssl.SSLContext | None:
    """Return the TLS context for https, None for http. Raises ConfigError for an invalid file."""
    if key and not cert:
        raise ConfigError("--key", key, "given together with --cert")
    if scheme == "http":
        for option, file in (("ca", ca), ("cert", cert), ("key", key)):
            if file:
                places = f"here and as SHARE_COORDINATOR_{option.upper()}"
                raise ConfigError(
                    f"--{option}", file, f"omitted ({places}) with an http:// URL, which has no TLS"
                )
        return None
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise ConfigError("--ca", ca, f"a PEM file with certificates ({error.strerror or error})") from None
    if cert:
        try:
            context.load_cert_chain(cert, key or None)
        except OSError as error:
            raise ConfigError(
                "--cert",
                cert,
                f"a PEM file with a certificate, and its key in the same file or in --key ({error})",
            ) from None
    return context


def _read_error_body(error: HTTPError) -> Answer:
    try:
        answer = json.load(error, object_hook=_JsonObject)
    except ValueError:
        return {}
    return answer if isinstance(answer, _JsonObject) else {}


def _format_error(answer: Answer, error: HTTPError) -> str:
    """Return the error message, and the coordinator that should be asked instead."""
    if "message" not in answer:
        status = f"HTTP status {error.code}"
        return (
            f"{status}: the server is not a share coordinator, or is overloaded"
            if error.code == 503
            else status
        )
    message, owner = str(answer["message"]), answer.get("owner")
    page = owner.get("page") if isinstance(owner, _JsonObject) else None
    return f"{message}; ask {page}" if page and page not in message else message


def cluster_config(extra: list[str]) -> "Config | None":
    """Load the client settings for the cluster; None without bootstrap.servers. Raises ConfigError."""
    from coordinator.cli.settings_flags import parse_flags
    from coordinator.config import load_config

    flags = dict(parse_flags(extra))
    config = load_config(flags, os.environ, None).config
    return config if config.bootstrap_servers else None


def add_cluster_data(items: list[Answer], config: "Config | None") -> None:
    """Add topic names, end offsets and lags from the cluster if the coordinator does not know them.

    Raises CoordinatorError if the cluster does not answer.
    """
    wanting = [item for item in items if item["topic"] is None or item["end_offset"] is None]
    if config is None or not wanting:
        return
    import asyncio

    from coordinator.cluster.kafka.user_topics import UserTopics
    from coordinator.cluster.topics import compute_lag
    from coordinator.security.client_security import make_client_security
    from protocol.state_records import parse_topic_id

    async def read_cluster_data() -> None:
        topics = UserTopics(config.bootstrap_servers, security=make_client_security(config))
        try:
            keys = [(parse_topic_id(item["topic_id"]), item["partition"]) for item in wanting]
            names = await topics.names({topic_id for topic_id, _ in keys})
            ends = await topics.end_offsets(keys)
        finally:
            await topics.close()
        for item, key in zip(wanting, keys, strict=True):
            item["topic"] = names.get(key[0])
            item["end_offset"] = ends.get(key)
            item["lag"] = compute_lag(
                item["start_offset"], item["delivery_complete_count"], item["end_offset"]
            )

    asyncio.run(read_cluster_data())
