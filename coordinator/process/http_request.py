"""Send one HTTP request, with limits for the time and the size of the response.

Objects that send requests import this module when they are created. The imports take 5 MB of memory, which
most processes do not need, and 50 ms, which would delay a running event loop.
"""

import asyncio
import ssl
from collections.abc import Mapping

# httpx imports httpcore with its first client.
import httpcore  # noqa: F401
import httpx


async def send_request(
    method: str,
    url: str,
    *,
    tls: ssl.SSLContext,
    timeout_s: float,
    bytes_max: int,
    body: bytes = b"",
    headers: Mapping[str, str],
) -> bytes:
    """Return the body of a response, or its first part if it is longer than `bytes_max`.

    Raises OSError if the status is not 2xx; redirects are not followed, and proxies in the environment are
    not used. The error does not contain the URL, because a URL may contain a secret.
    """
    received = bytearray()
    headers = {**headers, "Accept-Encoding": "identity"}
    try:
        async with (
            asyncio.timeout(timeout_s),
            httpx.AsyncClient(verify=tls, timeout=None, trust_env=False) as client,
            client.stream(method, url, content=body, headers=headers) as response,
        ):
            if not response.is_success:
                raise OSError(f"HTTP status {response.status_code}")
            async for part in response.aiter_raw(bytes_max):
                received += part
                if len(received) >= bytes_max:
                    break
    except TimeoutError:
        raise OSError(f"no complete response within {timeout_s:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise OSError(str(error)) from None
    return bytes(received[:bytes_max])
