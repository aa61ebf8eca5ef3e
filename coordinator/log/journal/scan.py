"""Scan a journal's segments: determine the valid commits, and classify invalid bytes. Pure.

Recovery and the offline tools use the same scan. At the position where the valid frames of a segment end,
these rules apply:

* If the next segment's header has this position as the end of the segment, the segment is intact.
* If the file is shorter than the journal ever leaves a file, it was truncated later: damage.
* If the recovery point, a later frame or a later header shows that the next commit was durable: damage.
* Otherwise, if the bytes look like an interrupted write, the tail is torn and the journal ends here.
* Otherwise the frame was once written completely: damage, because it may have been acknowledged.

In sync mode `os`, frames may reach the disk in any order, so the journal may end before its last segment.
Frames after the journal's end are lost, as if these frames had never been written.

Files are created in the order of their numbers, one segment ahead. A gap in the numbers therefore means that
a file is missing.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from struct import error as StructError
from typing import NamedTuple

import msgspec

from coordinator.errors import ConfigError, LogDamaged
from coordinator.log.journal import layout
from protocol.record_batch import next_offset_at

SUFFIX = ".journal"
_NAME = re.compile(r"\d{20}" + re.escape(SUFFIX))

# The advice must extend the file with zeros after the cut; otherwise the scan reports the file as truncated.
_GIVE_UP = (
    "giving up every record from that byte on, cut the file there and let zeros follow (truncate -s BYTE "
    "FILE; truncate -s +1M FILE), and remove the files after it and the file recovery-point; "
    "`share-coordinator journal verify` reports what can still be read"
)
ADVICE = f"restore the journal's folder from a backup; or, {_GIVE_UP}"
ADVICE_CUT_SHORT = f"copy the journal's folder again, or restore it from a backup; or, {_GIVE_UP}"
ADVICE_MISSING = (
    "restore the file from a backup; or, giving up every record from there on, remove the files after it and "
    "the file recovery-point"
)


class Segment(msgspec.Struct):
    """A file of the journal whose header is valid. `end` is the position after its last valid frame."""

    number: int
    size_bytes: int
    end: int
    # Log offset of the last record in this segment, by state partition.
    last_offsets: dict[int, int]
    # The last commit in this segment; if it has none, the last commit before it.
    last_commit: int
    # Whether all bytes are known to be durable. In `always` mode, only the last segment may have False.
    durable: bool = False
    # The file name, cached because each commit uses it.
    name: str = ""

    def __post_init__(self) -> None:
        self.name = segment_name(self.number)


class SegmentWithHeader(NamedTuple):
    """A file with a valid segment header."""

    name: str
    header: layout.SegmentHeader


class JournalTail(NamedTuple):
    """The end of the journal: `is_clean` if only zeros follow; `lost_commits` counts later commits."""

    name: str
    position: int
    is_clean: bool
    lost_commits: int


class FollowingFrame(NamedTuple):
    """A header or the head of a frame after a position; `durable` is the last durable commit in it."""

    name: str
    position: int
    commit: int
    durable: int


FrameVisitor = Callable[[str, layout.Frame], None]


def segment_name(number: int) -> str:
    """Return the file name of a segment; names sort by segment number."""
    return f"{number:020d}{SUFFIX}"


def segment_number(name: str) -> int | None:
    """Return the segment number in a file name, or None if the name is not that of a segment."""
    return int(name.removesuffix(SUFFIX)) if _NAME.fullmatch(name) else None


def read_header(path: str, data: bytes, state_partitions: int | None) -> layout.SegmentHeader | None:
    """Decode the header of a segment; return None if it is not valid.

    Raises LogDamaged for a newer format version, and ConfigError if the segment has another number of state
    partitions than `state_partitions`.
    """
    try:
        header = layout.decode_header(data)
    except ValueError as error:
        raise LogDamaged(path, 0, str(error), "use a release that supports it") from None
    if header is not None and state_partitions not in (None, len(header.end_offsets)):
        raise ConfigError(
            "share.coordinator.state.topic.num.partitions",
            state_partitions,
            f"{len(header.end_offsets)}, with which the journal {path} was made",
        )
    return header


def check_headerless_file(
    name: str, data: memoryview, last_number: int, state_partitions: int, describe: Callable[[str], str]
) -> None:
    """Refuse a file that has lost its header; a file prepared for later use contains zeros.

    `last_number` is the number of the last segment with a valid header, 0 if there is none.  An interrupted
    write of a header loses nothing, because no commit follows it yet.
    """
    number = segment_number(name)
    assert number is not None, "only segment files are checked"
    path = describe(name)
    if number < last_number or any(layout.find_later_heads(data, 0, number)):
        raise LogDamaged(path, 0, "its header is not valid, but commits follow it", ADVICE)
    if number > last_number + 1:
        missing = describe(segment_name(number - 1))
        raise LogDamaged(missing, 0, f"the file is missing, but {name} is there", ADVICE_MISSING)
    needed_bytes = layout.minimum_file_bytes(data, layout.first_position(state_partitions), number)
    # An interrupted creation of a file leaves only zeros.
    if len(data) < needed_bytes and not layout.is_zero(data):
        raise _make_truncation_error(path, 0, len(data))
    header_end = layout.header_bytes(state_partitions)
    if not layout.has_zero_sector(data, 0, header_end):
        raise LogDamaged(path, 0, "its header is not valid, though it was written as a whole", ADVICE)


def _make_truncation_error(path: str, position: int, size_bytes: int) -> LogDamaged:
    found = f"the file ends at byte {size_bytes}, and it was longer once, so a copy of it may have broken off"
    return LogDamaged(path, position, found, ADVICE_CUT_SHORT)


class SegmentScan:
    """One pass over the segments with headers, oldest first.

    Call `scan_segment` for each segment in order. When `scan_segment` returns False, call `find_tail` and
    stop. Without segments, call `check_recovery_point`. `describe` returns the path for a file name. The
    attributes are the results. All methods raise LogDamaged.
    """

    def __init__(
        self,
        with_header: Sequence[SegmentWithHeader],
        state_partitions: int,
        describe: Callable[[str], str],
        recovery_point: layout.RecoveryPoint | None = None,
    ) -> None:
        self._describe = describe
        self._with_header = with_header
        self._recovery_point = recovery_point
        self.segments: list[Segment] = []
        first = with_header[0].header if with_header else None
        self.start_offsets = list(first.end_offsets) if first else [0] * state_partitions
        self.end_offsets = list(self.start_offsets)
        self.next_commit = first.first_commit if first else 1
        self.oldest = first.oldest if first else 1
        # End of the last frame with entries in the last scanned segment.
        self._entries_end = 0
        # File name, begin and end of the last valid frame.
        self.last_frame: tuple[str, int, int] | None = None

    def scan_segment(self, data: memoryview, visit: FrameVisitor | None = None) -> bool:
        """Scan the next segment; return True if it is valid up to its end in the next segment's header."""
        index = len(self.segments)
        name, header = self._with_header[index]
        successor = self._with_header[index + 1].header if index + 1 < len(self._with_header) else None
        self._check_continues_previous(name, header)
        self.oldest = max(self.oldest, header.oldest)
        position = self._entries_end = layout.first_position(len(self.end_offsets))
        limit = successor.previous_end if successor else len(data)
        last_offsets: dict[int, int] = {}
        for frame in read_frames(data, header.number, position, limit, self.next_commit):
            self._add_frame(name, frame, last_offsets)
            if visit is not None:
                visit(name, frame)
            position = frame.end
            if frame.entries:
                self._entries_end = position
        self.segments.append(Segment(header.number, len(data), position, last_offsets, self.next_commit - 1))
        return successor is not None and position == limit

    def find_tail(self, data: memoryview, later: Sequence[FollowingFrame]) -> JournalTail:
        """Return the tail at the end of the valid frames of the last scanned segment. Raises LogDamaged.

        `data` is that segment; `later` are the later frames and headers in all segments after it.
        """
        name, header = self._with_header[len(self.segments) - 1]
        position = self.segments[-1].end
        if len(data) < layout.minimum_file_bytes(data, self._entries_end, header.number):
            raise _make_truncation_error(self._describe(name), position, len(data))
        self.check_recovery_point()
        if not later and layout.is_zero(data[position:]):
            return JournalTail(name, position, True, 0)
        lost_commits = 0
        for later_frame in (*find_following_frames(name, header, data, position), *later):
            if later_frame.durable >= self.next_commit:
                raise self.make_damage_error(
                    name,
                    position,
                    f"commit {self.next_commit} is not valid, but it was durable before byte "
                    f"{later_frame.position} of {later_frame.name} was written",
                )
            lost_commits = max(lost_commits, later_frame.commit - self.next_commit + 1)
        if not layout.is_torn(data, position, header.number):
            raise self.make_damage_error(
                name, position, f"commit {self.next_commit} is not valid, though it was written as a whole"
            )
        return JournalTail(name, position, False, lost_commits)

    def check_recovery_point(self) -> None:
        """Refuse a journal that ends before its last durable commit. Call this method last."""
        point = self._recovery_point
        if point is None or point.commit < self.next_commit:
            return
        last_number = self._with_header[-1].header.number if self._with_header else 0
        if point.segment > last_number:
            missing = self._describe(segment_name(last_number + 1 if self._with_header else point.segment))
            found = f"the file is missing, but commit {point.commit} was durable in segment {point.segment}"
            raise LogDamaged(missing, 0, found, ADVICE_MISSING)
        last = self.segments[-1]
        raise self.make_damage_error(
            last.name,
            last.end,
            f"commit {self.next_commit} is not valid, but it was durable before the file "
            f"{layout.RECOVERY_POINT_NAME} was written",
        )

    def check_oldest_segment(self) -> None:
        """Refuse a journal whose oldest needed segments are missing."""
        if self._with_header and self._with_header[0].header.number > self.oldest:
            missing = self._describe(segment_name(self.oldest))
            raise LogDamaged(missing, 0, "the file is missing", ADVICE_MISSING)

    def _check_continues_previous(self, name: str, header: layout.SegmentHeader) -> None:
        if segment_name(header.number) != name:
            raise self.make_damage_error(name, 0, f"its header has segment number {header.number}")
        if not self.segments:
            return
        expected = self.segments[-1].number + 1
        if header.number != expected:
            missing = self._describe(segment_name(expected))
            raise LogDamaged(missing, 0, f"the file is missing, but {name} is there", ADVICE_MISSING)
        if header.end_offsets != tuple(self.end_offsets) or header.first_commit != self.next_commit:
            raise self.make_damage_error(name, 0, "it does not continue where the previous segment ends")

    def _add_frame(self, name: str, frame: layout.Frame, last_offsets: dict[int, int]) -> None:
        ends = self.end_offsets
        try:
            for state_partition, batch in layout.decode_entries(frame):
                base_offset = int.from_bytes(batch[:8])
                if base_offset != ends[state_partition]:
                    raise ValueError(
                        f"a batch of state partition {state_partition} begins at log offset {base_offset}, "
                        f"not at {ends[state_partition]}"
                    )
                ends[state_partition] = end_offset = next_offset_at(batch, 0)
                last_offsets[state_partition] = end_offset - 1
        except (ValueError, IndexError, StructError) as error:
            raise self.make_damage_error(name, frame.begin, str(error)) from None
        self.next_commit += 1
        self.oldest = max(self.oldest, frame.oldest)
        self.last_frame = (name, frame.begin, frame.end)

    def make_damage_error(self, name: str, position: int, found: str) -> LogDamaged:
        return LogDamaged(self._describe(name), position, found, ADVICE)


def read_frames(
    data: memoryview, segment: int, position: int, limit: int, commit: int
) -> Iterator[layout.Frame]:
    """Yield the valid frames from a position on; their commits are consecutive from `commit`."""
    while frame := layout.decode_frame_at(data, position, segment, position):
        if frame.commit != commit or frame.end > limit:
            return
        yield frame
        position = frame.end
        commit += 1


def find_following_frames(
    name: str, header: layout.SegmentHeader, data: memoryview, position: int
) -> Iterator[FollowingFrame]:
    """Yield the heads after a position of a segment; from position 0, yield the header first."""
    if position == 0:
        yield FollowingFrame(name, 0, header.first_commit, header.durable)
    for head_position, head in layout.find_later_heads(data, position, header.number):
        yield FollowingFrame(name, head_position, head.commit, head.durable)
