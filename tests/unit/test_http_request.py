"""Outgoing HTTP requests: limits of time and size, no redirects, and errors without the URL."""

import asyncio
import ssl
import subprocess
import sys

import pytest

from coordinator.process.http_request import send_request
from tests.unit.cli.test_admin_commands import serve_bytes

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


def send_get(url: str, *, timeout_s: float = 60, bytes_max: int = 10) -> bytes:
    request = send_request("GET", url, tls=TLS, timeout_s=timeout_s, bytes_max=bytes_max, headers={})
    return asyncio.run(request)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "create"),
    [
        ("coordinator.observe.signals.event_delivery", "Webhook('http://127.0.0.1:1')"),
        ("coordinator.security.jwks", "open_key_source('http://127.0.0.1:1', 'setting', 60)"),
    ],
)
def test_httpx_is_imported_when_a_sender_is_created(module: str, create: str) -> None:
    """Imports in the first request would delay the event loop; without a sender, they would waste memory."""
    names = "*sorted({'httpx', 'httpcore'} & sys.modules.keys())"
    script = f"import sys; from {module} import *; print({names}, end=';'); {create}; print({names})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == ";httpcore httpx\n"


def test_response_is_cut_at_its_maximum_size() -> None:
    with serve_bytes(HEAD + b"x" * 100_000) as url:
        assert send_get(url) == b"x" * 10


def test_response_that_never_ends_times_out() -> None:
    with (
        serve_bytes(HEAD, *[b"x"] * 100) as url,
        pytest.raises(OSError, match=r"^no complete response within 0\.3 s$"),
    ):
        send_get(url, timeout_s=0.3, bytes_max=1_000)


def test_redirect_is_not_followed() -> None:
    head = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with serve_bytes(head) as url, pytest.raises(OSError, match=r"^HTTP status 302$"):
        send_get(url)


@pytest.mark.parametrize(
    ("name", "value"),
    [("NO_PROXY", "localhost,fd00::/8"), ("ALL_PROXY", "socks5://[::1]:1"), ("HTTP_PROXY", "http://[::1]:1")],
)
def test_proxy_variables_have_no_effect(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with serve_bytes(HEAD + b"x" * 100_000) as url:
        assert send_get(url) == b"x" * 10


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:port", "xn--"])
def test_error_does_not_contain_the_url(address: str) -> None:
    with pytest.raises(OSError, match=r"^((?!secret).)+$"):
        send_get(f"http://{address}/?token=secret")
