"""Reading the owners of shards is repeated with growing pauses while it fails."""

import asyncio
from itertools import pairwise

from coordinator.cluster.kafka.group_results import DescribeResult
from coordinator.cluster.ownership.group_view_reader import GroupViewReader
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.errors import LogUnavailable
from tests.simulation.loop import SimLoop

LIMITS = GroupLimits(retry_pause_first_s=0.1, retry_pause_max_s=1.0)


def test_failed_reads_are_repeated_with_growing_pauses() -> None:
    loop = SimLoop()
    reads_s: list[float] = []

    async def describe() -> DescribeResult:
        reads_s.append(loop.time())
        assert len(reads_s) < 100, "the reads do not pause"
        raise LogUnavailable("no broker")

    async def run_test() -> None:
        reader = GroupViewReader(describe, lambda view: None, state_partitions=4, limits=LIMITS)
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

    try:
        loop.run_until_complete(run_test())
    finally:
        loop.close()
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(reads_s)]
    assert pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
