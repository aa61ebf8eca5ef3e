"""Produce requests on an aiokafka connection, to a server whose responses the test defines."""

import asyncio
from collections.abc import Awaitable, Callable
from struct import pack

import pytest
from aiokafka.conn import AIOKafkaConnection

from coordinator.cluster.kafka.broker_results import NoResponse, ProduceResult
from coordinator.cluster.kafka.produce_connection import ProduceConnection
from protocol.messages import produce, request_header, response_header
from protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from protocol.messages.response_header import ResponseHeader

TOPIC_ID = bytes(range(16))
TIMEOUT_S = 0.2
# Returns the response to a request with this correlation id and body, or None to send nothing.
Server = Callable[[int, produce.ProduceRequest], bytes | None]


def encode_produce_response(correlation_id: int, request: produce.ProduceRequest) -> bytes:
    """Return a response with base offset 100 + partition for each batch."""
    results = [
        PartitionProduceResponse(part.index, 0, 100 + part.index, -1, 0, [], None)
        for part in request.topic_data[0].partition_data
    ]
    body = produce.encode_response(ProduceResponse([TopicProduceResponse(TOPIC_ID, results)], 0), 13)
    frame = response_header.encode(ResponseHeader(correlation_id), 1) + body
    return pack(">i", len(frame)) + frame


def run_with_connection(
    server: Server, scenario: Callable[[ProduceConnection, list[str]], Awaitable[None]]
) -> None:
    """Call `scenario` with a connection to a server, and a list with an entry for each call of `failed`."""

    serving: list[asyncio.Task[None]] = []

    async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.append(task)
        while size := await reader.read(4):
            frame = await reader.readexactly(int.from_bytes(size))
            header, offset = request_header.decode(frame, 0, 2)
            assert (header.request_api_key, header.client_id) == (produce.API_KEY, "me")
            response = server(header.correlation_id, produce.decode_request(frame, offset, 13))
            if response is not None:
                writer.write(response)
        writer.close()
        await writer.wait_closed()

    async def connect_and_run_scenario() -> None:
        listening = await asyncio.start_server(serve_client, "127.0.0.1", 0)
        opened = ConnectionWithoutApiVersions("127.0.0.1", listening.sockets[0].getsockname()[1])
        await opened.connect()
        failures: list[str] = []
        connection = ProduceConnection(
            opened,
            node=1,
            client_id="me",
            timeout_s=TIMEOUT_S,
            failed=lambda: failures.append("failed"),
        )
        await scenario(connection, failures)
        await opened.close()
        await asyncio.wait(serving)
        listening.close()

    asyncio.run(connect_and_run_scenario())


class ConnectionWithoutApiVersions(AIOKafkaConnection):  # type: ignore[misc]
    """An aiokafka connection that sends no ApiVersions request."""

    async def _do_version_lookup(self) -> None:
        pass


def test_each_request_gets_its_own_results() -> None:
    async def run_test(connection: ProduceConnection, failures: list[str]) -> None:
        for partitions in ([3], [0, 7], [5]):
            results = await connection.send(TOPIC_ID, [(number, b"batch") for number in partitions], 1_000)
            assert results == {number: ProduceResult(0, 100 + number) for number in partitions}
        assert not failures

    run_with_connection(encode_produce_response, run_test)


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(lambda number, request: None, id="no response"),
        pytest.param(
            lambda number, request: encode_produce_response(number + 1, request),
            id="correlation id of another",
        ),
        pytest.param(lambda number, request: pack(">i", 6) + pack(">iH", number, 9), id="undecodable"),
        pytest.param(lambda number, request: pack(">i", -1), id="negative size"),
    ],
)
def test_request_without_a_valid_response_fails_and_closes_the_connection(server: Server) -> None:
    async def run_test(connection: ProduceConnection, failures: list[str]) -> None:
        with pytest.raises(NoResponse) as failed:
            await connection.send(TOPIC_ID, [(0, b"batch")], 1_000)
        assert failed.value.sent
        assert failures == ["failed"]
        address = connection._connection.host, connection._connection.port
        assert not connection.is_open_to(address)

    run_with_connection(server, run_test)


def test_cancelled_request_leaves_the_connection_usable() -> None:
    async def run_test(connection: ProduceConnection, failures: list[str]) -> None:
        connection.send(TOPIC_ID, [(0, b"batch")], 1_000).cancel()
        while connection._response is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await connection.send(TOPIC_ID, [(1, b"batch")], 1_000))[1].base_offset == 101
        assert not failures

    run_with_connection(encode_produce_response, run_test)
