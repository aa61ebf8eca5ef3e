"""The scan of a journal's segments: each inconsistency is reported with its file and position."""

import pytest

from coordinator.errors import LogDamaged
from coordinator.log.journal import layout
from coordinator.log.journal.scan import (
    JournalTail,
    SegmentScan,
    SegmentWithHeader,
    check_headerless_file,
    segment_name,
)
from tests.unit.log.environments import STATE_PARTITIONS
from tests.unit.log.journals import FIRST_POSITION, encode_entry

FIRST_HEADER = layout.SegmentHeader(1, "always", 0, 1, 0, 1, (0,) * STATE_PARTITIONS)
FRAME_BYTES = layout.frame_bytes(len(encode_entry(0)))
SECOND_HEADER = layout.SegmentHeader(
    2, "always", FIRST_POSITION + 2 * FRAME_BYTES, 3, 2, 1, (2, *FIRST_HEADER.end_offsets[1:])
)


def make_segment(header: layout.SegmentHeader, *entries: bytes) -> bytes:
    """Return a segment of the least size with one frame for each entry; empty entries use the reserve."""
    data = layout.encode_header(header).ljust(FIRST_POSITION, b"\0")
    file_bytes = 0
    for commit, entry in enumerate(entries, header.first_commit):
        durable = commit - 1 if header.sync == "always" else 0
        data += layout.encode_frame(header.number, len(data), commit, durable, header.oldest, (entry,))
        file_bytes = len(data) + layout.RESERVE_BYTES if entry else file_bytes
    return data.ljust(file_bytes or FIRST_POSITION + layout.RESERVE_BYTES, b"\0")


def scan_segments(*files: tuple[str, bytes]) -> tuple[SegmentScan, JournalTail | None]:
    headers = [layout.decode_header(data) for _, data in files]
    scan = SegmentScan(
        [SegmentWithHeader(name, header) for (name, _), header in zip(files, headers, strict=True) if header],
        STATE_PARTITIONS,
        str,
    )
    tail = None
    for _, data in files:
        if not scan.scan_segment(memoryview(data)):
            tail = scan.find_tail(memoryview(data), [])
    scan.check_oldest_segment()
    return scan, tail


FIRST_FILE = (segment_name(1), make_segment(FIRST_HEADER, encode_entry(0), encode_entry(1)))


def second_file(**changes: object) -> tuple[str, bytes]:
    return segment_name(2), make_segment(SECOND_HEADER._replace(**changes), encode_entry(2))


def test_scan_of_intact_segments_returns_their_ends() -> None:
    scan, tail = scan_segments(FIRST_FILE, second_file())
    assert [(each.number, each.end, each.last_commit, each.last_offsets) for each in scan.segments] == [
        (1, FIRST_POSITION + 2 * FRAME_BYTES, 2, {0: 1}),
        (2, FIRST_POSITION + FRAME_BYTES, 3, {0: 2}),
    ]
    assert (scan.next_commit, scan.oldest, scan.end_offsets[:2]) == (4, 1, [3, 0])
    assert scan.last_frame == (segment_name(2), FIRST_POSITION, FIRST_POSITION + FRAME_BYTES)
    assert tail == JournalTail(segment_name(2), FIRST_POSITION + FRAME_BYTES, True, 0)


def test_oldest_needed_segment_is_in_the_last_header_or_a_later_frame() -> None:
    scan, _ = scan_segments(FIRST_FILE, (segment_name(2), make_segment(SECOND_HEADER._replace(oldest=2))))
    assert scan.oldest == 2


def test_frame_without_entries_may_use_the_reserved_end_of_a_segment() -> None:
    frames = layout.RESERVE_BYTES // layout.frame_bytes(0)
    data = make_segment(FIRST_HEADER, encode_entry(0), *[b""] * frames)
    scan, tail = scan_segments((segment_name(1), data))
    assert (tail, scan.next_commit) == (JournalTail(segment_name(1), len(data), True, 0), 2 + frames)
    with pytest.raises(LogDamaged, match="was longer once") as caught:
        scan_segments((segment_name(1), data[:-1]))
    assert caught.value.position == len(data) - layout.frame_bytes(0)


def test_commits_after_a_lost_one_are_counted() -> None:
    """Without a sync, a crash of the machine may lose the second of four commits."""
    name, position = segment_name(1), FIRST_POSITION + FRAME_BYTES
    data = bytearray(make_segment(FIRST_HEADER._replace(sync="os"), *map(encode_entry, range(4))))
    data[position : position + FRAME_BYTES] = bytes(FRAME_BYTES)
    assert scan_segments((name, bytes(data)))[1] == JournalTail(name, position, False, 3)


def test_only_a_complete_header_is_decoded() -> None:
    encoded = layout.encode_header(SECOND_HEADER)
    for size in range(len(encoded)):
        is_complete = size >= len(encoded) - len(b"end\n")
        assert layout.decode_header(encoded[:size]) == (SECOND_HEADER if is_complete else None)


def test_only_an_undamaged_recovery_point_is_decoded() -> None:
    point = layout.RecoveryPoint(3, 1 << 40)
    encoded = layout.encode_recovery_point(point)
    assert layout.decode_recovery_point(encoded) == point
    assert len(encoded) == layout.SECTOR_BYTES
    for position in range(28):
        damaged = encoded[:position] + bytes([encoded[position] ^ 1]) + encoded[position + 1 :]
        assert layout.decode_recovery_point(damaged) is None
        assert layout.decode_recovery_point(encoded[: -1 - position]) is None


@pytest.mark.parametrize(
    ("files", "damaged", "position", "found"),
    [
        ([FIRST_FILE, second_file(first_commit=4)], 2, 0, "does not continue"),
        ([FIRST_FILE, second_file(end_offsets=FIRST_HEADER.end_offsets)], 2, 0, "does not continue"),
        ([(segment_name(2), FIRST_FILE[1])], 2, 0, "its header has segment number 1"),
        ([FIRST_FILE, (segment_name(3), make_segment(SECOND_HEADER._replace(number=3)))], 2, 0, "is missing"),
        ([(segment_name(3), make_segment(SECOND_HEADER._replace(number=3)))], 1, 0, "is missing"),
        *(
            ([(segment_name(1), make_segment(FIRST_HEADER, encode_entry(0), entry))], 1, second, found)
            for second in (FIRST_POSITION + FRAME_BYTES,)
            for entry, found in (
                (encode_entry(2), "begins at log offset 2, not at 1"),
                (encode_entry(0), "begins at log offset 0, not at 1"),
                (encode_entry(1)[:3], "an entry is cut off"),
                (encode_entry(1)[:-1], "an entry reaches beyond its commit"),
                (encode_entry(1) + encode_entry(2)[:5], "an entry is cut off"),
                (STATE_PARTITIONS.to_bytes(2, "big") + encode_entry(0)[2:], "index out of range"),
            )
        ),
    ],
)
def test_inconsistent_segment_is_damaged(
    files: list[tuple[str, bytes]], damaged: int, position: int, found: str
) -> None:
    with pytest.raises(LogDamaged, match=found) as caught:
        scan_segments(*files)
    assert (caught.value.file, caught.value.position) == (segment_name(damaged), position)


HEADER_END = layout.header_bytes(STATE_PARTITIONS)
EMPTY_FILE_BYTES = FIRST_POSITION + layout.RESERVE_BYTES


@pytest.mark.parametrize(
    ("number", "last_number", "data", "damaged", "position", "found"),
    [
        (3, 1, bytes(EMPTY_FILE_BYTES), 2, 0, "the file is missing"),
        (1, 2, bytes(EMPTY_FILE_BYTES), 1, 0, "commits follow it"),
        (1, 0, bytes(FIRST_POSITION) + FIRST_FILE[1][FIRST_POSITION:], 1, 0, "commits follow it"),
        (2, 1, b"x" + bytes(EMPTY_FILE_BYTES - 2), 2, 0, "was longer once"),
        (2, 1, (b"x" * HEADER_END).ljust(EMPTY_FILE_BYTES, b"\0"), 2, 0, "was written as a whole"),
        # An interrupted write of a header, and an interrupted creation of a file.
        (2, 1, (b"x" * (HEADER_END - 1)).ljust(EMPTY_FILE_BYTES, b"\0"), None, 0, ""),
        (2, 1, bytes(EMPTY_FILE_BYTES - 1), None, 0, ""),
        (2, 2, bytes(EMPTY_FILE_BYTES), None, 0, ""),
    ],
)
def test_file_without_a_valid_header_is_unused_or_damaged(
    number: int, last_number: int, data: bytes, damaged: int | None, position: int, found: str
) -> None:
    def check() -> None:
        check_headerless_file(segment_name(number), memoryview(data), last_number, STATE_PARTITIONS, str)

    if damaged is None:
        check()
        return
    with pytest.raises(LogDamaged, match=found) as caught:
        check()
    assert (caught.value.file, caught.value.position) == (segment_name(damaged), position)
