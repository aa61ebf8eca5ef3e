"""The queue of large requests."""

from collections.abc import Callable, Iterator

from coordinator.serve.server.large_requests import LargeRequests
from tests.unit.coroutine_tests import wait_until


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
