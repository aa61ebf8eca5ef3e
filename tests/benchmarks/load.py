"""A closed loop of writers: each connection has one request in flight, as brokers do.

The generator is Python on uvloop and shares the machine with what it measures, so it bounds the figures from
above: they compare what ran in the same run, and are no one's limit.
"""

import asyncio
import struct
import time
from typing import NamedTuple

import uvloop

from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_CLIENT_ID = b"bench"


class Load(NamedTuple):
    """What is asked for at a time: connections, share-partitions a request, state batches in each."""

    connections: int
    partitions: int
    batches: int

    def __str__(self) -> str:
        return f"{self.connections} x {self.partitions} x {self.batches}"


class Figures(NamedTuple):
    """What came of it. Latencies in microseconds."""

    requests_per_second: float
    p50_us: float
    p99_us: float
    errors: int


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    header = _HEADER.pack(api_key, version, 1, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
    return _SIZE.pack(len(header) + len(body)) + header + body


def _initialize_frame(group: str, topic_id: bytes, load: Load) -> bytes:
    parts = [initialize_api.PartitionData(partition, 0, 0) for partition in range(load.partitions)]
    request = initialize_api.InitializeShareGroupStateRequest(
        group, [initialize_api.InitializeStateData(topic_id, parts)]
    )
    return _frame(initialize_api.API_KEY, 0, initialize_api.encode_request(request, 0))


def _write_frame(group: str, topic_id: bytes, load: Load, turn: int) -> bytes:
    """Return a write whose batches lie behind those of the last turn, and whose start offset follows."""
    first = 1_000 + turn * 2 * load.batches
    batches = pack(StateBatch(first + 2 * n, first + 2 * n, 2, 1) for n in range(load.batches))
    start_offset = first - 2 * load.batches
    parts = [
        write_api.PartitionData(partition, 0, 0, start_offset, 0, batches)
        for partition in range(load.partitions)
    ]
    request = write_api.WriteShareGroupStateRequest(group, [write_api.WriteStateData(topic_id, parts)])
    return _frame(write_api.API_KEY, 1, write_api.encode_request(request, 1))


class _Writer(asyncio.Protocol):
    """One connection that sends its frames in turn, the next one when the answer is there."""

    def __init__(self, initialise: bytes, frames: list[bytes]) -> None:
        self._initialise = initialise
        self._frames = frames
        self._turn = 0
        self._received = b""
        self._sent_s = 0.0
        self._until_s = 0.0
        self.latencies: list[float] = []
        self.errors = 0
        self.ready = asyncio.get_running_loop().create_future()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._initialise)  # type: ignore[attr-defined]

    def begin(self, until_s: float) -> None:
        self._until_s = until_s
        self._send()

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(self._frames[self._turn % len(self._frames)])  # type: ignore[attr-defined]
        self._turn += 1

    def data_received(self, data: bytes) -> None:
        data = self._received + data if self._received else data
        if len(data) < 4 or len(data) < 4 + _SIZE.unpack_from(data)[0]:
            self._received = data
            return
        self._received = b""
        if not self.ready.done():
            self.ready.set_result(None)
            return
        now_s = time.perf_counter()
        self.latencies.append(now_s - self._sent_s)
        # The first partition's error code stands behind size, header, counts, topic id and partition.
        if data[30:32] != b"\0\0":
            self.errors += 1
        if now_s < self._until_s:
            self._send()
        else:
            self.done.set_result(None)


async def _run(host: str, port: int, topic_id: bytes, load: Load, seconds: float) -> Figures:
    loop = asyncio.get_running_loop()
    writers = []
    transports = []
    for number in range(load.connections):
        group = f"bench-{load}-{number}"
        frames = [_write_frame(group, topic_id, load, turn) for turn in range(64)]
        initialise = _initialize_frame(group, topic_id, load)
        transport, writer = await loop.create_connection(
            lambda initialise=initialise, frames=frames: _Writer(initialise, frames), host, port
        )
        await writer.ready
        writers.append(writer)
        transports.append(transport)
    began_s = time.perf_counter()
    for writer in writers:
        writer.begin(began_s + seconds)
    await asyncio.gather(*(writer.done for writer in writers))
    took_s = time.perf_counter() - began_s
    for transport in transports:
        transport.close()
    latencies = sorted(latency for writer in writers for latency in writer.latencies)
    return Figures(
        len(latencies) / took_s,
        latencies[len(latencies) // 2] * 1e6,
        latencies[int(len(latencies) * 0.99)] * 1e6,
        sum(writer.errors for writer in writers),
    )


def measure(host: str, port: int, topic_id: bytes, load: Load, seconds: float) -> Figures:
    """Drive a coordinator with a load for some seconds. Its state must not know the groups yet, or may."""
    return uvloop.run(_run(host, port, topic_id, load, seconds))
