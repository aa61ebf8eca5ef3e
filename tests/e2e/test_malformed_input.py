"""Send malformed input to a coordinator process: memory stays bounded and other clients are served."""

import asyncio
import random
import resource
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.client import ShareCoordinatorClient
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey
from tests.builders import ACKNOWLEDGED, TOPIC_ID
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.ports import free_ports

pytestmark = pytest.mark.e2e

SEED = 932
CONNECTIONS = 10_000
AT_A_TIME = 200
# The memory of the process may grow by this number of bytes: buffers of concurrent connections, and free
# memory of the allocator. A leak of one frame for each connection would be ten times as much.
GROWTH_BYTES_MAX = 64 * 1024 * 1024


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    port, http_port = free_ports(2)
    process = CoordinatorProcess(tmp_path, port=port, http_port=http_port)
    process.start()
    try:
        yield process
    finally:
        process.stop()


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def make_invalid_bytes(rng: random.Random) -> bytes:
    """Return invalid input: random, truncated, oversized, or almost valid bytes."""
    kind = rng.randrange(6)
    if kind == 0:
        return b""
    if kind == 1:
        return rng.randbytes(rng.randint(1, 400))
    if kind == 2:  # a frame that is never completed
        return struct.pack(">i", rng.randint(100, 16 << 20)) + rng.randbytes(rng.randint(0, 4_000))
    if kind == 3:  # an impossible frame size
        return struct.pack(">i", rng.choice([-1, -(2**31), 2**31 - 1, 0, 1, 7])) + rng.randbytes(20)
    # A valid header of a served API, followed by random bytes.
    api_key, version = rng.choice([10, 18, 83, 84, 85, 86, 87]), rng.randint(-1, 7)
    header = struct.pack(">hhih", api_key, version, 1, 1) + b"c\0"
    body = rng.randbytes(rng.randint(0, 300))
    if kind == 4:  # array counts far above the actual content
        body = b"\x02g" + b"\xff\xff\xff\xff\x0f" + body
    return struct.pack(">i", len(header) + len(body)) + header + body


async def send_invalid_bytes(port: int, rng: random.Random) -> None:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return
    try:
        writer.write(make_invalid_bytes(rng))
        if rng.random() < 0.5:
            await writer.drain()
        if rng.random() < 0.2:
            writer.write_eof()
            async with asyncio.timeout(10):
                while await reader.read(4_096):
                    pass
    except OSError:
        pass
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()
        writer.close()


async def open_invalid_connections(port: int) -> None:
    """Send invalid input over many connections, several at a time."""
    rng = random.Random(SEED)
    for _ in range(CONNECTIONS // AT_A_TIME):
        await asyncio.gather(*(send_invalid_bytes(port, rng) for _ in range(AT_A_TIME)))


def test_malformed_input_neither_stops_process_nor_leaks_memory(coordinator: CoordinatorProcess) -> None:
    pid = coordinator.process.pid

    async def scenario() -> int:
        served = 0
        key = SharePartitionKey("quiet", TOPIC_ID, 0)
        async with ShareCoordinatorClient(f"127.0.0.1:{coordinator.port}") as client:
            await client.initialize(key, 1, 0)
            await send_invalid_bytes(coordinator.port, random.Random(1))
            noisy = asyncio.create_task(open_invalid_connections(coordinator.port))
            while not noisy.done():
                batch = StateBatch(served, served, ACKNOWLEDGED, 1)
                await client.write(key, state_epoch=1, leader_epoch=0, start_offset=0, batches=[batch])
                served += 1
            await noisy
            state = await client.read(key, 0)
            assert [tuple(batch) for batch in state.batches] == [(0, served - 1, ACKNOWLEDGED, 1)]
        return served

    before = resident_bytes(pid)
    served = asyncio.run(scenario())
    assert served > 20, "few requests of other clients were answered"
    assert coordinator.process.pid == pid
    assert coordinator.get("/readyz")[0] == 200
    assert resident_bytes(pid) - before < GROWTH_BYTES_MAX
