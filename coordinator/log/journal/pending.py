"""Appends that wait for a commit."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from coordinator import fastpath
from coordinator.errors import LogError
from coordinator.log.base import AppendCallback
from coordinator.log.journal import layout
from protocol.record_batch import encode_batch

# What one commit takes at the most; the rest waits for the next one.
COMMIT_BYTES_MAX = 8 << 20


class Append:
    """One append: `entry` goes into a frame as it is."""

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


def tell(append: Append, error: LogError | None) -> None:
    """Call `done`; what goes wrong in there is not the next append's fault."""
    try:
        append.done(append.base_offset, error)
    except Exception as failure:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "an append's done callback failed", "exception": failure}
        )


def complete_appends(group: Sequence[Append]) -> None:
    """Tell those who appended that it is there."""
    for append in group:
        tell(append, None)


def take_frame_entries(pending: Sequence[Append]) -> tuple[list[bytes], int]:
    """Return the entries of the next frame, which are those of the first appends, and its size in bytes."""
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
    """Note by state partition where it ends when a group of appends is there, and its last offset."""
    for append in group:
        ends[append.state_partition] = append.end_offset
        last_offsets[append.state_partition] = append.end_offset - 1


class AppendCodec(NamedTuple):
    """How appends are dealt with: in Python, or compiled (`coordinator.fastpath`), with the same outcome."""

    append: Callable[[int, int, int, Sequence[tuple[bytes, bytes | None]], AppendCallback], Append]
    take_frame_entries: Callable[[Sequence[Append]], tuple[list[bytes], int]]
    encode_frame: Callable[[int, int, int, int, int, Sequence[bytes]], bytes]
    advance_end_offsets: Callable[[Sequence[Append], list[int], dict[int, int]], None]
    complete_appends: Callable[[Sequence[Append]], None]


def append_codec() -> AppendCodec:
    """Return the way that there is."""
    compiled = fastpath.compiled
    if compiled is None:
        return AppendCodec(
            Append, take_frame_entries, layout.encode_frame, advance_end_offsets, complete_appends
        )
    return AppendCodec(
        compiled.Append,
        compiled.take_frame_entries,
        compiled.encode_frame,
        compiled.advance_end_offsets,
        compiled.complete_appends,
    )
