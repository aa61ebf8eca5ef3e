"""The queue of large requests."""

import asyncio
from collections.abc import Callable, Iterator

from coordinator.serve.server.large_requests import LargeRequests


class Origin:
    """A connection that stays open."""

    disconnected = False

    def handler_failed(self, error: Exception) -> None:
        raise AssertionError from error


def test_connection_has_large_requests_until_the_last_one_ends() -> None:
    async def run_test() -> None:
        requests, origin, seen = LargeRequests(1 << 20, 100), Origin(), []

        def begin(respond: Callable[[bytes], None]) -> Iterator[None]:
            yield
            seen.append(requests.has_request_of(origin))
            respond(b"")

        for _ in range(2):
            requests.add(origin, 1_000, lambda response: None, begin)  # type: ignore[arg-type]
        while len(seen) < 2 or requests.has_request_of(origin):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert seen == [True, True]
        assert not requests.has_request_of(Origin())

    asyncio.run(asyncio.wait_for(run_test(), 30))
