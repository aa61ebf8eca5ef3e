"""A closed loop of clients: each connection has one request in flight, as brokers do.

The generator is Python on uvloop and shares the machine with what it measures, so it bounds the figures from
above: they compare what ran in the same run, and are no one's limit.
"""

import asyncio
import struct
import time
from typing import NamedTuple

import uvloop

from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_CLIENT_ID = b"bench"


class Load(NamedTuple):
    """What is asked for at a time: connections, share-partitions a request, state batches in each.

    `rpc` is "write", or "read" or "summary", which ask for what was written before.
    """

    connections: int
    partitions: int
    batches: int
    rpc: str = "write"

    def __str__(self) -> str:
        return f"{self.connections} x {self.partitions} x {self.batches}" + (
            "" if self.rpc == "write" else f" {self.rpc}"
        )


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


def _read_frame(group: str, topic_id: bytes, load: Load) -> bytes:
    parts = [read_api.PartitionData(partition, 0) for partition in range(load.partitions)]
    request = read_api.ReadShareGroupStateRequest(group, [read_api.ReadStateData(topic_id, parts)])
    return _frame(read_api.API_KEY, 0, read_api.encode_request(request, 0))


def _summary_frame(group: str, topic_id: bytes, load: Load) -> bytes:
    parts = [summary_api.PartitionData(partition, 0) for partition in range(load.partitions)]
    topics = [summary_api.ReadStateSummaryData(topic_id, parts)]
    request = summary_api.ReadShareGroupStateSummaryRequest(group, topics)
    return _frame(summary_api.API_KEY, 1, summary_api.encode_request(request, 1))


def _frames(group: str, topic_id: bytes, load: Load) -> tuple[list[bytes], list[bytes]]:
    """Return what goes first, and what is then sent again and again and measured."""
    first = [_initialize_frame(group, topic_id, load)]
    writes = [_write_frame(group, topic_id, load, turn) for turn in range(64)]
    if load.rpc == "write":
        return first, writes
    ask = _read_frame if load.rpc == "read" else _summary_frame
    return [*first, writes[0]], [ask(group, topic_id, load)]


class _Client(asyncio.Protocol):
    """One connection that sends its frames in turn, the next one when the answer is there."""

    def __init__(self, first: list[bytes], frames: list[bytes]) -> None:
        self._first = first
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
        transport.write(self._first.pop(0))  # type: ignore[attr-defined]

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
        # The first partition's error code stands behind size, header, counts, topic id and partition.
        if data[31:33] != b"\0\0":
            self.errors += 1
        if not self.ready.done():
            if self._first:
                self._transport.write(self._first.pop(0))  # type: ignore[attr-defined]
            else:
                self.ready.set_result(None)
            return
        now_s = time.perf_counter()
        self.latencies.append(now_s - self._sent_s)
        if now_s < self._until_s:
            self._send()
        else:
            self.done.set_result(None)


async def _run(host: str, port: int, topic_id: bytes, load: Load, seconds: float) -> Figures:
    loop = asyncio.get_running_loop()
    clients = []
    transports = []
    for number in range(load.connections):
        first, frames = _frames(f"bench-{load}-{number}", topic_id, load)
        transport, client = await loop.create_connection(
            lambda first=first, frames=frames: _Client(first, frames), host, port
        )
        await client.ready
        clients.append(client)
        transports.append(transport)
    began_s = time.perf_counter()
    for client in clients:
        client.begin(began_s + seconds)
    await asyncio.gather(*(client.done for client in clients))
    took_s = time.perf_counter() - began_s
    for transport in transports:
        transport.close()
    latencies = sorted(latency for client in clients for latency in client.latencies)
    return Figures(
        len(latencies) / took_s,
        latencies[len(latencies) // 2] * 1e6,
        latencies[int(len(latencies) * 0.99)] * 1e6,
        sum(client.errors for client in clients),
    )


def measure(host: str, port: int, topic_id: bytes, load: Load, seconds: float) -> Figures:
    """Drive a coordinator with a load for some seconds. Its state must not know the groups yet, or may."""
    return uvloop.run(_run(host, port, topic_id, load, seconds))
