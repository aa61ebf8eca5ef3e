"""Listeners enable TCP keep-alive, which detects clients whose machine has vanished."""

import asyncio
from pathlib import Path

import pytest

from tests.unit.relay.fake_peers import run_relay
from tests.unit.server.wire import serve_coordinator

# The timer of an idle connection with keep-alive, in /proc/net/tcp.
KEEP_ALIVE_TIMER = "02"

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux shows timers of sockets")


def read_timer(local_port: int, remote_port: int) -> str:
    """Return the timer code in /proc/net/tcp of the connection from `local_port` to `remote_port`."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, timer, *_ = line.split()
        if (int(local[-4:], 16), int(remote[-4:], 16)) == (local_port, remote_port):
            return timer[:2]
    raise AssertionError("there is no such connection")


async def wait_until_keep_alive_is_enabled(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(60):
            while read_timer(port, writer.get_extra_info("sockname")[1]) != KEEP_ALIVE_TIMER:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        writer.close()


async def test_coordinator_enables_keep_alive() -> None:
    async with serve_coordinator() as one:
        await wait_until_keep_alive_is_enabled(one.port)


async def test_relay_enables_keep_alive() -> None:
    async with run_relay() as here:
        await wait_until_keep_alive_is_enabled(here.listener.port)
