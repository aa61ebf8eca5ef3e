"""A share coordinator on a real socket, correct by default and faulty on demand.

By default, the real service answers the five RPCs. `plan_answers` sets a list of answers for an API; each
request takes the next answer. After the list is used up, answers are correct again.
"""

import asyncio
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from coordinator.client import rpcs
from coordinator.client.rpcs import RPC_BY_API_KEY
from coordinator.metrics import Metrics
from coordinator.serve.service import Service
from protocol.errors import ErrorCode
from protocol.messages import (
    APIS,
    api_versions,
    find_coordinator,
    request_header,
    request_header_version,
    response_header,
    response_header_version,
)
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from tests.builders import execute
from tests.unit.client.our_coordinator import make_memory_runtime

FIND, VERSIONS = find_coordinator.API_KEY, api_versions.API_KEY
INITIALIZE, READ, WRITE = initialize_api.API_KEY, read_api.API_KEY, write_api.API_KEY
DELETE, SUMMARY = delete_api.API_KEY, summary_api.API_KEY

# The APIs and versions that a correct coordinator serves.
SERVED = {key: (APIS[key].min_version, APIS[key].max_version) for key in (FIND, VERSIONS, 83, 84, 85, 86, 87)}


class Request(NamedTuple):
    """A received request. `connection` is the number of its connection, counted from 0."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    message: Any
    connection: int


class ConnectionClosed(Exception):
    """Makes the fake coordinator send `last_bytes` and close the connection."""

    def __init__(self, last_bytes: bytes = b"") -> None:
        super().__init__()
        self.last_bytes = last_bytes


# A function that returns the response frame of a request, without its size prefix.
Answer = Callable[["FakeCoordinator", Request], Awaitable[bytes]]


class FakeCoordinator:
    """One coordinator node. As a context manager, it listens on `address`."""

    def __init__(self, *, served: dict[int, tuple[int, int]] | None = None) -> None:
        self.served = dict(SERVED if served is None else served)
        self.requests: list[Request] = []
        self.arrived = asyncio.Condition()
        # The coordinator of a key: (node id, host, port, error code, message).
        self.coordinator_of: Callable[[str], tuple[int, str, int, int, str]] = self.own_address
        self._planned: dict[int, list[Answer]] = {}
        self._runtime = make_memory_runtime(Metrics())
        self._service = Service(self._runtime)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0
        # The current and the greatest number of requests without a response.
        self.unanswered = 0
        self.unanswered_max = 0
        # If set, each connection reads `reads_max` requests, and only the size prefix of the next request.
        self.reads_max: int | None = None
        self.stalled = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._runtime.start()
        self._server = await asyncio.start_server(self._serve_connection, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runtime.stop()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def own_address(self, text: str) -> tuple[int, str, int, int, str]:
        """Return a FindCoordinator result that names this fake coordinator."""
        return (1_000_000, "127.0.0.1", self.port, 0, "")

    def set_coordinator(self, other: "FakeCoordinator", node_id: int = 1_000_001) -> None:
        """Let FindCoordinator return another node for all keys from now on."""
        self.coordinator_of = lambda text: (node_id, "127.0.0.1", other.port, 0, "")

    def reset_connections(self) -> None:
        """Reset all connections when control returns to the event loop."""
        for writer in self._writers:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    def plan_answers(self, api_key: int, *answers: Answer) -> None:
        """Set the answers to the next requests of an API."""
        self._planned.setdefault(api_key, []).extend(answers)

    def count_requests(self, api_key: int) -> int:
        """Return the number of received requests of an API."""
        return sum(request.api_key == api_key for request in self.requests)

    async def wait_for_requests(self, api_key: int, requests: int) -> None:
        """Wait until the given number of requests of an API has been received."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: self.count_requests(api_key) >= requests)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        number = self.connections
        self.connections += 1
        self._writers.append(writer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._read_requests(reader, writer, number)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _read_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        """Read requests; a task answers them in order."""
        answers: asyncio.Queue[Request] = asyncio.Queue()
        answering = asyncio.create_task(self._answer_in_order(answers, writer))
        try:
            for read in itertools.count():
                size = int.from_bytes(await reader.readexactly(4), "big")
                if read == self.reads_max:
                    self.stalled.set()
                    await asyncio.Event().wait()
                request = _decode_request(await reader.readexactly(size), number)
                self.unanswered += 1
                self.unanswered_max = max(self.unanswered, self.unanswered_max)
                async with self.arrived:
                    self.requests.append(request)
                    self.arrived.notify_all()
                answers.put_nowait(request)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    async def _answer_in_order(self, requests: asyncio.Queue[Request], writer: asyncio.StreamWriter) -> None:
        while True:
            request = await requests.get()
            planned = self._planned.get(request.api_key)
            answer = planned.pop(0) if planned else answer_correctly
            try:
                frame = await answer(self, request)
            except ConnectionClosed as close_connection:
                writer.write(close_connection.last_bytes)
                writer.close()
                return
            self.unanswered -= 1
            writer.write(len(frame).to_bytes(4, "big") + frame)

    async def execute_request(self, request: Request) -> Any:
        """Execute the request and return the correct response."""
        if request.api_key == VERSIONS:
            return api_versions.ApiVersionsResponse(
                api_keys=[api_versions.ApiVersion(key, *versions) for key, versions in self.served.items()]
            )
        if request.api_key == FIND:
            assert request.message.key_type == 2
            return find_coordinator.FindCoordinatorResponse(
                coordinators=[
                    find_coordinator.Coordinator(text, *self.coordinator_of(text))
                    for text in request.message.coordinator_keys
                ]
            )
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        execute(self._service, RPC_BY_API_KEY[request.api_key], request.message, None, response.set_result)
        return await response


def _decode_request(frame: bytes, connection: int) -> Request:
    api_key, version = (int.from_bytes(frame[at : at + 2], "big", signed=True) for at in (0, 2))
    header, offset = request_header.decode(frame, 0, request_header_version(api_key, version))
    # The layout of a newer version is unknown, so the body is not decoded.
    known = version <= APIS[api_key].max_version
    message = APIS[api_key].module.decode_request(frame, offset, version) if known else None
    return Request(api_key, version, header.correlation_id, header.client_id, message, connection)


def encode_response(request: Request, response: Any, version: int | None = None) -> bytes:
    """Return a response frame without its size prefix. By default, use the version of the request."""
    version = request.version if version is None else version
    header = response_header.encode(
        response_header.ResponseHeader(request.correlation_id),
        response_header_version(request.api_key, version),
    )
    module: Any = APIS[request.api_key].module
    return header + bytes(module.encode_response(response, version))


async def answer_correctly(fake: FakeCoordinator, request: Request) -> bytes:
    """Return the correct response."""
    lowest, highest = fake.served[request.api_key]
    if request.api_key == VERSIONS and not lowest <= request.version <= highest:
        response = await fake.execute_request(request)
        response.error_code = int(ErrorCode.UNSUPPORTED_VERSION)
        return encode_response(request, response, version=0)
    assert lowest <= request.version <= highest, "a client asked for a version that is not served"
    return encode_response(request, await fake.execute_request(request))


def error_answer(error_code: int, message: str | None = None) -> Answer:
    """Return an answer with an error for each share-partition; no state changes."""

    async def answer_with_error(fake: FakeCoordinator, request: Request) -> bytes:
        rpc = rpcs.RPC_BY_API_KEY[request.api_key]
        results = [
            (key, rpc.partition_result(key.partition, error_code, message))
            for key in rpcs.parts_by_key(request.message)
        ]
        return encode_response(request, rpcs.make_response(rpc, results))

    return answer_with_error


async def never_answer(fake: FakeCoordinator, request: Request) -> bytes:
    """Leave the request and all later requests of the connection unanswered."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def delayed_answer(released: asyncio.Event) -> Answer:
    """Return an answer that is correct, but delayed until `released` is set."""

    async def answer_when_released(fake: FakeCoordinator, request: Request) -> bytes:
        await released.wait()
        return await answer_correctly(fake, request)

    return answer_when_released


async def close_connection(fake: FakeCoordinator, request: Request) -> bytes:
    """Close the connection without executing the request."""
    raise ConnectionClosed


async def close_after_execution(fake: FakeCoordinator, request: Request) -> bytes:
    """Execute the request, then close the connection in the middle of the response frame."""
    frame = await answer_correctly(fake, request)
    raise ConnectionClosed(len(frame).to_bytes(4, "big") + frame[: len(frame) // 2])


async def send_truncated_response(fake: FakeCoordinator, request: Request) -> bytes:
    """Return a complete frame whose body lacks its last two bytes."""
    return (await answer_correctly(fake, request))[:-2]


async def send_wrong_correlation_id(fake: FakeCoordinator, request: Request) -> bytes:
    return await answer_correctly(fake, request._replace(correlation_id=request.correlation_id + 1))


async def send_oversized_frame_size(fake: FakeCoordinator, request: Request) -> bytes:
    """Send the size prefix of a frame of 2 GiB."""
    raise ConnectionClosed(b"\x7f\xff\xff\xff" + b"x" * 1_000)


async def send_negative_frame_size(fake: FakeCoordinator, request: Request) -> bytes:
    raise ConnectionClosed(b"\xff\xff\xff\xff")


def lookup_error_answer(error_code: int) -> Answer:
    """Return an answer to FindCoordinator with an error for each key."""

    async def answer_with_error(fake: FakeCoordinator, request: Request) -> bytes:
        coordinators = [
            find_coordinator.Coordinator(text, -1, "", -1, error_code, "not now")
            for text in request.message.coordinator_keys
        ]
        return encode_response(request, find_coordinator.FindCoordinatorResponse(coordinators=coordinators))

    return answer_with_error


async def send_empty_lookup_response(fake: FakeCoordinator, request: Request) -> bytes:
    """Return a FindCoordinator response without coordinators."""
    return encode_response(request, find_coordinator.FindCoordinatorResponse())


async def send_no_results(fake: FakeCoordinator, request: Request) -> bytes:
    """Return a response without results, for one of the five RPCs."""
    return encode_response(request, rpcs.make_response(rpcs.RPC_BY_API_KEY[request.api_key], ()))
