"""The load generator in Python, for machines without a C compiler.

Repeated frames have the same offsets and epochs, because changing them takes too long in Python.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

from protocol.frames import FrameReader
from tests.benchmarks.frames import API_KEYS, ClientRequests, Frame

_FRAME_BYTES_MAX = 1 << 28


class GeneratorResult(NamedTuple):
    """The figures of a run: responses per second, latencies in µs, and numbers of all and failed responses.

    The latencies are p50, p99, p99.9 and the maximum.
    """

    measured: tuple[float, float, float, float, float]
    answers: int
    errors: int
    first_error: int


def error_codes(request: bytes, response: bytes) -> Iterator[int]:
    """Yield the error codes in a response. The request and the response have no size prefix."""
    api_key, version = int.from_bytes(request[:2], "big"), int.from_bytes(request[2:4], "big")
    # Correlation id and tags come first.
    decoded: Any = API_KEYS[api_key].decode_response(response, 5, version)
    if hasattr(decoded, "coordinators"):
        yield from (coordinator.error_code for coordinator in decoded.coordinators)
    else:
        yield from (part.error_code for topic in decoded.results for part in topic.partitions)


class _LoadConnection(asyncio.Protocol):
    """A connection that keeps a number of requests in flight."""

    def __init__(self, client: ClientRequests) -> None:
        self._client = client
        self._reader = FrameReader(_FRAME_BYTES_MAX)
        self._in_flight: deque[tuple[bytes, float]] = deque()
        self._prologue = deque(client.prologue)
        self._next = 0
        self._until_s = 0.0
        self._requests_max = 0
        self.latencies: list[float] = []
        self.errors: list[int] = []
        self.ready = asyncio.get_running_loop().create_future()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send_or_finish()

    def begin(self, until_s: float, requests_max: int) -> None:
        """Start to send the measured requests, until a time or a number of requests is reached."""
        self._until_s = until_s
        self._requests_max = requests_max
        for _ in range(self._client.in_flight):
            self._send_next()

    def _send_frame(self, frame: Frame) -> None:
        self._in_flight.append((frame.data[4:], time.perf_counter()))
        self._transport.write(frame.data)

    def _send_next(self) -> None:
        self._send_frame(self._client.run[self._next % len(self._client.run)])
        self._next += 1

    def data_received(self, data: bytes) -> None:
        for response in self._reader.receive_data(data):
            now_s = time.perf_counter()
            request, sent_s = self._in_flight.popleft()
            failed = next(filter(None, error_codes(request, response)), 0)
            if failed:
                self.errors.append(failed)
            if self._until_s:
                self.latencies.append(now_s - sent_s)
            self._send_or_finish()

    def _send_or_finish(self) -> None:
        if not self._until_s:
            if self._prologue:
                self._send_frame(self._prologue.popleft())
            elif not self.ready.done():
                self.ready.set_result(None)
        elif time.perf_counter() >= self._until_s or 0 < self._requests_max <= self._next:
            if not self._in_flight:
                self.done.set_result(None)
        elif self._client.interval_ms:
            self._send_after_interval(self._client.interval_ms / 1000)
        else:
            self._send_next()

    def _send_after_interval(self, interval_s: float) -> None:
        left_s = self._until_s - time.perf_counter()
        loop = asyncio.get_running_loop()
        if interval_s < left_s:
            loop.call_later(interval_s, self._send_next)
        else:
            loop.call_later(left_s, self.done.set_result, None)


async def drive_clients(
    host: str, port: int, clients: Sequence[ClientRequests], seconds: float, answers_max: int
) -> GeneratorResult:
    """Run the clients; each sends an equal part of `answers_max` requests, without a limit if that is 0."""
    loop = asyncio.get_running_loop()
    connections = []
    transports = []
    for client in clients:
        transport, connection = await loop.create_connection(
            lambda client=client: _LoadConnection(client), host, port
        )
        await connection.ready
        connections.append(connection)
        transports.append(transport)
    began_s = time.perf_counter()
    for connection in connections:
        connection.begin(began_s + seconds, -(-answers_max // len(clients)))
    await asyncio.gather(*(connection.done for connection in connections))
    took_s = time.perf_counter() - began_s
    for transport in transports:
        transport.close()
    latencies = sorted(latency for connection in connections for latency in connection.latencies)
    errors = [code for connection in connections for code in connection.errors]
    measured = (
        len(latencies) / took_s,
        latencies[len(latencies) // 2] * 1e6,
        latencies[int(len(latencies) * 0.99)] * 1e6,
        latencies[int(len(latencies) * 0.999)] * 1e6,
        latencies[-1] * 1e6,
    )
    return GeneratorResult(measured, len(latencies), len(errors), errors[0] if errors else 0)
