"""Large requests: their queue, limits and responses."""

from collections.abc import Callable, Iterator
from typing import Any

from coordinator.serve.server import Api, ServerLimits
from coordinator.serve.server.error_responses import UNTRUSTED_ELEMENTS_MAX
from coordinator.serve.server.large_requests import LARGE_FIND_BYTES, LargeRequests
from coordinator.serve.server.listener_security import UnauthorizedHandler
from protocol.messages import (
    find_coordinator,
    initialize_share_group_state,
    read_share_group_state,
    write_share_group_state,
)
from tests.limits import frames
from tests.unit.coroutine_tests import wait_until
from tests.unit.server.wire import exchange_frame, request_frame, serve_coordinator


class OpenConnection:
    """A connection that its client does not close."""

    disconnected = False

    def handler_failed(self, error: Exception) -> None:
        raise AssertionError from error


async def test_connection_has_large_requests_until_the_last_one_ends() -> None:
    requests, connection, had_requests = LargeRequests(1 << 20, 100), OpenConnection(), []

    def execute_request(respond: Callable[[bytes], None]) -> Iterator[None]:
        yield
        had_requests.append(requests.has_request_of(connection))
        respond(b"")

    for _ in range(2):
        requests.add(connection, 1_000, lambda response: None, execute_request)  # type: ignore[arg-type]
    await wait_until(lambda: len(had_requests) == 2 and not requests.has_request_of(connection))
    assert had_requests == [True, True]
    assert not requests.has_request_of(OpenConnection())


async def test_large_find_coordinator_returns_the_same_as_small_requests() -> None:
    keys = [b"group:AAECAwQFBgcICQoLDA0ODw:%d" % number for number in range(2_000)]
    keys[700] = b"not a key"
    async with serve_coordinator() as served:
        many = await exchange_frame(served, frames.make_find_with_keys(keys))
        assert many is not None
        together = find_coordinator.decode_response(many, 1, 6).coordinators
        each = []
        for begin in range(0, len(keys), 50):
            few = await exchange_frame(served, frames.make_find_with_keys(keys[begin : begin + 50]))
            assert few is not None
            each += find_coordinator.decode_response(few, 1, 6).coordinators
        assert together == each
        assert (
            len(frames.make_find_with_keys(keys))
            > LARGE_FIND_BYTES
            > len(frames.make_find_with_keys(keys[:50]))
        )


async def test_large_request_gets_all_results_before_the_next_response() -> None:
    """The response has two topics, and more results of the first one than are encoded in one step."""
    initialize = initialize_share_group_state
    partitions = {bytes(range(16)): 2_001, bytes(16): 2}
    topics = [
        initialize.InitializeStateData(
            topic_id, [initialize.PartitionData(partition, 1, 0) for partition in range(count)]
        )
        for topic_id, count in partitions.items()
    ]
    body = initialize.encode_request(initialize.InitializeShareGroupStateRequest("g", topics), 0)
    async with serve_coordinator() as served:
        client = await served.connect()
        client.send(request_frame(frames.INITIALIZE, 0, 3, body))
        client.send(frames.make_request_with_partitions(frames.READ, 1))
        correlation_id, response = await client.read_frame()
        assert (correlation_id, response[0]) == (3, 0)
        assert initialize.decode_response(response, 1, 0).results == [
            initialize.InitializeStateResult(
                topic_id, [initialize.PartitionResult(partition) for partition in range(count)]
            )
            for topic_id, count in partitions.items()
        ]
        (topic,) = read_share_group_state.decode_response((await client.read_frame())[1], 1, 0).results
        assert topic.partitions[0].state_epoch == 1
        requests, seconds = served.metrics.request_histograms()
        counted = {request: count for request, count in requests.items() if count}
        assert counted == {(frames.INITIALIZE, 0): 1, (frames.READ, 0): 1}
        assert seconds[frames.INITIALIZE].cumulative_counts()[1] < 60


async def test_disconnect_during_large_request_does_not_stop_next_one() -> None:
    async with serve_coordinator() as served:
        leaving, staying = await served.connect(), await served.connect()
        leaving.send(frames.make_request_with_partitions(frames.READ, 3_000))
        await leaving.writer.drain()
        staying.send(frames.make_request_with_partitions(frames.READ, 2_000))
        leaving.writer.close()
        assert len((await staying.read_frame())[1]) > 2_000


async def test_response_above_limit_returns_retriable_error_for_rest() -> None:
    async with serve_coordinator() as served:
        api: Any = served.listener._listener_security.api
        api._service.limits = api._service.limits._replace(response_bytes_max=1_000)
        api._fast_path_executor = api._service.fast_path_executor()
        await exchange_frame(served, frames.make_request_with_partitions(frames.INITIALIZE, 5))
        for partition in range(5):
            batches = frames.make_batches(30)
            await exchange_frame(served, frames.make_write(partition, batches, 30))
        read = await exchange_frame(served, frames.make_request_with_partitions(frames.READ, 5))
        assert read is not None
        (topic,) = read_share_group_state.decode_response(read, 1, 0).results
        assert [part.error_code for part in topic.partitions] == [0, 0, 15, 15, 15]


async def test_state_batches_of_a_write_are_limited() -> None:
    async with serve_coordinator() as served:
        for count in (20_000, 20_001):
            answer = await exchange_frame(served, frames.make_write_with_batches(count))
            assert answer is not None
            (topic,) = write_share_group_state.decode_response(answer, 1, 0).results
            (result,) = topic.partitions
            assert result.error_code == 42
            assert ("share.partition.write.max.batches" in (result.error_message or "")) == (count > 20_000)


async def test_different_reads_of_a_share_partition_are_limited() -> None:
    async with serve_coordinator() as served:
        await exchange_frame(served, frames.make_request_with_partitions(frames.INITIALIZE, 1))
        for leader_epochs, error_code in (([0] * 500, 0), ([*range(100)], 0), ([*range(100, 201)], 42)):
            answer = await exchange_frame(served, frames.make_reads_of_one_share_partition(leader_epochs))
            assert answer is not None
            (topic,) = read_share_group_state.decode_response(answer, 1, 0).results
            assert [part.error_code for part in topic.partitions] == [error_code]


async def test_unauthorized_client_gets_smallest_limits() -> None:
    """Only a request of at most 64 KiB and 1 000 elements is decoded, for an error response."""
    async with serve_coordinator() as served:
        api: Api = served.listener._listener_security.api
        refused = UnauthorizedHandler(api, served.metrics)
        served.listener._listener_security.api = refused  # type: ignore[assignment]
        refused.fast_path_executor = None  # type: ignore[attr-defined]
        keys = [b""] * UNTRUSTED_ELEMENTS_MAX
        answer = await exchange_frame(served, frames.make_find_with_keys(keys))
        assert answer is not None
        assert len(find_coordinator.decode_response(answer, 1, 6).coordinators) == UNTRUSTED_ELEMENTS_MAX
        assert await exchange_frame(served, frames.make_find_with_keys([*keys, b""])) is None
        assert (
            await exchange_frame(served, frames.make_find_with_keys([b"a" * ServerLimits().login_bytes_max]))
            is None
        )
