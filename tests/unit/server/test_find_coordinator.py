"""FindCoordinator: the cache of its responses, and its metrics; and the duration of ApiVersions."""

from itertools import count

import pytest

from coordinator.serve.server import api
from protocol.errors import ErrorCode
from protocol.messages import find_coordinator
from tests.builders import KEY
from tests.unit.server.wire import ServedCoordinator, WireClient, request_frame, serve_coordinator

FIND = find_coordinator.API_KEY


async def send_find_coordinator(client: WireClient, *keys: str, version: int = 6) -> None:
    request = find_coordinator.FindCoordinatorRequest(
        key="" if version >= 4 else keys[0],
        key_type=2 if version >= 6 else 0,
        coordinator_keys=list(keys) if version >= 4 else [],
    )
    body = find_coordinator.encode_request(request, version)
    client.send(request_frame(FIND, version, 1, body, flexible=version >= 3))
    await client.read_frame()


def count_by_error(served: ServedCoordinator) -> dict[int, int]:
    """Return the number of requests by error code."""
    return {code: number for (_, code), number in served.metrics.request_histograms()[0].items() if number}


async def test_cached_responses_are_dropped_when_owners_change() -> None:
    async with serve_coordinator() as served:
        client = await served.connect()
        await send_find_coordinator(client, str(KEY))
        served.directory.set_assignment(None)
        await send_find_coordinator(client, str(KEY))
        served.directory.advertise(served.directory.advertised)
        await send_find_coordinator(client, str(KEY))
        assert count_by_error(served) == {ErrorCode.NONE: 2, ErrorCode.COORDINATOR_NOT_AVAILABLE: 1}


async def test_cache_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "CACHED_RESPONSES_MAX", 3)
    async with serve_coordinator() as served:
        client = await served.connect()
        for partition in range(10):
            await send_find_coordinator(client, str(KEY._replace(partition=partition)))
            assert len(served.listener._listener_security.api._find_coordinator_cache) <= 3
        assert count_by_error(served) == {ErrorCode.NONE: 10}
        cache = served.listener._listener_security.api._find_coordinator_cache
        cache.clear()
        # The response to a small request may be large.
        await send_find_coordinator(client, *[""] * 400)
        assert not cache


async def test_requests_are_counted_by_the_first_error_code() -> None:
    async with serve_coordinator() as served:
        client = await served.connect()
        await send_find_coordinator(client, str(KEY))
        assert count_by_error(served) == {ErrorCode.NONE: 1}
        for _ in range(2):  # the second response comes from the cache
            await send_find_coordinator(client, str(KEY), "no share-partition")
        assert count_by_error(served) == {ErrorCode.NONE: 1, ErrorCode.INVALID_REQUEST: 2}
        await send_find_coordinator(client, "a consumer group", version=2)
        assert count_by_error(served) == {ErrorCode.NONE: 1, ErrorCode.INVALID_REQUEST: 3}


async def test_request_duration_is_counted_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = count(100.0, 0.5)
    monkeypatch.setattr(api, "monotonic_seconds", lambda: next(seconds), raising=False)
    async with serve_coordinator() as served:
        client = await served.connect()
        for _ in range(2):
            await send_find_coordinator(client, str(KEY))
        _, seconds_sum = served.metrics.request_histograms()[1][FIND].cumulative_counts()
        assert seconds_sum == 1.0


async def test_duration_of_api_versions_is_measured() -> None:
    async with serve_coordinator() as served:
        client = await served.connect()
        client.send(request_frame(18, 0, 5, b"", flexible=False))
        await client.read_frame()
        seconds = served.metrics.request_histograms()[1][18]
        assert seconds.cumulative_counts()[1] > 0
