"""Appends that are queued for a commit."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from coordinator import fastpath
from coordinator.errors import LogError
from coordinator.log.base import AppendCallback
from coordinator.log.journal import layout
from protocol.record_batch import encode_batch

# Maximum size of the entries of one commit; the other appends stay queued for the next one.
COMMIT_BYTES_MAX = 8 << 20


class Append:
    """One append; `entry` is its encoded entry in a frame."""

    __slots__ = ("base_offset", "done", "end_offset", "entry", "state_partition")

    def __init__(
        self,
        state_partition: int,
        base_offset: int,
        timestamp_ms: int,
        records: Sequence[tuple[bytes, bytes | None]],
        done: AppendCallback,
    ) -> None:
        batch = encode_batch(base_offset, timestamp_ms, records)
        self.state_partition = state_partition
        self.base_offset = base_offset
        self.end_offset = base_offset + len(records)
        self.entry = layout.encode_entry_head(state_partition, len(batch)) + batch
        self.done = done


def call_done(append: Append, error: LogError | None) -> None:
    """Call `done`; an exception in it is reported and does not affect the next append."""
    try:
        append.done(append.base_offset, error)
    except Exception as failure:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "an append's done callback failed", "exception": failure}
        )


def complete_appends(group: Sequence[Append]) -> None:
    """Report success to all appends of a commit."""
    for append in group:
        call_done(append, None)


def take_frame_entries(pending: Sequence[Append]) -> tuple[list[bytes], int]:
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


def advance_end_offsets(group: Sequence[Append], ends: list[int], last_offsets: dict[int, int]) -> None:
    """Update the end offsets and last offsets of the state partitions after a group is committed."""
    for append in group:
        ends[append.state_partition] = append.end_offset
        last_offsets[append.state_partition] = append.end_offset - 1


class AppendCodec(NamedTuple):
    """The functions for appends, in Python or compiled (`coordinator.fastpath`), with equal results."""

    append: Callable[[int, int, int, Sequence[tuple[bytes, bytes | None]], AppendCallback], Append]
    take_frame_entries: Callable[[Sequence[Append]], tuple[list[bytes], int]]
    encode_frame: Callable[[int, int, int, int, int, Sequence[bytes]], bytes]
    advance_end_offsets: Callable[[Sequence[Append], list[int], dict[int, int]], None]
    complete_appends: Callable[[Sequence[Append]], None]


def append_codec() -> AppendCodec:
    """Return the compiled codec if the module is available, else the Python codec."""
    compiled = fastpath.compiled
    if compiled is None:
        return AppendCodec(
            Append, take_frame_entries, layout.encode_frame, advance_end_offsets, complete_appends
        )
    return AppendCodec(
        compiled.new_append,
        compiled.take_frame_entries,
        compiled.encode_frame,
        compiled.advance_end_offsets,
        compiled.complete_appends,
    )
