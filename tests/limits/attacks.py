"""Attack a coordinator with hostile clients of each kind, with many connections at a time.

Run as `python -m tests.limits.attacks KINDS PORT COUNT SECONDS`. KINDS are names of attacks, separated by
commas; each attack gets the same number of connections. The attack runs in a separate process, so that it
does not delay the clients whose latency is measured. The process has the lowest priority, so that it does not
take CPU time from the server.
"""

import asyncio
import logging
import os
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from coordinator.process.open_files import raise_open_file_limit
from protocol.messages import sasl_authenticate, sasl_handshake
from tests.limits import frames

Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
Attack = Callable[[Open], Awaitable[None]]

ALLOWED_TOKEN, NOT_ALLOWED_TOKEN = b"\0broker\0broker-secret", b"\0guest\0guest-secret"
_FOREVER_S = 3_600.0
# The maximum number of connections that are opened at the same time; more would only wait for TLS handshakes.
_OPENING_AT_A_TIME = 50


def handshake_frames(token: bytes) -> bytes:
    """Return the SaslHandshake and SaslAuthenticate frames of a login with PLAIN."""
    handshake = sasl_handshake.encode_request(sasl_handshake.SaslHandshakeRequest("PLAIN"), 1)
    authenticate = sasl_authenticate.encode_request(sasl_authenticate.SaslAuthenticateRequest(token), 2)
    return frames.make_frame(frames.SASL_HANDSHAKE, 1, handshake, flexible=False) + frames.make_frame(
        frames.SASL_AUTHENTICATE, 2, authenticate
    )


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Read one response."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


async def _open_authenticated_connection(
    open_one: Open, token: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and log in with PLAIN. The token is sent after the response to the handshake."""
    reader, writer = await open_one()
    login = handshake_frames(token)
    first = 4 + int.from_bytes(login[:4], "big")
    for part in (login[:first], login[first:]):
        writer.write(part)
        await read_frame(reader)
    return reader, writer


async def drain_writer(writer: asyncio.StreamWriter) -> None:
    """Wait until more data can be written to the connection.

    Over TLS, `drain` alone does not detect a closed connection.
    """
    await writer.drain()
    await asyncio.sleep(0)


async def send_nothing(open_one: Open) -> None:
    await open_one()
    await asyncio.sleep(_FOREVER_S)


async def send_handshake_slowly(open_one: Open) -> None:
    """Send the beginning of a TLS handshake, or of HTTP, byte by byte."""
    _, writer = await open_one()
    for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(400):
        writer.write(bytes([byte]))
        await asyncio.sleep(1)


async def send_half_frame(open_one: Open) -> None:
    """Announce a frame of the largest size that is allowed before authentication, and send half of it."""
    reader, writer = await open_one()
    writer.write((64 << 10).to_bytes(4, "big") + bytes(32 << 10))
    await reader.read()


async def fail_login(open_one: Open) -> None:
    """Log in with a wrong password."""
    await _open_authenticated_connection(open_one, b"\0broker\0wrong")


async def read_no_responses(open_one: Open) -> None:
    """Send large requests as a user who is not authorized, and read no responses."""
    _, writer = await _open_authenticated_connection(open_one, NOT_ALLOWED_TOKEN)
    while not writer.transport.is_closing():
        writer.write(frames.make_find_with_keys([b""] * 1_000))
        await drain_writer(writer)


async def pipeline_requests(open_one: Open) -> None:
    """Send many requests at once, and read the responses."""
    reader, writer = await _open_authenticated_connection(open_one, NOT_ALLOWED_TOKEN)
    while not writer.transport.is_closing():
        writer.write(2_000 * frames.make_find_with_keys([b"a"]))
        await drain_writer(writer)
        await reader.read(1 << 20)


async def send_endless_http_header(open_one: Open) -> None:
    """Send a request with a header that does not end."""
    reader, writer = await open_one()
    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + bytes([97]) * 30_000)
    await reader.read()


async def send_http_body_slowly(open_one: Open) -> None:
    """Announce a request body of 1 MB, and send one byte per second."""
    reader, writer = await open_one()
    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(1_000):
        writer.write(b"x")
        await asyncio.sleep(1)
    await reader.read()


async def pipeline_http_requests(open_one: Open) -> None:
    """Send 5 000 HTTP requests at once."""
    reader, writer = await open_one()
    writer.write(5_000 * b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.read()


async def read_no_http_responses(open_one: Open) -> None:
    """Request the web page repeatedly, and read no responses."""
    _, writer = await open_one()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(1_000):
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.sleep(0.05)


async def send_invalid_http_token(open_one: Open) -> None:
    reader, writer = await open_one()
    writer.write(b"GET /api/v1/groups HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer no\r\n\r\n")
    await reader.read(1_000)


# By kind: the function that attacks over one connection, and whether it first completes a TLS handshake.
KAFKA: dict[str, tuple[Attack, bool]] = {
    "silent": (send_nothing, False),
    "slow handshake": (send_handshake_slowly, False),
    "half frame": (send_half_frame, True),
    "failed logins": (fail_login, True),
    "slow reader": (read_no_responses, True),
    "pipelining": (pipeline_requests, True),
}
HTTP: dict[str, tuple[Attack, bool]] = {
    "http silent": (send_nothing, False),
    "http half head": (send_endless_http_header, False),
    "http half body": (send_http_body_slowly, False),
    "http pipelining": (pipeline_http_requests, False),
    "http slow reader": (read_no_http_responses, False),
    "http wrong token": (send_invalid_http_token, False),
}


def insecure_tls_context() -> ssl.SSLContext:
    """Return a client context that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def run_attack(kinds: str, port: int, count: int, seconds: float) -> int:
    """Keep `count` connections of the given kinds open for `seconds`; replace each connection that closes.

    Return the number of connections that were opened.
    """
    opened = 0
    named = [(KAFKA | HTTP)[kind] for kind in kinds.split(",")]
    tls_context = insecure_tls_context()
    opening = asyncio.Semaphore(_OPENING_AT_A_TIME)

    async def keep_connection_open(attack: Attack, uses_tls: bool) -> None:
        writers: list[asyncio.StreamWriter] = []

        async def open_connection() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            nonlocal opened
            async with opening:
                opened += 1
                context = tls_context if uses_tls else None
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writers.append(writer)
            return reader, writer

        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await attack(open_connection)
        finally:
            for writer in writers:
                writer.transport.abort()

    async def repeat_attack(attack: Attack, uses_tls: bool) -> None:
        while True:
            await keep_connection_open(attack, uses_tls)
            await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(repeat_attack(*named[index % len(named)])) for index in range(count)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return opened


if __name__ == "__main__":
    raise_open_file_limit(8_192)
    os.nice(19)
    # asyncio logs a warning for each write to a connection that the server has closed.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    print(asyncio.run(run_attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))))
