# cython: annotation_typing=False
"""Appends that are queued for a commit.

If a C compiler is available, this source is compiled; see `coordinator.compiled_sources`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from coordinator.errors import LogError
from coordinator.fastpath import encode_batch
from coordinator.log.base import AppendCallback
from coordinator.log.journal import layout

# Maximum size of the entries of one commit; the other appends stay queued for the next one.
COMMIT_BYTES_MAX = 8 << 20

_encode_batch: Any = encode_batch
_encode_entry_head: Any = layout.encode_entry_head


class Append:
    """One append; `entry` is its encoded entry in a frame. Created by `new_append`."""

    __slots__ = ("base_offset", "done", "end_offset", "entry", "state_partition")

    state_partition: int
    base_offset: int
    end_offset: int
    entry: bytes
    done: AppendCallback


def new_append(
    state_partition: int,
    base_offset: int,
    timestamp_ms: int,
    records: Sequence[tuple[bytes, bytes | None]],
    done: AppendCallback,
) -> Append:
    """Return an append with the encoded records. In compiled code, this is faster than a constructor."""
    append = Append.__new__(Append)
    batch = _encode_batch(base_offset, timestamp_ms, records)
    append.state_partition = state_partition
    append.base_offset = base_offset
    append.end_offset = base_offset + len(records)
    append.entry = _encode_entry_head(state_partition, len(batch)) + batch
    append.done = done
    return append


def call_done(append: Append, error: LogError | None) -> None:
    """Call `done`; an exception in it is reported and does not affect the next append."""
    try:
        append.done(append.base_offset, error)
    except Exception as failure:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "an append's done callback failed", "exception": failure}
        )


def advance_end_offsets(group: list[Append], ends: list[int], last_offsets: dict[int, int]) -> None:
    """Set the end offsets and last offsets of the state partitions of committed appends."""
    for append in group:
        ends[append.state_partition] = append.end_offset
        last_offsets[append.state_partition] = append.end_offset - 1


def take_frame_entries(pending: list[Append]) -> tuple[list[bytes], int]:
    """Return the entries of the next frame, from the first appends, and the size of the frame in bytes."""
    entries: list[bytes] = []
    entries_bytes = 0
    for append in pending:
        entry_bytes = len(append.entry)
        if entries and entries_bytes + entry_bytes > COMMIT_BYTES_MAX:
            break
        entries.append(append.entry)
        entries_bytes += entry_bytes
    return entries, layout.frame_bytes(entries_bytes)
