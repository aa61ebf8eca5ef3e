"""Run a journal with the preloaded library of `faulty_disk.c`: append, prune, close, and note each outcome.

Usage: python -m tests.unit.log.faulty_disk_driver FOLDER SYNC COMMITS
"""

import asyncio
import ctypes
import sys
from pathlib import Path

from coordinator.errors import LogUnavailable
from coordinator.log.journal import Journal
from tests.unit.log.environments import SEGMENT_BYTES, STATE_PARTITIONS, append
from tests.unit.log.journals import make_record_value

# The distance of the new start offset from the newest record, and the number of appends per prune.
KEPT = 1
PRUNE_EACH = 3
IDLE_EACH = 20
IDLE_S = 0.1
RETRY_S = 0.3


def write_trace_note(text: str) -> None:
    ctypes.CDLL(None).faulty_disk_note(text.encode())


async def run_journal(folder: Path, sync: str, commits: int) -> None:
    assert sync in ("always", "os")
    journal = Journal(folder, state_partitions=STATE_PARTITIONS, segment_bytes=SEGMENT_BYTES, sync=sync)
    await journal.open()
    write_trace_note("opened")
    for number in range(commits):
        partition = number % STATE_PARTITIONS
        write_trace_note(f"append {partition} {number}")
        offset, error = await append(
            journal, partition, [(b"key", make_record_value(number, 300 + number % 700))]
        )
        if error is None:
            write_trace_note(f"done {partition} {number} {offset}")
        elif isinstance(error, LogUnavailable):
            write_trace_note(f"failed {partition} {number}")
            await asyncio.sleep(RETRY_S)
        if number % PRUNE_EACH == 0 and offset > KEPT:
            write_trace_note(f"prune {partition} {offset - KEPT} {offset + 1}")
            journal.prune(partition, offset - KEPT)
        if number % IDLE_EACH == 0:
            await asyncio.sleep(IDLE_S)
    await journal.close()
    write_trace_note("closed")


if __name__ == "__main__":
    asyncio.run(run_journal(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
