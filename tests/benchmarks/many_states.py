"""Generate a journal with one snapshot record for each of many share-partitions, as after compaction."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import uvloop

from coordinator.errors import LogError
from coordinator.log.journal import Journal
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.routing import state_partition
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record

STATE_PARTITIONS = 50
BATCHES = 3
# Each group consumes one topic with this number of partitions.
GROUP_PARTITIONS = 50
_SEGMENT_BYTES = 64 << 20
# The number of records that are appended at the same time to all state partitions together.
_APPENDED_TOGETHER = 10_000
_BEGAN_MS = 1_790_000_000_000


def share_partition_keys(share_partitions: int, topic_id: bytes, prefix: str) -> Iterator[SharePartitionKey]:
    """Yield `share_partitions` keys, group by group."""
    for number in range(share_partitions):
        group, partition = divmod(number, GROUP_PARTITIONS)
        yield SharePartitionKey(f"{prefix}-{group:06d}", topic_id, partition)


def write_journal(folder: Path, share_partitions: int, topic_id: bytes, prefix: str) -> None:
    """Write a journal of `share_partitions` share-partitions with three state batches each."""
    uvloop.run(_write_states(folder, share_partitions, topic_id, prefix))


async def _write_states(folder: Path, share_partitions: int, topic_id: bytes, prefix: str) -> None:
    journal = Journal(folder, state_partitions=STATE_PARTITIONS, segment_bytes=_SEGMENT_BYTES, sync="os")
    await journal.open()
    waiting: defaultdict[int, list[tuple[bytes, bytes | None]]] = defaultdict(list)
    for number, key in enumerate(share_partition_keys(share_partitions, topic_id, prefix), 1):
        written_ms = _BEGAN_MS + (number - 1) // _APPENDED_TOGETHER
        record = encode_record(StateRecord(key, _make_snapshot(number, written_ms)))
        waiting[state_partition(key, STATE_PARTITIONS)].append(record)
        if number % _APPENDED_TOGETHER == 0:
            await _append_to_all(journal, waiting, written_ms)
            waiting.clear()
    await _append_to_all(journal, waiting, _BEGAN_MS + share_partitions // _APPENDED_TOGETHER)
    await journal.close()


async def _append_to_all(
    journal: Journal, records: Mapping[int, list[tuple[bytes, bytes | None]]], timestamp_ms: int
) -> None:
    """Append records to each state partition at the same time, and wait until all are durable."""
    loop = asyncio.get_running_loop()
    appended = []
    for partition, own_records in records.items():
        done: asyncio.Future[None] = loop.create_future()

        def on_append_done(
            base_offset: int, error: LogError | None, done: "asyncio.Future[None]" = done
        ) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        journal.append(partition, own_records, timestamp_ms, on_append_done)
        appended.append(done)
    await asyncio.gather(*appended)


def _make_snapshot(number: int, written_ms: int) -> ShareSnapshotValue:
    """Return a snapshot record with the state of a partly consumed share-partition.

    Each share-partition has its own creation time; the snapshots of one append have the same write time.
    """
    start = 10_000_000 + number
    batches = pack(
        StateBatch(start + 10 * place, start + 10 * place + 6, 2 if place % 2 else 0, 1)
        for place in range(BATCHES)
    )
    return ShareSnapshotValue(7, 1, 3, start, _BEGAN_MS - number, written_ms, batches, 7)
