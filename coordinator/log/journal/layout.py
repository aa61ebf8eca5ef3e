"""The format of the journal: segment headers, commit frames, and their entries. Pure.

::

    segment   header, zeros up to a sector │ frame │ frame │ ... │ zeros up to the allocated size
    header    magic, format version, sync mode, segment number, valid end of the segment before,
              first commit number, last durable commit, oldest segment needed, state partitions,
              end offset of each (plus one), CRC-32C of all that, end mark
    frame     head │ entries │ end mark │ zeros up to a multiple of 64
    head      magic, length of the entries, commit number, last durable commit, oldest segment needed,
              CRC-32C of the entries, CRC-32C of the head
    entry     state partition, length, a Kafka record batch v2 (which has a CRC-32C of its own)

    recovery-point   magic, segment number, last durable commit, CRC-32C; a separate file of one sector

All integers are big-endian.  One frame is one group commit and is valid as a whole or not at all.  Commit
numbers have no gaps.  Three facts distinguish a torn tail from damage.  First, each frame and header contains
the last commit that was durable when it was written.  If a later frame shows that an invalid frame was
durable, the invalid frame is damaged; otherwise the invalid frame was never acknowledged. Second, the last
commits have no later frame, so the recovery point records them when the journal becomes idle. Third, sectors
of zeros show whether a frame after the recovery point was interrupted. A file is zeroed before use, and a
disk writes whole sectors. A torn frame therefore has a sector of zeros or ends in zeros. A complete frame has
no sector of zeros and does not end in zeros, because of its end mark and because offsets are stored plus one.

A file has its full size before use, and some space after its last entries always stays unused.  A shorter
file was truncated later, for example by an incomplete copy; a crash cannot shorten a file.

A header has the end position of the previous segment.  Bytes after that end belong to a commit with an
unknown outcome and are ignored from then on.  The CRC of a head also covers the segment number and the
position. Therefore, neither copied bytes nor bytes from a client can be mistaken for a frame.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from coordinator.log.base import LoggedBatch

FORMAT_VERSION = 1
SYNC_MODES = ("always", "os")

# A disk writes this many bytes as a whole or not at all.
SECTOR_BYTES = 512
# Frames begin at multiples of this size, so a head never spans two sectors.
ALIGN_BYTES = 64
# Space at the end of each segment for frames without entries, which allow old segments to be removed even if
# the disk is full.
RESERVE_BYTES = 16 * ALIGN_BYTES

_HEADER_MAGIC = b"shcoseg\n"
_HEADER = Struct(">8sHHQQQQQI")
_CRC = Struct(">I")
_OFFSET = Struct(">Q")

RECOVERY_POINT_NAME = "recovery-point"
_RECOVERY_POINT_MAGIC = b"shcorpt\x01"
_RECOVERY_POINT = Struct(">8sQQ")

_FRAME_MAGIC = b"\xf5shc"
# The head without its CRC; the CRC is seeded with the segment number and the position.
_HEAD = Struct(">4sIQQQI")
_FRAME_LOCATION = Struct(">QQ")
_END_MARK = b"end\n"
_ENTRY = Struct(">HI")

HEAD_BYTES = _HEAD.size + _CRC.size
ENTRY_HEAD_BYTES = _ENTRY.size
STATE_PARTITIONS_MAX = 1 << 16


class SegmentHeader(NamedTuple):
    """The header of a segment. `previous_end` is the end position in the file of the previous segment.

    All values are those at the beginning of the segment: `end_offsets` of all state partitions, the last
    durable commit (`durable`), and the oldest needed segment (`oldest`).
    """

    number: int
    sync: str
    previous_end: int
    first_commit: int
    durable: int
    oldest: int
    end_offsets: tuple[int, ...]


class RecoveryPoint(NamedTuple):
    """The last commit that is known to be durable, and the segment that contains it."""

    segment: int
    commit: int


class Frame(NamedTuple):
    """One valid group commit. `begin` and `end` are positions in the decoded data."""

    begin: int
    end: int
    commit: int
    durable: int
    oldest: int
    entries: memoryview


def align_up(position: int, align_bytes: int = ALIGN_BYTES) -> int:
    """Return the first multiple of `align_bytes` at or above a position."""
    return -(-position // align_bytes) * align_bytes


def first_position(state_partitions: int) -> int:
    """Return the position of the first frame of a segment."""
    return align_up(header_bytes(state_partitions), SECTOR_BYTES)


def header_bytes(state_partitions: int) -> int:
    return _HEADER.size + state_partitions * _OFFSET.size + _CRC.size + len(_END_MARK)


def encode_header(header: SegmentHeader) -> bytes:
    head = _HEADER.pack(
        _HEADER_MAGIC,
        FORMAT_VERSION,
        SYNC_MODES.index(header.sync),
        header.number,
        header.previous_end,
        header.first_commit,
        header.durable,
        header.oldest,
        len(header.end_offsets),
    )
    body = head + b"".join(_OFFSET.pack(offset + 1) for offset in header.end_offsets)
    return body + _CRC.pack(crc32c(body)) + _END_MARK


def decode_header(data: bytes) -> SegmentHeader | None:
    """Decode the segment header at the beginning of a file; return None if it is not valid.

    Raises ValueError with a message if this release does not support the format version.
    """
    if len(data) < _HEADER.size or data[:8] != _HEADER_MAGIC:
        return None
    _, version, sync, number, previous_end, first_commit, durable, oldest, count = _HEADER.unpack_from(data)
    if version == 0:
        # Format version 0 does not exist: the write of the header was interrupted before the version.
        return None
    if version != FORMAT_VERSION:
        raise ValueError(f"it has journal format {version}, and this release reads format {FORMAT_VERSION}")
    end = _HEADER.size + count * _OFFSET.size
    if len(data) < end + _CRC.size or _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        return None
    if sync >= len(SYNC_MODES):
        raise ValueError(f"it has journal.sync mode {sync}, which this release does not know")
    offsets = tuple(plus_one - 1 for (plus_one,) in _OFFSET.iter_unpack(data[_HEADER.size : end]))
    return SegmentHeader(number, SYNC_MODES[sync], previous_end, first_commit, durable, oldest, offsets)


def encode_recovery_point(point: RecoveryPoint) -> bytes:
    """Encode the recovery point's file: one sector, which a disk writes as a whole or not at all."""
    body = _RECOVERY_POINT.pack(_RECOVERY_POINT_MAGIC, *point)
    return (body + _CRC.pack(crc32c(body))).ljust(SECTOR_BYTES, b"\0")


def decode_recovery_point(data: bytes) -> RecoveryPoint | None:
    """Decode the recovery point; return None if its file is damaged or was created but not written."""
    body = data[: _RECOVERY_POINT.size]
    if len(data) < SECTOR_BYTES or not body.startswith(_RECOVERY_POINT_MAGIC):
        return None
    if _CRC.unpack_from(data, len(body))[0] != crc32c(body):
        return None
    return RecoveryPoint(*_RECOVERY_POINT.unpack(body)[1:])


def encode_entry_head(state_partition: int, batch_bytes: int) -> bytes:
    """Encode the part of an entry before its record batch."""
    return _ENTRY.pack(state_partition, batch_bytes)


def frame_bytes(entries_bytes: int) -> int:
    """Return the size in a segment of a frame with `entries_bytes` bytes of entries."""
    return align_up(HEAD_BYTES + entries_bytes + len(_END_MARK))


def encode_frame(
    segment: int, position: int, commit: int, durable: int, oldest: int, parts: Sequence[bytes]
) -> bytes:
    """Encode a frame for a position in a segment; the concatenated `parts` are its entries."""
    entries = b"".join(parts)
    head = _HEAD.pack(_FRAME_MAGIC, len(entries), commit, durable, oldest, crc32c(entries))
    head_crc = _CRC.pack(crc32c(head, crc32c(_FRAME_LOCATION.pack(segment, position))))
    frame = head + head_crc + entries + _END_MARK
    return frame + bytes(-len(frame) % ALIGN_BYTES)


class FrameHead(NamedTuple):
    """The head of a frame with a valid CRC; the entries of the frame are not validated."""

    length: int
    commit: int
    durable: int
    oldest: int
    entries_crc: int


def decode_head_at(data: memoryview, at: int, segment: int, position: int) -> FrameHead | None:
    """Return the valid head at `at` in the data, which is `position` in the segment, or None."""
    if at + HEAD_BYTES > len(data) or data[at : at + 4] != _FRAME_MAGIC:
        return None
    stored_crc = _CRC.unpack_from(data, at + _HEAD.size)[0]
    if crc32c(data[at : at + _HEAD.size], crc32c(_FRAME_LOCATION.pack(segment, position))) != stored_crc:
        return None
    return FrameHead(*_HEAD.unpack_from(data, at)[1:])


def decode_frame_at(data: memoryview, at: int, segment: int, position: int) -> Frame | None:
    """Return the valid frame at `at` in the data, which is `position` in the segment, or None."""
    head = decode_head_at(data, at, segment, position)
    if head is None:
        return None
    begin = at + HEAD_BYTES
    end = begin + head.length
    entries = data[begin:end]
    if data[end : end + len(_END_MARK)] != _END_MARK or crc32c(entries) != head.entries_crc:
        return None
    return Frame(at, at + frame_bytes(head.length), head.commit, head.durable, head.oldest, entries)


def decode_entries(frame: Frame) -> Iterator[LoggedBatch]:
    """Yield the entries of a valid frame. Raises ValueError for inconsistent lengths."""
    entries = bytes(frame.entries)
    at, end = 0, len(entries)
    while at < end:
        batch_at = at + ENTRY_HEAD_BYTES
        if batch_at > end:
            raise ValueError("an entry is cut off within a valid commit")
        state_partition, length = _ENTRY.unpack_from(entries, at)
        at = batch_at + length
        if at > end:
            raise ValueError("an entry reaches beyond its commit")
        yield LoggedBatch(state_partition, entries[batch_at:at])


def minimum_file_bytes(data: memoryview, last_end: int, segment: int) -> int:
    """Return the least size that the file of a segment can have, according to its frames.

    `last_end` is the end of the last valid frame with entries, or the position of the first frame.  A frame
    with entries, even if only its head is valid, was placed so that the reserve after it stays free.
    """
    needed = last_end + RESERVE_BYTES
    for position, head in find_later_heads(data, last_end - 1, segment):
        reserve_bytes = RESERVE_BYTES if head.length else 0
        needed = max(needed, position + frame_bytes(head.length) + reserve_bytes)
    return needed


def find_later_heads(data: memoryview, position: int, segment: int) -> Iterator[tuple[int, FrameHead]]:
    """Yield the valid heads after a position of a segment, whatever bytes are between them."""
    raw = bytes(data)
    found = raw.find(_FRAME_MAGIC, position + 1)
    while found != -1:
        head = decode_head_at(data, found, segment, found) if found % ALIGN_BYTES == 0 else None
        if head is not None:
            yield found, head
        found = raw.find(_FRAME_MAGIC, found + 1)


def is_torn(data: memoryview, position: int, segment: int) -> bool:
    """Return whether the invalid frame at a position can be an interrupted write.

    The write was interrupted if part of the frame still consists of zeros, as before the write. If no part
    consists of zeros, the frame was once written completely.
    """
    head = decode_head_at(data, position, segment, position)
    if head is None:
        # A head is within one sector.  Either the head is missing, or the write was interrupted inside the
        # head.
        return not any(data[position : position + HEAD_BYTES]) or is_zero(data[position + HEAD_BYTES :])
    end = position + HEAD_BYTES + head.length + len(_END_MARK)
    return end > len(data) or has_zero_sector(data, position, end)


def has_zero_sector(data: memoryview, begin: int, end: int) -> bool:
    """Return whether a range of a file has a sector of zeros or ends in a zero byte.

    A completely written range has neither, because its last byte is not zero.
    """
    if end > len(data) or not data[end - 1]:
        return True
    cuts = sorted({begin, *range(align_up(begin, SECTOR_BYTES), end, SECTOR_BYTES), end})
    return any(is_zero(data[cut:next_cut]) for cut, next_cut in pairwise(cuts))


def is_zero(data: memoryview) -> bool:
    return not any(data) if len(data) < 64 else bytes(data).count(0) == len(data)
