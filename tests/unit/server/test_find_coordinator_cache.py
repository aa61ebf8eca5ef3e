"""The cache of FindCoordinator responses: invalidation and size."""

import pytest

from coordinator.serve.server import api as api_module
from protocol.errors import ErrorCode
from protocol.messages import find_coordinator
from tests.unit.server.test_server import find_coordinator_body
from tests.unit.server.wire import WireClient, request_frame, serve_coordinator

KEY = "group:AAAAAAAAAAAAAAAAAAAAAQ:{}"


async def find_coordinator_error_code(client: WireClient, partition: int) -> int:
    """Send FindCoordinator for a share-partition; return the error code."""
    client.send(request_frame(10, 6, partition, find_coordinator_body(KEY.format(partition))))
    _, rest = await client.read_frame()
    (coordinator,) = find_coordinator.decode_response(rest, 1, 6).coordinators
    return coordinator.error_code


async def test_cached_responses_are_dropped_when_owners_change() -> None:
    async with serve_coordinator() as one:
        client = await one.connect()
        assert await find_coordinator_error_code(client, 0) == ErrorCode.NONE
        one.directory.follow(None)
        assert await find_coordinator_error_code(client, 0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        one.directory.advertise(one.directory.advertised)
        assert await find_coordinator_error_code(client, 0) == ErrorCode.NONE


async def test_cache_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "CACHED_RESPONSES_MAX", 3)
    async with serve_coordinator() as one:
        client = await one.connect()
        for partition in range(10):
            assert await find_coordinator_error_code(client, partition) == ErrorCode.NONE
            assert len(one.listener._listener_security.api._find_coordinator_cache) <= 3
