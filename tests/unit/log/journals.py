"""Create journals with known contents, damage them, and open them again."""

import asyncio

import pytest

from coordinator.errors import LogDamaged
from coordinator.log.journal import Journal, layout
from coordinator.log.journal.scan import segment_number
from protocol.record_batch import encode_batch
from tests.simulation.disk import SimFile
from tests.unit.log.environments import (
    STATE_PARTITIONS,
    LogEnvironment,
    SimulatedEnvironment,
    append,
    append_durably,
    read_all,
)

FIRST_POSITION = layout.first_position(STATE_PARTITIONS)


def make_record_value(number: int, size: int = 200) -> bytes:
    return b"%06d" % number + bytes([1 + number % 255]) * size


async def append_records(journal: Journal, count: int, first: int = 0) -> None:
    """Append `count` records to state partition 0, each in its own commit."""
    for number in range(first, first + count):
        assert await append_durably(journal, 0, [(b"key", make_record_value(number))]) == number


async def read_values(journal: Journal) -> list[bytes | None]:
    return [found for _, _, found in (await read_all(journal)).get(0, [])]


async def append_errors_at_close(journal: Journal) -> set[type[Exception] | type[None]]:
    """Append to every state partition and close at once. Return the types of the errors that the appends
    received.
    """
    records = [(b"key", make_record_value(0))]
    waiting = [
        asyncio.ensure_future(append(journal, partition, records)) for partition in range(STATE_PARTITIONS)
    ]
    await asyncio.sleep(0)
    await journal.close()
    return {type(error) for _, error in await asyncio.gather(*waiting)}


def create_journal(world: LogEnvironment, count: int, end: str) -> None:
    """Create a journal with `count` commits, and close the journal or kill its (simulated) process."""

    async def append_and_end() -> None:
        journal = world.journal()
        await journal.open()
        await append_records(journal, count)
        if end == "killed" and isinstance(world, SimulatedEnvironment):
            world.storage.kill()
        else:
            await journal.close()

    world.run(append_and_end())


async def open_journal(world: LogEnvironment, sync: str = "always") -> Journal:
    journal = world.journal(sync)
    await journal.open()
    return journal


def read_offsets_after_kill(world: SimulatedEnvironment, sync: str = "always") -> list[int]:
    """Kill the process. Return the log offsets of state partition 0 that the next process finds."""
    world.storage.kill()

    async def read_offsets() -> list[int]:
        journal = await open_journal(world, sync)
        found = [offset for offset, _, _ in (await read_all(journal)).get(0, [])]
        await journal.close()
        return found

    found: list[int] = world.run(read_offsets())
    return found


def reopen_and_append(world: LogEnvironment) -> list[bytes | None]:
    """Open, read, append one more record, and close. Return the values that were read."""

    async def read_and_append() -> list[bytes | None]:
        journal = world.journal()
        await journal.open()
        found = await read_values(journal)
        await append_durably(journal, 0, [(b"key", b"one more")])
        assert await read_values(journal) == [*found, b"one more"]
        await journal.close()
        return found

    found: list[bytes | None] = world.run(read_and_append())
    return found


def open_damaged(world: SimulatedEnvironment) -> LogDamaged:
    """Open a damaged journal. Return the error, and check that the files are unchanged."""

    async def open_and_raise() -> None:
        journal = world.journal()
        with pytest.raises(LogDamaged) as caught:
            await journal.open()
        raise caught.value

    before = {name: bytes(file.shown) for name, file in world.storage.files.items()}
    with pytest.raises(LogDamaged) as caught:
        world.run(open_and_raise())
    assert {name: bytes(file.shown) for name, file in world.storage.files.items()} == before
    return caught.value


def last_used_segment(world: SimulatedEnvironment) -> tuple[str, bytes]:
    """Return the name of the last segment in use, and its bytes without trailing zeros."""
    name = used_segments(world)[-1]
    return name, bytes(world.storage.files[name].shown).rstrip(b"\0")


def used_segments(world: SimulatedEnvironment) -> list[str]:
    """Return the names of the segments in use, oldest first."""
    files = world.storage.files
    return [name for name in sorted(files) if segment_number(name) is not None and any(files[name].shown)]


def expected_values(count: int) -> list[bytes]:
    return [make_record_value(number) for number in range(count)]


def encode_entry(number: int, size: int = 200) -> bytes:
    """Return an entry of a frame in the journal's encoding."""
    batch = encode_batch(number, 1, [(b"key", make_record_value(number, size))])
    return layout.encode_entry_head(0, len(batch)) + batch


def copy_files(world: SimulatedEnvironment) -> dict[str, SimFile]:
    """Return copies of the files."""
    copies: dict[str, SimFile] = {}
    for name, file in world.storage.files.items():
        copies[name] = SimFile(len(file.shown))
        copies[name].shown[:] = file.shown
        copies[name].durable[:] = file.shown
    return copies
