"""Local state logs for tests: segment files and journals, with the expected states from the shard core."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from coordinator.log.journal import Journal
from coordinator.recovery.sources.base import LogCut, Source
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import encode_batch
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.recovery.log_strategies import fold_with_shard_core, shard_core_rows
from tests.unit.log.environments import append_durably

TOPIC = "__share_group_state"


def make_varied_records(
    count: int, *, share_partitions: int = 20, seed: int = 1
) -> list[tuple[bytes, bytes | None]]:
    """Return records of a varied log: snapshots, updates, deletions, decreased start offsets."""
    random = Random(seed)
    keys = [SharePartitionKey(f"group-{seed}-{n % 3}", bytes([n]) * 16, n) for n in range(share_partitions)]
    found = []
    for _ in range(count):
        key, chance = random.choice(keys), random.random()
        first = random.randrange(100)
        batches = pack(
            StateBatch(first + n, first + n + random.randrange(4), random.choice([0, 2, 4]), 1 + n % 2)
            for n in range(random.randrange(4))
        )
        start, complete = random.choice([-1, -1, 0, 20, 50, 80]), random.choice([-1, 3])
        value: ShareSnapshotValue | ShareUpdateValue | None = ShareUpdateValue(1, 2, start, batches, complete)
        if chance < 0.02:
            value = None
        elif chance < 0.1:
            value = ShareSnapshotValue(random.randrange(9), 1, 2, start, 5, 6, batches, complete)
        found.append(encode_record(StateRecord(key, value)))
    return found


def encode_batches(
    records: list[tuple[bytes, bytes | None]], *, base_offset: int = 0, size: int = 7
) -> list[bytes]:
    """Encode records as record batches; each batch's timestamp is 1 ms after the previous one's."""
    return [
        encode_batch(base_offset + at, 1_000 + (base_offset + at) // size, records[at : at + size])
        for at in range(0, len(records), size)
    ]


def write_segments(folder: Path, batches: list[bytes], *, batches_in_file: int = 1_000_000) -> list[Path]:
    """Write record batches as the segment files of one state partition."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for at in range(0, len(batches), batches_in_file):
        part = batches[at : at + batches_in_file]
        path = folder / f"{int.from_bytes(part[0][:8]):020}.log"
        path.write_bytes(b"".join(part))
        files.append(path)
    return files


def load_expected_states(
    partitions: Mapping[int, list[bytes]], *, before: Mapping[int, int] | None = None
) -> list[Any]:
    """Return the states of shards that have loaded these logs, optionally up to log offsets."""
    states = {}
    for number, batches in partitions.items():
        states |= fold_with_shard_core(batches, number, (before or {}).get(number, 2**63))
    return shard_core_rows(states)


def write_journal(
    folder: Path, partitions: Mapping[int, list[tuple[bytes, bytes | None]]], *, state_partitions: int = 4
) -> None:
    """Write records to a journal, one commit for each append."""

    async def append_all() -> None:
        journal = open_journal(folder, state_partitions)
        await journal.open()
        for state_partition, records in partitions.items():
            for at in range(0, len(records), 5):
                await append_durably(journal, state_partition, records[at : at + 5])
        await journal.close()

    asyncio.run(append_all())


def open_journal(folder: Path, state_partitions: int = 4) -> Journal:
    """Return a journal with small segments, which is not open yet."""
    return Journal(folder, state_partitions=state_partitions, segment_bytes=64 << 10, sync="os")


def read_log_offsets(source: Source, cut: LogCut | None = None) -> dict[int, list[int]]:
    """Return the log offsets of a source, by state partition, in reading order."""
    found: dict[int, list[int]] = {}
    for log_range in source.plan(cut or LogCut()).ranges:
        for records in source.read(log_range):
            found.setdefault(records.state_partition, []).extend(records.log_offset.tolist())
    return found
