"""Read batches in one sequential pass over the segments, for any number of state partitions.

A thread reads the bytes; the event loop decodes them in small chunks, so no chunk delays other callbacks for
long.  Decoding on another thread would hold the interpreter lock for longer.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from coordinator.errors import LogDamaged, LogUnavailable
from coordinator.log.base import LoggedBatch
from coordinator.log.journal import layout
from coordinator.log.journal.disk import Disk, RealDisk
from coordinator.log.journal.scan import ADVICE, segment_name

# A chunk of this size takes about a millisecond to decode.
READ_CHUNK_BYTES = 256 << 10


async def read_segments(
    disk: Disk,
    segment_ends: Sequence[tuple[int, int]],
    first_position: int,
    state_partitions: Collection[int],
) -> AsyncIterator[list[LoggedBatch]]:
    """Yield the batches of the state partitions in chunks.

    `segment_ends` has pairs of segment number and valid end. Raises LogDamaged for a frame that is no longer
    valid, and LogUnavailable if the disk cannot be read.
    """
    wanted = frozenset(state_partitions)
    for number, end in segment_ends:
        position = first_position
        while position < end:
            try:
                data = await _read_frames(disk, number, position, end)
            except OSError as error:
                raise LogUnavailable(f"the journal cannot be read: {error}") from error
            chunk: list[LoggedBatch] = []
            at = 0
            while (frame := layout.decode_frame_at(data, at, number, position + at)) is not None:
                chunk += [
                    logged for logged in layout.decode_entries(frame) if logged.state_partition in wanted
                ]
                at = frame.end
            if at == 0:
                path = disk.describe(segment_name(number))
                raise LogDamaged(path, position, "a commit that was valid is not valid any more", ADVICE)
            if chunk:
                yield chunk
            position += at


async def _read_frames(disk: Disk, number: int, position: int, end: int) -> memoryview:
    """Read one chunk; if its first frame is longer, read the whole frame."""
    name = segment_name(number)
    data = memoryview(await disk.read(name, position, min(READ_CHUNK_BYTES, end - position)))
    head = layout.decode_head_at(data, 0, number, position)
    if head is not None and layout.frame_bytes(head.length) > len(data):
        data = memoryview(await disk.read(name, position, layout.frame_bytes(head.length)))
    return data


class JournalFiles(NamedTuple):
    """The valid parts of a journal: pairs of segment number and valid end, each from `first_position` on."""

    folder: Path
    segment_ends: tuple[tuple[int, int], ...]
    first_position: int

    async def batches(self, state_partition: int) -> AsyncIterator[bytes]:
        """Yield the batches of a state partition. Raises LogError."""
        disk = RealDisk(self.folder)
        async for chunk in read_segments(disk, self.segment_ends, self.first_position, (state_partition,)):
            for logged in chunk:
                yield logged.batch
