"""Read the segment files of a Kafka state topic, on a broker's disk or in a backup.

A directory `TOPIC-N` has the segments of state partition N. The broker may be running or stopped, and the
files are not changed. The end of the log on one broker may have records that were never committed
(replicated). The last segment may end in an incomplete batch; elsewhere, an incomplete batch is damage.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from coordinator.errors import ConfigError
from coordinator.recovery.parse import make_empty_records, parse, parse_readable
from coordinator.recovery.records import Damage, Records
from coordinator.recovery.sources.base import (
    END,
    LogCut,
    LogRange,
    ReadPlan,
    offsets_after_time,
)
from protocol.errors import DecodeError
from protocol.record_batch import MAGIC, batch_size_at

# The name of a partition's directory. At most 9 digits of a partition number are accepted.
_FOLDER = re.compile(r"(.+)-(\d{1,9})")
_SEGMENT = re.compile(r"(\d{20})\.log")
_CHECKPOINT = "log-start-offset-checkpoint"
_READ_BYTES = 8 << 20
# The default of a broker's socket.request.max.bytes; a batch length above it is invalid.
_BATCH_BYTES_MAX = 100 << 20
_MAGIC_AT = 16
_SECTOR_BYTES = 512
# A complete batch ends in fewer zero bytes than this number; they are empty fields.
_UNWRITTEN_END_BYTES = 32
# Typical bytes of a record including its share of the batch header, to estimate the number of records.
_RECORD_BYTES = 100
_STATE_TOPICS = ("__share_group_state", "_share-coordinator-state")


class SegmentFile(NamedTuple):
    """A segment file: its log offsets from `start` to `end` (exclusive), and its size when it was planned."""

    path: str
    start: int
    end: int
    size_bytes: int


@dataclass(frozen=True)
class SegmentSource:
    """A directory of `TOPIC-N` directories (`DIR/TOPIC` selects a topic), or one `TOPIC-N` directory."""

    folder: str

    @property
    def text(self) -> str:
        """The source as the value of the option --from."""
        return f"segments:{self.folder}"

    def identity(self) -> dict[str, str]:
        """Read the ids of cluster and topic from the metadata files that a broker stores with segments."""
        found: dict[str, str] = {}
        for folder in self._partition_folders().values():
            for path, name, key in (
                (folder.parent / "meta.properties", "cluster_id", "cluster.id="),
                (folder / "partition.metadata", "topic_id", "topic_id:"),
            ):
                with suppress(OSError, UnicodeDecodeError):
                    for line in path.read_text("utf-8").splitlines():
                        if line.startswith(key):
                            found[name] = line.removeprefix(key).strip()
        return found

    def plan(self, cut: LogCut) -> ReadPlan:
        """List the segment files and their current sizes. Each range has the files of one state partition."""
        ranges: list[LogRange] = []
        starts, ends = {}, {}
        folders = self._partition_folders()
        for state_partition, folder in sorted(folders.items()):
            segments = _list_segments(folder)
            first = segments[0][0] if segments else 0
            starts[state_partition] = max(first, _checkpointed_log_start(folder))
            ends_before = [base for base, _ in segments[1:]]
            files = tuple(
                SegmentFile(path, base, end, os.path.getsize(path))
                for (base, path), end in zip(segments, [*ends_before, END][: len(segments)], strict=True)
            )
            start = max(starts[state_partition], cut.start(state_partition))
            records = sum(each.size_bytes for each in files) // _RECORD_BYTES
            ranges.append(LogRange(state_partition, start, cut.end(state_partition), records, files))
            if cut.end(state_partition) != END:
                ends[state_partition] = cut.end(state_partition)
        plan = ReadPlan(tuple(ranges), starts, ends, facts={"folders": len(folders)})
        if cut.time_ms is None:
            return plan
        later = offsets_after_time(self, plan, cut.time_ms)
        cut_ranges = tuple(
            replace(each, end=min(each.end, later.get(each.state_partition, END))) for each in ranges
        )
        return replace(plan, ranges=cut_ranges, ends={**ends, **later})

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Yield the records of a range, one segment file after the other."""
        if not log_range.place:
            # The segment files are missing, because a broker has one even if the partition has no records.
            lost = Damage(
                log_range.state_partition, 0, max(log_range.start - 1, 0), "there is no segment file"
            )
            yield replace(make_empty_records(log_range.state_partition), damages=(lost,))
        for segment in log_range.place:
            start, end = max(segment.start, log_range.start), min(segment.end, log_range.end)
            if start < end and segment.size_bytes:
                yield from self._read_segment(replace(log_range, start=start, end=end), segment)

    def _read_segment(self, log_range: LogRange, segment: SegmentFile) -> Iterator[Records]:
        number, end, position = log_range.state_partition, segment.size_bytes, 0
        # The log offset of the next record, and the number of bytes to read.
        expected, window_bytes = log_range.start, _READ_BYTES
        with open(segment.path, "rb") as file:
            while position < end:
                wanted_bytes = min(window_bytes, end - position)
                data = os.pread(file.fileno(), wanted_bytes, position)
                found = parse_readable(number, data, first_byte=position)
                position += found.used_bytes
                rest = data[found.used_bytes :]
                records = found.records.select_offsets(log_range.start, log_range.end)
                if len(found.records):
                    expected = max(expected, int(found.records.log_offset[-1]) + 1)
                is_past = found.records.reaches(log_range.end)
                # Check the length in the batch header first, because an invalid length could cause a very
                # large read.
                size_bytes = _read_batch_size(rest)
                is_cut_off = size_bytes is not None and not 0 < size_bytes <= end - position
                is_end = len(data) < wanted_bytes or position + len(rest) >= end
                if is_past or not rest or not (found.found or is_cut_off or is_end):
                    if len(records):
                        yield records
                    if is_past or not data:
                        return
                    window_bytes = max(_READ_BYTES, size_bytes or 0)
                    continue
                if segment.end == END and _is_torn_write(
                    number, os.pread(file.fileno(), _READ_BYTES, position)
                ):
                    yield replace(records, unread_bytes=end - position)
                    return
                why = found.found or f"its last batch is cut off at byte {position}"
                position = _find_valid_batch_in_file(number, file, position + 1, end)
                following = log_range.end
                if position < end:
                    following = int.from_bytes(os.pread(file.fileno(), 8, position))
                last = following - 1 if expected < following != END else expected
                damage = Damage(number, expected, last, f"{Path(segment.path).name}: {why}")
                yield replace(records, damages=(damage,))

    def _partition_folders(self) -> dict[int, Path]:
        """Return the directory of each state partition.

        Raises ConfigError unless the directory has exactly one topic.
        """
        given = Path(self.folder)
        if given.is_dir() and (named := _FOLDER.fullmatch(given.resolve().name)) and _list_segments(given):
            return {int(named[2]): given}
        by_topic: dict[str, dict[int, Path]] = {}
        parent = given if given.is_dir() else given.parent
        if not parent.is_dir():
            raise ConfigError("segments", self.folder, "an existing directory")
        for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
            matched = _FOLDER.fullmatch(entry.name)
            if matched and entry.is_dir():
                by_topic.setdefault(matched[1], {})[int(matched[2])] = Path(entry.path)
        if not given.is_dir():
            by_topic = {topic: folders for topic, folders in by_topic.items() if topic == given.name}
        states = [topic for topic in by_topic if topic in _STATE_TOPICS]
        topics = states if states and len(by_topic) > 1 else list(by_topic)
        if len(topics) != 1:
            has = f"it has those of {', '.join(sorted(topics))}" if topics else "it has none"
            raise ConfigError(
                "segments",
                self.folder,
                f"a folder with the TOPIC-N folders of one topic, or FOLDER/TOPIC ({has})",
            )
        return by_topic[topics[0]]


def _read_batch_size(data: bytes, at: int = 0) -> int | None:
    """Return a batch's size in bytes from its header: None if the header is incomplete, 0 if invalid."""
    try:
        size_bytes = batch_size_at(data, at)
    except DecodeError:
        return 0
    return size_bytes if size_bytes is None or size_bytes <= _BATCH_BYTES_MAX else 0


def _is_torn_write(state_partition: int, data: bytes) -> bool:
    """Return whether invalid bytes at the end of a segment may be an incomplete write.

    An incomplete write is the beginning of a batch, preallocated zeros, or a batch that the broker has
    completed since. Other bytes are damage. Invalid bytes before a valid batch are damage, too.
    """
    if not data.strip(b"\0"):
        return True
    size_bytes = _read_batch_size(data)
    if size_bytes == 0 or (len(data) > _MAGIC_AT and data[_MAGIC_AT] != MAGIC):
        return False
    try:
        if parse(state_partition, memoryview(data)[: size_bytes or 0]).used_bytes:
            return True
    except DecodeError:
        # The batch has a valid CRC, but its records are invalid.
        return False
    if size_bytes and size_bytes <= len(data) and not _has_unwritten_part(data[:size_bytes]):
        return False
    return _find_valid_batch(state_partition, data) is None


def _has_unwritten_part(batch: bytes) -> bool:
    """Return whether a part of a batch may never have been written: a sector or the end is zero."""
    return bytes(_SECTOR_BYTES) in batch or not any(batch[-_UNWRITTEN_END_BYTES:])


def _find_valid_batch(state_partition: int, data: bytes) -> int | None:
    """Return the position of the first valid batch in the data; None if there is none."""
    at = data.find(MAGIC, _MAGIC_AT)
    while at >= 0:
        begin = at - _MAGIC_AT
        size_bytes = _read_batch_size(data, begin) or 0
        if 0 < size_bytes <= len(data) - begin:
            batch = memoryview(data)[begin : begin + size_bytes]
            with suppress(DecodeError):
                if parse(state_partition, batch).used_bytes:
                    return begin
        at = data.find(MAGIC, at + 1)
    return None


def _find_valid_batch_in_file(state_partition: int, file: BinaryIO, position: int, end: int) -> int:
    """Return a file's first position of a valid batch at or after `begin`; `end` if there is none."""
    for begin in range(position, end, _BATCH_BYTES_MAX):
        # Every batch that begins in the first half is read completely.
        data = os.pread(file.fileno(), min(2 * _BATCH_BYTES_MAX, end - begin), begin)
        at = _find_valid_batch(state_partition, data)
        if at is not None:
            return begin + at
    return end


def _list_segments(folder: Path) -> list[tuple[int, str]]:
    """Return the base offset and path of each segment, in log order."""
    found = []
    for entry in os.scandir(folder):
        matched = _SEGMENT.fullmatch(entry.name)
        if matched:
            found.append((int(matched[1]), entry.path))
    return sorted(found)


def _checkpointed_log_start(folder: Path) -> int:
    """Return a partition's log start offset from the broker's checkpoint file; 0 if it has no entry.

    Records below this offset are pruned, although their segment file may still exist.
    """
    try:
        lines = (folder.parent / _CHECKPOINT).read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return 0
    for line in lines[2:]:
        topic, partition, offset = (*line.rsplit(" ", 2), "", "")[:3]
        if f"{topic}-{partition}" == folder.resolve().name and offset.isdigit():
            return int(offset)
    return 0
