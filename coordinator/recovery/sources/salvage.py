"""Find the valid parts of a damaged journal, and the log offsets that each state partition lost. Pure.

The journal is scanned as a coordinator scans it (`coordinator.log.journal.scan`), but after damage the scan
continues at the next valid frame header. If a frame fails its CRC, its record batches with a valid CRC are
used. If the base offset of a batch is above the end of the previous batch of its state partition, the log
offsets between them are lost.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from crc32c import crc32c

from coordinator.log.journal import layout
from coordinator.recovery.parse import find_batches
from coordinator.recovery.records import Damage
from protocol.errors import DecodeError
from protocol.record_batch import HEADER_BYTES, decode_batches, next_offset_at
from protocol.routing import state_partition as routed_to
from protocol.state_records import decode_record

_ENTRY = Struct(">HI")
_CRC = Struct(">I")
_CRC_AT, _COVERED_AT = 17, 21
_END_MARK = b"end\n"
_TYPE_BYTES = 2


class SegmentExtent(NamedTuple):
    """A part of a segment file: valid frames from `commit` on, or one batch if `state_partition` >= 0."""

    begin: int
    end: int
    commit: int
    state_partition: int = -1


@dataclass
class SalvagedSegment:
    """The valid parts of one segment in log order, and its damage."""

    file: str
    number: int
    extents: list[SegmentExtent] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)


class JournalSegmentFile(NamedTuple):
    """A file of the journal; `header` is None if it is not valid."""

    name: str
    number: int
    header: layout.SegmentHeader | None
    data: memoryview


@dataclass
class SalvagedJournal:
    """The valid parts of a journal; `starts` and `ends` are log offsets by state partition."""

    segments: list[SalvagedSegment] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def salvage(files: Sequence[JournalSegmentFile], state_partitions: int) -> SalvagedJournal:
    """Scan the files of a journal in the order of their numbers, and skip damage."""
    return _JournalSalvage(files, state_partitions).run()


class _JournalSalvage:
    def __init__(self, files: Sequence[JournalSegmentFile], state_partitions: int) -> None:
        self._count = state_partitions
        oldest = max((each.header.oldest for each in files if each.header is not None), default=0)
        self._files = [each for each in files if each.number >= oldest and _is_segment_in_use(each)]
        self._found = SalvagedJournal()
        if self._files and self._files[0].number > oldest > 0:
            self._found.notes.append(f"the segments {oldest} to {self._files[0].number - 1} are missing")
        # For each state partition that may have lost records since its last valid batch: the segment, a
        # description of the damage, and the share-partitions if they are known.
        self._doubtful: dict[int, tuple[SalvagedSegment, str, tuple[bytes, ...]]] = {}

    def run(self) -> SalvagedJournal:
        number = None
        for place, file in enumerate(self._files):
            segment = SalvagedSegment(file.name, file.number)
            self._found.segments.append(segment)
            if number is not None and file.number != number + 1:
                self._mark_partitions_doubtful(
                    segment, range(self._count), f"{file.name} does not follow segment {number}"
                )
            number = file.number
            if file.header is None:
                self._mark_partitions_doubtful(
                    segment, range(self._count), f"the header of {file.name} is not valid"
                )
            else:
                self._report_missing_offsets(dict(enumerate(file.header.end_offsets)))
            following = self._files[place + 1] if place + 1 < len(self._files) else None
            self._scan_segment(segment, file, following)
        for partition, (segment, what, names) in sorted(self._doubtful.items()):
            end = self._found.ends.get(partition, 0)
            segment.damages.append(Damage(partition, end, end, f"{what}; later records may be lost", names))
        return self._found

    def _mark_partitions_doubtful(
        self, segment: SalvagedSegment, partitions: Mapping[int, tuple[bytes, ...]] | Iterable[int], what: str
    ) -> None:
        for partition in partitions:
            names = partitions[partition] if isinstance(partitions, Mapping) else ()
            before = self._doubtful.get(partition)
            if before is not None:
                # If no valid batch is between two damages, they are merged; the share-partitions of the
                # result are known only if they are known for both damages.
                names = (*before[2], *names) if before[2] and names else ()
                segment, what = before[:2]
            self._doubtful[partition] = (segment, what, names)

    def _report_missing_offsets(self, begins: Mapping[int, int]) -> None:
        """Process the next valid log offsets of state partitions; report missing offsets before them."""
        found = self._found
        for partition, begin in begins.items():
            end = found.ends.setdefault(partition, begin)
            found.starts.setdefault(partition, begin)
            doubt = self._doubtful.pop(partition, None)
            if begin > end:
                segment, what, names = doubt or (found.segments[-1], "records are missing in the journal", ())
                segment.damages.append(Damage(partition, end, begin - 1, what, names))
                found.ends[partition] = begin

    def _record_batch_offsets(self, state_partition: int, batch: bytes | memoryview) -> None:
        head = bytes(batch[:HEADER_BYTES])
        self._report_missing_offsets({state_partition: int.from_bytes(head[:8])})
        end = next_offset_at(head, 0)
        self._found.ends[state_partition] = max(end, self._found.ends[state_partition])

    def _scan_segment(
        self, segment: SalvagedSegment, file: JournalSegmentFile, following: JournalSegmentFile | None
    ) -> None:
        data = file.data
        limit = len(data)
        if following is not None and following.header is not None:
            limit = min(limit, following.header.previous_end)
        position = layout.first_position(self._count)
        while position < limit:
            frame = layout.decode_frame_at(data, position, file.number, position)
            if frame is not None and frame.end <= limit:
                self._add_frame(segment, frame)
                position = frame.end
                continue
            later = next(layout.find_later_heads(data[:limit], position, file.number), None)
            is_end = later is None and following is None
            if is_end and (layout.is_zero(data[position:]) or layout.is_torn(data, position, file.number)):
                if any(data[position:]):
                    self._found.notes.append(torn_tail_note(file.name, position))
                return
            end = limit if later is None else later[0]
            self._salvage_frame(segment, file, position, end)
            position = end

    def _add_frame(self, segment: SalvagedSegment, frame: layout.Frame) -> None:
        for state_partition, batch in layout.decode_entries(frame):
            self._record_batch_offsets(state_partition, batch)
        last = segment.extents[-1] if segment.extents else None
        if last is not None and last.end == frame.begin and last.state_partition < 0:
            segment.extents[-1] = last._replace(end=frame.end)
        else:
            segment.extents.append(SegmentExtent(frame.begin, frame.end, frame.commit))

    def _salvage_frame(
        self, segment: SalvagedSegment, file: JournalSegmentFile, position: int, end: int
    ) -> None:
        """Use the valid batches of a damaged frame.

        Mark the state partitions of the invalid batches as doubtful.
        """
        what = f"{file.name} is damaged at byte {position}"
        head = layout.decode_head_at(file.data, position, file.number, position)
        begin = position + layout.HEAD_BYTES
        known_end = None if head is None else begin + head.length
        bad: dict[int, tuple[bytes, ...]] = {}
        at = begin
        for state_partition, batch_at, at in _iterate_frame_batches(file.data, begin, end, self._count):
            batch = file.data[batch_at:at]
            # The CRC of a batch does not cover its base offset.
            expected = self._found.ends.get(state_partition, 0)
            if (
                _is_valid_batch(batch)
                and int.from_bytes(batch[:8]) == expected
                and state_partition not in bad
            ):
                self._record_batch_offsets(state_partition, batch)
                segment.extents.append(SegmentExtent(batch_at, at, 0, state_partition))
            else:
                names = self._read_share_partitions(state_partition, bytes(batch))
                known = bad.get(state_partition)
                bad[state_partition] = names if known is None else (*known, *names) if known and names else ()
        is_complete = at == known_end or file.data[at : at + len(_END_MARK)] == _END_MARK
        self._mark_partitions_doubtful(segment, bad if is_complete else range(self._count), what)

    def _read_share_partitions(self, state_partition: int, batch: bytes) -> tuple[bytes, ...]:
        """Return the share-partitions of a damaged batch; none if a key does not fit its state partition."""
        if len(batch) <= _COVERED_AT:
            return ()
        crc = _CRC.pack(crc32c(batch[_COVERED_AT:]))
        found: dict[bytes, None] = {}
        try:
            for decoded in decode_batches(batch[:_CRC_AT] + crc + batch[_COVERED_AT:]):
                for each in decoded.records:
                    record = decode_record(each.key, each.value)
                    if record is None or each.key is None:
                        return ()
                    if routed_to(record.key, self._count) != state_partition:
                        return ()
                    found[each.key[_TYPE_BYTES:]] = None
        except (DecodeError, ValueError, IndexError, StructError):
            return ()
        return tuple(found)


def _is_segment_in_use(file: JournalSegmentFile) -> bool:
    """Return whether a segment file is in use; a preallocated file has neither a header nor a frame."""
    return file.header is not None or any(layout.find_later_heads(file.data, 0, file.number))


def _iterate_frame_batches(
    data: memoryview, at: int, end: int, state_partitions: int
) -> Iterator[tuple[int, int, int]]:
    """Yield state partition, begin and end of each batch in a frame; stop at an invalid entry."""
    while at + _ENTRY.size + HEADER_BYTES <= end:
        state_partition, length = _ENTRY.unpack_from(data, at)
        batch_at = at + _ENTRY.size
        at = batch_at + length
        if state_partition >= state_partitions or length < HEADER_BYTES or at > end:
            return
        yield state_partition, batch_at, at


def _is_valid_batch(batch: memoryview) -> bool:
    _, sizes, _ = find_batches(batch, 0)
    return sizes == [len(batch)]


def torn_tail_note(name: str, position: int) -> str:
    """Return a note about an interrupted write at the end of a segment."""
    return f"{name} ends in an interrupted write at byte {position}, which was not acknowledged"
