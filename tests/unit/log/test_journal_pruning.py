"""The journal removes only records that are not needed: pruning, whole segments, compaction."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator.client.rpcs import INITIALIZE, READ, WRITE
from coordinator.log.journal import Journal
from coordinator.log.journal.scan import segment_name
from coordinator.serve.runtime import RuntimeLimits
from tests.builders import (
    ACKNOWLEDGED,
    AVAILABLE,
    make_initialize,
    make_read,
    make_write,
    unpack_batches,
)
from tests.simulation.disk import DiskFaults
from tests.unit.log.environments import (
    SEGMENT_BYTES,
    STATE_PARTITIONS,
    Records,
    SimulatedEnvironment,
    append_durably,
    read_all,
)
from tests.unit.log.journals import open_journal, used_segments
from tests.unit.runtime.test_runtime import RuntimeDriver


def make_records(size: int = 900) -> Records:
    return [(b"key", bytes([7]) * size)]


async def fill_segments(
    world: SimulatedEnvironment, journal: Journal, count: int, state_partition: int = 0
) -> int:
    """Append until `count` segments are in use. Return the end offset."""
    while len(used_segments(world)) < count:
        await append_durably(journal, state_partition, make_records())
    return journal.end_offset(state_partition)


async def wait_for_pruning(journal: Journal) -> None:
    """Make one commit, and wait for background work."""
    await append_durably(journal, STATE_PARTITIONS - 1, make_records(1))
    await asyncio.sleep(1)


def test_segments_pruned_before_a_close_are_removed() -> None:
    world = SimulatedEnvironment()

    async def prune_and_close() -> None:
        journal = await open_journal(world, "always")
        end = await fill_segments(world, journal, 4)
        journal.prune(0, end)
        await journal.close()

    world.run(prune_and_close())
    assert len(used_segments(world)) == 1


@pytest.mark.parametrize("sync", ["always", "os"])
def test_segment_is_removed_only_when_none_of_its_records_is_needed(sync: str) -> None:
    world = SimulatedEnvironment()

    async def run_test() -> None:
        journal = await open_journal(world, sync)
        await append_durably(journal, 1, make_records())
        await fill_segments(world, journal, 2)
        first_of_second = journal.end_offset(0) - 1
        await fill_segments(world, journal, 4)
        await wait_for_pruning(journal)
        journal.prune(0, first_of_second)
        await wait_for_pruning(journal)
        assert used_segments(world)[0] == segment_name(1)
        journal.prune(1, 1)
        await wait_for_pruning(journal)
        assert used_segments(world)[0] == segment_name(2)
        journal.prune(0, first_of_second + 1)
        await wait_for_pruning(journal)
        assert used_segments(world)[0] == segment_name(2)
        await journal.close()

    world.run(run_test())


@pytest.mark.parametrize("end", ["close", "kill"])
def test_offsets_continue_after_all_records_were_pruned(end: str) -> None:
    world = SimulatedEnvironment()

    async def run_test() -> dict[int, int]:
        journal = await open_journal(world)
        for state_partition in (0, 3):
            await append_durably(journal, state_partition, make_records())
            await fill_segments(world, journal, 3 + state_partition, state_partition)
        ends = {partition: journal.end_offset(partition) for partition in (0, 3)}
        for partition in (0, 3):
            journal.prune(partition, ends[partition])
        await wait_for_pruning(journal)
        if end == "close":
            await journal.close()
        else:
            world.storage.kill()
        return ends

    async def reopen_journal(ends: dict[int, int]) -> None:
        journal = await open_journal(world)
        assert len(used_segments(world)) == 1
        assert 0 not in await read_all(journal)
        assert {partition: journal.end_offset(partition) for partition in ends} == ends
        assert journal.start_offset(0) == ends[0]
        assert await append_durably(journal, 0, make_records()) == ends[0]
        await journal.close()

    world.run(reopen_journal(world.run(run_test())))


@pytest.mark.slow
def test_segment_may_end_at_any_position() -> None:
    """Append records of every size near the free space of the segment, and records larger than a segment."""

    async def run_test(world: SimulatedEnvironment, size: int) -> None:
        journal = await open_journal(world)
        sizes = [1] * 3 + [size] * 5 + [1, SEGMENT_BYTES * 2, 1]
        for offset, value_bytes in enumerate(sizes):
            assert await append_durably(journal, 0, make_records(value_bytes)) == offset
        world.storage.kill()
        journal = await open_journal(world)
        assert [len(value or b"") for _, _, value in (await read_all(journal))[0]] == sizes
        await journal.close()

    for size in (*range(1, 120), *range(1200, 1400), *range(7000, 7350), SEGMENT_BYTES - 1, SEGMENT_BYTES):
        world = SimulatedEnvironment()
        world.run(run_test(world, size))


def test_segments_are_kept_until_a_running_read_ends() -> None:
    world = SimulatedEnvironment()

    async def run_test() -> None:
        journal = await open_journal(world)
        end_offset = await fill_segments(world, journal, 4)
        reading = journal.read(range(STATE_PARTITIONS))
        offsets = [int.from_bytes(batch[:8]) for _, batch in await anext(reading)]
        journal.prune(0, end_offset)
        await wait_for_pruning(journal)
        assert used_segments(world)[0] == segment_name(1)
        async for chunk in reading:
            offsets += [int.from_bytes(batch[:8]) for _, batch in chunk]
        assert offsets == list(range(end_offset))
        await asyncio.sleep(1)
        assert used_segments(world)[0] > segment_name(1)
        await journal.close()

    world.run(run_test())


GROUPS = [f"group {number}" for number in range(4)]
PARTITIONS = range(5)
STEP_OFFSETS = 3
States = list[tuple[int, list[tuple[int, int, int, int]]]]


@asynccontextmanager
async def run_runtime(journal: Journal) -> AsyncIterator[RuntimeDriver]:
    limits = RuntimeLimits(compaction_interval_s=0.25)
    driver = RuntimeDriver(journal, limits, STATE_PARTITIONS)  # type: ignore[arg-type]
    await driver.runtime.start()
    yield driver
    await driver.runtime.stop()


async def write_repeatedly(driver: RuntimeDriver, group: str, turns: int) -> None:
    """Write to all share-partitions of a group, each time at higher offsets."""
    for turn in range(turns):
        offset = turn * STEP_OFFSETS
        batches = (offset, offset, ACKNOWLEDGED, 1), (offset + 1, offset + 2, AVAILABLE, 1)
        parts = [
            make_write(*batches, start_offset=max(0, offset - 10), partition=number) for number in PARTITIONS
        ]
        results = await driver.send_request(WRITE, *parts, group=group)
        assert {result.error_code for result in results} == {0}


async def read_states(driver: RuntimeDriver) -> States:
    return [
        (result.start_offset, unpack_batches(result.state_batches))
        for group in GROUPS
        for result in await driver.send_request(
            READ, *(make_read(partition=number) for number in PARTITIONS), group=group
        )
    ]


@pytest.mark.slow
def test_100_000_updates_leave_a_small_journal_that_loads_few_records() -> None:
    turns = 100_000 // ((len(GROUPS) - 1) * len(PARTITIONS))
    world = SimulatedEnvironment(faults=DiskFaults(write_s=0.0001, sync_s=0.0005))
    segment_bytes = 64 << 10

    async def run_test() -> States:
        journal = world.journal(segment_bytes=segment_bytes)
        async with run_runtime(journal) as driver:
            for group in GROUPS:
                parts = (make_initialize(partition=number) for number in PARTITIONS)
                await driver.send_request(INITIALIZE, *parts, group=group)
            # The first group is written only at the start. The state of the first group must survive, but
            # must not prevent the removal of segments.
            await write_repeatedly(driver, GROUPS[0], 3)
            writers = [asyncio.ensure_future(write_repeatedly(driver, group, turns)) for group in GROUPS[1:]]
            largest_bytes = 0
            while not all(writer.done() for writer in writers):
                await asyncio.sleep(0.1)
                largest_bytes = max(largest_bytes, journal.size_bytes())
            await asyncio.gather(*writers)
            written_bytes = sum(map(journal.end_offset, range(STATE_PARTITIONS))) * 100
            assert written_bytes > 50 * segment_bytes
            assert largest_bytes < 20 * segment_bytes
            await asyncio.sleep(1)
            # At most four needed segments, the current segment and the spare segment exist.
            assert journal.size_bytes() <= 6 * segment_bytes
            return await read_states(driver)

    async def reload_states() -> States:
        async with run_runtime(world.journal(segment_bytes=segment_bytes)) as driver:
            states = await read_states(driver)
            assert sum(view.loaded_records for view in driver.runtime.shard_views()) < 5_000
            return states

    states = world.run(run_test())
    assert states[0] == (
        0,
        [(0, 0, 2, 1), (1, 2, 0, 1), (3, 3, 2, 1), (4, 5, 0, 1), (6, 6, 2, 1), (7, 8, 0, 1)],
    )
    assert world.run(reload_states()) == states


def test_compaction_ends_although_group_ids_are_most_of_the_data() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(write_s=0.0001, sync_s=0.0005))
    groups = 600

    async def run_test() -> None:
        journal = world.journal(segment_bytes=64 << 10)
        async with run_runtime(journal) as driver:
            for number in range(groups):
                group = f"group {number:05}" + "x" * 1000
                assert await driver.request_error_code(INITIALIZE, make_initialize(), group=group) == 0
            await asyncio.sleep(1)
            ends = sum(map(journal.end_offset, range(STATE_PARTITIONS)))
            await asyncio.sleep(10)
            # Compaction writes each state again at most once.
            assert ends <= 2 * groups
            assert sum(map(journal.end_offset, range(STATE_PARTITIONS))) == ends

    world.run(run_test())
