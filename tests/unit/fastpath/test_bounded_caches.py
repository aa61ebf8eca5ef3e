"""The compiled fast path caches the shards of share-partitions, and the size of its cache is bounded."""

from typing import Any

import pytest

from protocol.messages import write_share_group_state as write_api
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.unit.server.wire import request_frame

compiled = pytest.importorskip(
    "coordinator.fastpath._compiled", reason="the compiled module was not built: is there a C compiler?"
)


@pytest.fixture
def cached_keys(monkeypatch: pytest.MonkeyPatch) -> list[SharePartitionKey]:
    """The share-partitions that the fast path added to its cache, in order."""
    keys: list[SharePartitionKey] = []

    def record_key(key: SharePartitionKey, state_partitions: int) -> int:
        keys.append(key)
        return state_partition(key, state_partitions)

    monkeypatch.setattr(compiled, "state_partition", record_key)
    return keys


def parse_request(
    writes: Any, topics: int, partitions: list[int], first: int = 0, group: str = "group"
) -> None:
    """Parse a write request that the fast path rejects after parsing, because it ends with an extra byte."""
    parts = [write_api.PartitionData(partition, 0, 0, -1, -1, b"") for partition in partitions]
    named = [
        write_api.WriteStateData(number.to_bytes(16, "big"), parts) for number in range(first, first + topics)
    ]
    body = write_api.encode_request(write_api.WriteShareGroupStateRequest(group, named), 1)
    frame = request_frame(write_api.API_KEY, 1, 1, body)[4:] + b"\0"
    while (is_executed := writes.try_execute(frame, None, None, 0.0)) is None:
        pass
    assert is_executed is False


def make_fast_path_executor() -> Any:
    writes = compiled.FastPathExecutor([None] * 50, lambda: 0.0, {}, {}, None)
    writes.elements_max = 1_000_000
    return writes


def test_only_requested_share_partitions_are_cached(cached_keys: list[SharePartitionKey]) -> None:
    writes = make_fast_path_executor()
    parse_request(writes, 20, [7, 8191, 2**31 - 1])
    assert [(key.topic_id[-1], key.partition) for key in cached_keys] == [
        (topic, partition) for topic in range(20) for partition in (7, 8191, 2**31 - 1)
    ]
    parse_request(writes, 20, [7, 8191, 2**31 - 1])
    assert len(cached_keys) == 60


def test_large_request_is_cached_in_steps(cached_keys: list[SharePartitionKey]) -> None:
    writes = make_fast_path_executor()
    topic = write_api.WriteStateData(
        bytes(16), [write_api.PartitionData(number, 0, 0, -1, -1, b"") for number in range(7_000)]
    )
    body = write_api.encode_request(write_api.WriteShareGroupStateRequest("group", [topic]), 1)
    frame = request_frame(write_api.API_KEY, 1, 1, body)[4:] + b"\0"
    cached = []
    for _ in range(3):
        cached.append((writes.try_execute(frame, None, None, 0.0), len(cached_keys)))
    assert cached == [(None, 3_000), (None, 6_000), (False, 7_000)]


@pytest.mark.slow
def test_request_over_the_cache_limit_takes_the_general_path(
    cached_keys: list[SharePartitionKey],
) -> None:
    writes = make_fast_path_executor()
    parse_request(writes, 1, list(range(300_000)))
    assert 200_000 < len(cached_keys) < 300_000
    # The full cache was cleared, so the next request adds its share-partition again.
    cached_keys.clear()
    parse_request(writes, 1, [0])
    assert len(cached_keys) == 1


def test_long_group_id_takes_the_general_path(cached_keys: list[SharePartitionKey]) -> None:
    writes = make_fast_path_executor()
    parse_request(writes, 1, [0], group="g" * 255)
    assert len(cached_keys) == 1
    parse_request(writes, 1, [0], group="g" * 256)
    assert len(cached_keys) == 1
