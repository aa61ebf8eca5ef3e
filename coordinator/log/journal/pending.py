"""Appends that wait for a commit."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from coordinator.errors import LogError
from coordinator.log.base import AppendDone
from coordinator.log.journal import layout

# What one commit takes at the most; the rest waits for the next one.
COMMIT_BYTES_MAX = 8 << 20


class Append(NamedTuple):
    """One append: `entry_head` and `batch` go into a frame as they are."""

    state_partition: int
    base_offset: int
    end_offset: int
    entry_head: bytes
    batch: bytes
    done: AppendDone

    def tell(self, error: LogError | None) -> None:
        """Call `done`; what goes wrong in there is not the next append's fault."""
        try:
            self.done(self.base_offset, error)
        except Exception as failure:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "an append's done callback failed", "exception": failure}
            )


def next_entries(pending: Sequence[Append]) -> tuple[int, list[bytes], int]:
    """Return how many appends go into the next frame, the parts of its entries, and their bytes."""
    parts: list[bytes] = []
    entries_bytes = 0
    for append in pending:
        if parts and entries_bytes + len(append.batch) > COMMIT_BYTES_MAX:
            break
        parts += (append.entry_head, append.batch)
        entries_bytes += layout.ENTRY_HEAD_BYTES + len(append.batch)
    return len(parts) // 2, parts, entries_bytes
