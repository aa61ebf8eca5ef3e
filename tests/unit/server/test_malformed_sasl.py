"""Random bytes during SASL: connections close, no login succeeds, and no internal error occurs."""

import asyncio
import logging
import random
from pathlib import Path

import pytest

from protocol.messages import sasl_handshake
from tests.unit.server.sasl_clients import (
    FIND_BODY,
    authenticate_frame,
    find_coordinator_error_code,
    log_in,
    password_security,
)
from tests.unit.server.test_server import INITIALIZE_FRAME_BODY
from tests.unit.server.wire import ServedCoordinator, WireClient, request_frame, serve_coordinator

SEED = 932
DIALOGUES = 200
AT_A_TIME = 20


def handshake_frame(mechanism: str, version: int = 1) -> bytes:
    body = sasl_handshake.encode_request(sasl_handshake.SaslHandshakeRequest(mechanism), version)
    return request_frame(17, version, 1, body, flexible=False)


FRAMES = [
    handshake_frame("PLAIN"),
    handshake_frame("SCRAM-SHA-256"),
    handshake_frame("PLAIN", 0),
    authenticate_frame(b"\0alice\0wrong"),
    authenticate_frame(b"n,,n=alice,r=abcdef"),
    authenticate_frame(b"c=biws,r=abcdef,p=AAAA", 1),
    authenticate_frame(b"", 0),
    request_frame(18, 3, 1, b"\2a\2b\0"),
    request_frame(10, 6, 3, FIND_BODY),
    request_frame(83, 0, 1, INITIALIZE_FRAME_BODY),
    request_frame(3, 12, 1, b"\0"),
]


def corrupt_frame(rng: random.Random, frame: bytes) -> bytes:
    """Return the frame unchanged, with changed bytes, truncated or extended; its size is correct."""
    kind = rng.randrange(4)
    body = bytearray(frame[4:])
    if kind == 1:
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
    elif kind == 2:
        del body[rng.randrange(len(body)) :]
    elif kind == 3:
        body += rng.randbytes(rng.randint(1, 30))
    return len(body).to_bytes(4, "big") + bytes(body)


async def send_corrupted_frames(client: WireClient, rng: random.Random, *, logs_in: bool) -> None:
    """Log in or begin a login, send corrupted frames, and read until the server closes the connection."""
    if logs_in:
        await log_in(client, rng.choice(["alice", "bob"]))
    elif rng.random() < 0.7:
        client.send(handshake_frame(rng.choice(["PLAIN", "SCRAM-SHA-256"]), rng.randint(0, 1)))
        await client.read_frame()
    for _ in range(rng.randint(1, 4)):
        client.send(corrupt_frame(rng, rng.choice(FRAMES)))
    client.writer.write_eof()
    async with asyncio.timeout(60):
        await client.reader.read()


async def send_corrupted_dialogues(served: ServedCoordinator, rng: random.Random, *, logs_in: bool) -> None:
    """Send several corrupted dialogues, one after another, each on a new connection."""
    for _ in range(DIALOGUES // AT_A_TIME):
        client = await served.connect()
        try:
            await send_corrupted_frames(client, rng, logs_in=logs_in)
        except (ConnectionError, asyncio.IncompleteReadError):
            # The server closed the connection while the client was still sending.
            pass
        finally:
            client.writer.close()


@pytest.mark.parametrize("logs_in", [False, True])
async def test_corrupted_sasl_frames_close_only_their_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, logs_in: bool
) -> None:
    rng = random.Random(f"{SEED} {logs_in}")
    async with serve_coordinator(security=password_security(tmp_path, reauth_max_ms=60_000)) as served:
        await asyncio.gather(
            *(send_corrupted_dialogues(served, rng, logs_in=logs_in) for _ in range(AT_A_TIME))
        )
        assert served.metrics.counter_value("connections_closed", "internal_error") == 0
        await served.wait_until(lambda: served.listener.connection_count == 0)
        assert served.listener.held_bytes == 0
        client = await served.connect()
        await log_in(client)
        assert await find_coordinator_error_code(client) == 0
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []
