"""Request the HTTP API of a running coordinator.

Responses are plain JSON values; this module does not depend on the server's code.
"""

import asyncio
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from coordinator.errors import ConfigError, CoordinatorError
from coordinator.process.http_request import exchange_http

# The timeout of a whole response. A timeout of each read would allow a server to send single bytes forever.
_TIMEOUT_S = 30
# The timeout of a write request; a hand-over may take half a minute, and a round of expiry minutes.
_WRITE_TIMEOUT_S = 300
_PAGE = 1_000
_RESPONSE_BYTES_MAX = 1 << 30

Answer = dict[str, Any]


class _JsonObject(Answer):
    """A JSON object of a response. Another service or release may omit fields of this object."""

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
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token_file:
            self._headers["Authorization"] = f"Bearer {_read_token(token_file)}"
        self._tls = _make_tls_context(scheme, ca, cert, key)

    def get(self, path: str, **query: object) -> Answer:
        """Return a response. Raises RequestRefused, or CoordinatorError if there is no response."""
        return self._send_request("GET", path, _TIMEOUT_S, query)

    def post(self, path: str, order: Mapping[str, object]) -> Answer:
        """Send a write request and return the response. Raises like `get`."""
        return self._send_request("POST", path, _WRITE_TIMEOUT_S, content=_drop_none(order))

    def list_items(self, path: str, **query: object) -> Iterator[Answer]:
        """Yield all items of a list, page by page.

        Items that are added or removed meanwhile do not cause other items to be repeated or omitted.
        """
        after, offset = None, 0
        while True:
            page = self.get(path, limit=_PAGE, after=after, offset=offset or None, **query)
            yield from page["items"]
            after = page.get("next")
            # The response for shards has no field `next`, because the number of shards is fixed.
            offset = 0 if "next" in page else offset + _PAGE
            if after is None and (not offset or offset >= page["total"]):
                return

    def _send_request(
        self,
        method: str,
        path: str,
        timeout_s: float,
        query: Mapping[str, object] | None = None,
        content: object = None,
    ) -> Answer:
        parameters = str(httpx.QueryParams(_drop_none(query or {})))  # type: ignore[arg-type]
        try:
            response = asyncio.run(
                exchange_http(
                    method,
                    f"{self.url}{path}{'?' + parameters if parameters else ''}",
                    tls=self._tls,
                    timeout_s=timeout_s,
                    bytes_max=_RESPONSE_BYTES_MAX,
                    body=json.dumps(content).encode() if content is not None else b"",
                    headers=self._headers,
                )
            )
        except OSError as error:
            raise self._make_unreachable_error(self._describe_failure(error)) from None
        answer = _parse_answer(response.body)
        # While a coordinator is not ready, /healthz has a complete body with status 503.
        if not response.is_success and (response.status != 503 or "reasons" not in (answer or {})):
            raise RequestRefused(response.status, _format_error(answer or {}, response.status))
        if answer is None:
            raise self._make_unreachable_error("the response is not a JSON object")
        return answer

    def _make_unreachable_error(self, reason: str) -> CoordinatorError:
        return CoordinatorError(f"no coordinator answers at {self.url}: {reason}")

    def _describe_failure(self, error: OSError) -> str:
        """Return the reason why there was no response, and a hint for the user."""
        reason = _root_cause(error)
        text = str(reason) or str(error)
        if isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError) and (reason.errno or 0) > 0:
            text = os.strerror(reason.errno or 0)
        return f"{text.rstrip('.')}{self._make_failure_hint(error.__cause__, reason)}"

    def _make_failure_hint(self, error: BaseException | None, reason: BaseException) -> str:
        if isinstance(reason, ssl.SSLCertVerificationError):
            return "; give the authority of its certificate with --ca FILE"
        if isinstance(reason, ssl.SSLError):
            if reason.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
                return "; check whether the server uses http:// without TLS"
            if "CERTIFICATE" in (reason.reason or ""):
                return "; give a client certificate with --cert FILE and --key FILE"
            return ""
        if not isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
            return ""
        if self.url.startswith("http:"):
            return "; check whether the server uses https://"
        return "; check whether it requires a client certificate (--cert FILE)"


def _drop_none(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _parse_answer(body: bytes) -> _JsonObject | None:
    try:
        answer = json.loads(body, object_hook=_JsonObject)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, _JsonObject) else None


def _root_cause(error: BaseException) -> BaseException:
    """Return the TLS error that caused an error of httpx, or else the first error of its chain."""
    while not isinstance(error, ssl.SSLError):
        if isinstance(error, BaseExceptionGroup):
            cause: BaseException | None = error.exceptions[0]
        else:
            cause = error.__cause__ or error.__context__
        if cause is None:
            break
        error = cause
    return error


def _parse_scheme(url: str) -> str:
    """Return http or https. Raises ConfigError for an invalid URL.

    The message does not show a password in the URL.
    """
    allowed = "http://HOST:PORT or https://HOST:PORT"
    if "@" in url:
        shown = f"********@{url.rpartition('@')[2]}"
        raise ConfigError("--url", shown, f"{allowed}, without a user name; give a token with --token-file")
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(url)
    except ValueError:
        raise ConfigError("--url", url, allowed) from None
    return parts.scheme


def _read_token(path: str) -> str:
    """Return the token in a file: the last word of the first line that is not a comment.

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
    if not token.isprintable():
        # An error of the HTTP library would show the token.
        raise ConfigError("--token-file", path, "a file with a token of printable characters")
    if token.startswith("sha256:"):
        raise ConfigError("--token-file", path, "a file with the token, not its digest")
    return token


def _make_tls_context(scheme: str, ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return the TLS context for https, or for http a context without trusted authorities.

    Raises ConfigError for an invalid file.
    """
    if key and not cert:
        raise ConfigError("--key", key, "given together with --cert")
    if scheme == "http":
        for option, file in (("ca", ca), ("cert", cert), ("key", key)):
            if file:
                places = f"here and as SHARE_COORDINATOR_{option.upper()}"
                raise ConfigError(
                    f"--{option}", file, f"omitted ({places}) with an http:// URL, which has no TLS"
                )
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
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


def _format_error(answer: Answer, http_status: int) -> str:
    """Return the error message of a response, with the URL of the shard's owner if the response has it."""
    if "message" not in answer:
        status = f"HTTP status {http_status}"
        return (
            f"{status}: the server is not a share coordinator, or is overloaded"
            if http_status == 503
            else status
        )
    message, owner = str(answer["message"]), answer.get("owner")
    page = owner.get("page") if isinstance(owner, _JsonObject) else None
    return f"{message}; ask {page}" if page and page not in message else message
