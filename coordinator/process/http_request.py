"""Send one HTTP request, with limits for the time and the size of the response.

Objects that send requests import this module when they are created. The imports take 5 MB of memory, which
most processes do not need, and 50 ms, which would delay a running event loop.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

# httpx imports httpcore with its first client.
import httpcore  # noqa: F401
import httpx

# The size of one read of a response.
_PART_BYTES = 64 << 10


class HttpResponse(NamedTuple):
    """The status and the body of a response, or the first part of a body above the limit."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


async def exchange_http(
    method: str,
    url: str,
    *,
    tls: ssl.SSLContext,
    timeout_s: float,
    bytes_max: int,
    body: bytes = b"",
    headers: Mapping[str, str],
) -> HttpResponse:
    """Send a request and return the response, with at most `bytes_max` bytes of its body.

    Redirects are not followed, and proxies in the environment are not used. Raises OSError if there is no
    response. The error does not contain the URL, because a URL may contain a secret.
    """
    received = bytearray()
    headers = {**headers, "Accept-Encoding": "identity"}
    try:
        # httpx limits the time of each read only, and a server could send single bytes forever. This limit
        # does not end a slow lookup of the host name: asyncio.run waits for the thread of getaddrinfo, with
        # the system's limit.
        async with (
            asyncio.timeout(timeout_s),
            httpx.AsyncClient(verify=tls, timeout=None, trust_env=False) as client,
            client.stream(method, url, content=body, headers=headers) as response,
        ):
            async for part in response.aiter_raw(min(bytes_max, _PART_BYTES)):
                received += part
                if len(received) >= bytes_max:
                    break
    except TimeoutError:
        raise OSError(f"no complete response within {timeout_s:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise OSError(str(error)) from error
    return HttpResponse(response.status_code, bytes(received[:bytes_max]))


async def send_request(method: str, url: str, **options: Any) -> bytes:
    """Return the body of a response with a status 2xx. Options and errors are those of `exchange_http`."""
    response = await exchange_http(method, url, **options)
    if not response.is_success:
        raise OSError(f"HTTP status {response.status}")
    return response.body
