"""Reading the owners of shards is repeated with growing pauses while it fails."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from coordinator.cluster.kafka.group_results import DescribeResult
from coordinator.cluster.ownership.group_view_reader import GroupViewReader
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.errors import LogUnavailable
from tests.simulation.loop import run

LIMITS = GroupLimits(retry_pause_first_s=0.1, retry_pause_max_s=1.0)


pytestmark = pytest.mark.run_with(function=run)


async def test_group_view_of_an_earlier_request_is_dropped() -> None:
    found: list[Any] = []
    reader = GroupViewReader(Any, found.append, state_partitions=4, limits=LIMITS)

    async def read_view(generation: int) -> Any:
        await asyncio.sleep(1)
        return generation

    reader._read_view = read_view  # type: ignore[method-assign]
    running = asyncio.create_task(reader.run())
    for generation in (1, 2):
        reader.start_reading(generation)
        await asyncio.sleep(0.5)
    await asyncio.sleep(5)
    assert found == [2]
    reader.start_reading(3)
    await asyncio.sleep(0.5)
    reader.cancel()
    await asyncio.sleep(5)
    assert found == [2]
    running.cancel()


async def test_failed_reads_are_repeated_with_growing_pauses() -> None:
    reads_s: list[float] = []

    async def fail_read() -> DescribeResult:
        reads_s.append(asyncio.get_running_loop().time())
        assert len(reads_s) < 100, "the reads do not pause"
        raise LogUnavailable("no broker")

    reader = GroupViewReader(fail_read, lambda view: None, state_partitions=4, limits=LIMITS)
    running = asyncio.create_task(reader.run())
    reader.start_reading(1)
    await asyncio.sleep(6)
    assert not reader.settled.is_set()
    reader.cancel()
    assert reader.settled.is_set()
    before = len(reads_s)
    await asyncio.sleep(6)
    assert len(reads_s) == before
    running.cancel()
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(reads_s)]
    assert pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
