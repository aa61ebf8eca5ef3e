"""The clients in Python, for machines without a C compiler.

From the second lap on they write again what was written before, as moving the offsets takes too long here.
"""

import asyncio
import struct
import time

from tests.benchmarks.frames import Frame

_SIZE = struct.Struct(">i")


class _Client(asyncio.Protocol):
    """One connection that sends its frames in turn, the next one when the answer is there."""

    def __init__(self, first: list[bytes], frames: list[bytes]) -> None:
        self._first = first
        self._frames = frames
        self._turn = 0
        self._received = b""
        self._sent_s = 0.0
        self._until_s = 0.0
        self._turns_max = 0
        self.latencies: list[float] = []
        self.errors = 0
        self.ready = asyncio.get_running_loop().create_future()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._first.pop(0))  # type: ignore[attr-defined]

    def begin(self, until_s: float, turns_max: int) -> None:
        self._until_s = until_s
        self._turns_max = turns_max
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
        if now_s < self._until_s and not 0 < self._turns_max <= self._turn:
            self._send()
        else:
            self.done.set_result(None)


async def drive(
    host: str,
    port: int,
    loads: list[tuple[list[Frame], list[Frame]]],
    seconds: float,
    answers_max: int,
) -> tuple[float, float, float, float, float, int]:
    """Run the clients, each with its part of `answers_max` if that is not 0.

    Returns answers a second, p50, p99, p99.9 and greatest latency in µs, and errors.
    """
    loop = asyncio.get_running_loop()
    clients = []
    transports = []
    for first, frames in loads:
        transport, client = await loop.create_connection(
            lambda first=first, frames=frames: _Client(
                [frame.data for frame in first], [frame.data for frame in frames]
            ),
            host,
            port,
        )
        await client.ready
        clients.append(client)
        transports.append(transport)
    began_s = time.perf_counter()
    for client in clients:
        client.begin(began_s + seconds, -(-answers_max // len(clients)))
    await asyncio.gather(*(client.done for client in clients))
    took_s = time.perf_counter() - began_s
    for transport in transports:
        transport.close()
    latencies = sorted(latency for client in clients for latency in client.latencies)
    return (
        len(latencies) / took_s,
        latencies[len(latencies) // 2] * 1e6,
        latencies[int(len(latencies) * 0.99)] * 1e6,
        latencies[int(len(latencies) * 0.999)] * 1e6,
        latencies[-1] * 1e6,
        sum(client.errors for client in clients),
    )
