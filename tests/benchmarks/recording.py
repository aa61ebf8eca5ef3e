"""Read and write recordings of a broker's persister: the structure of its requests, without names or payload.

A recording is a gzip file of JSON lines.  The first line describes its origin. Each other line is one
request: milliseconds since the first, connection, API key, version, group, and the entries of each topic.
Connections, groups, topics and partitions are numbered in the order of their first occurrence, partitions
within their topic.  An entry starts with its partition:

    Initialize       partition, state epoch, start offset
    Read             partition, leader epoch
    Summary, Delete  partition
    Write            partition, state epoch, leader epoch, start offset, delivery complete count, batches
    FindCoordinator  partition

Epochs are relative to the lowest epoch of the share-partition, and start offsets to its first start offset;
-1 stays -1.  A state batch has four numbers: first offset minus start offset, last offset minus first offset,
delivery state, delivery count.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.frames import RequestEntry
from tests.kafka.jars import REPOSITORY

FOLDER = REPOSITORY / "tests" / "benchmarks" / "recorded"
_SUFFIX = ".jsonl.gz"


class RequestShape(NamedTuple):
    """One request. `topics` lists (topic number, entries) in the order of the request."""

    ms: int
    connection: int
    api_key: int
    version: int
    group: int
    topics: Sequence[tuple[int, Sequence[RequestEntry]]]

    def keyed_entries(self) -> Iterator[tuple[tuple[int, int, int], RequestEntry]]:
        """Yield each entry with its share-partition: group, topic, partition."""
        for topic, entries in self.topics:
            for entry in entries:
                yield (self.group, topic, entry.partition), entry


class RequestRecording(NamedTuple):
    """The recorded shapes and a description of their origin."""

    about: dict[str, Any]
    shapes: Sequence[RequestShape]

    @property
    def name(self) -> str:
        return f"{self.about['workload']}, {self.about['broker']}"


# The fields of an entry in a file, by API key.
RECORDED_FIELDS: dict[int, tuple[str, ...]] = {
    10: (),
    83: ("state_epoch", "start_offset"),
    84: ("leader_epoch",),
    85: ("state_epoch", "leader_epoch", "start_offset", "delivery_complete_count", "batches"),
    86: (),
    87: (),
}


def save_recording(recording: RequestRecording, path: Path) -> None:
    """Write a recording. The same recording always results in the same file bytes."""
    lines = [json.dumps(recording.about)]
    for shape in recording.shapes:
        fields = RECORDED_FIELDS[shape.api_key]
        topics = [
            [topic, [[entry.partition, *(getattr(entry, name) for name in fields)] for entry in entries]]
            for topic, entries in shape.topics
        ]
        lines.append(json.dumps([*shape[:-1], topics], separators=(",", ":")))
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n", mtime=0))


def load_recording(path: Path) -> RequestRecording:
    """Read a recording."""
    about, *lines = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return RequestRecording(about, [_parse_shape(*line) for line in lines])


def _parse_shape(
    ms: int, connection: int, api_key: int, version: int, group: int, topics: Any
) -> RequestShape:
    names = ("partition", *RECORDED_FIELDS[api_key])
    read = [
        (topic, [RequestEntry(**dict(zip(names, entry, strict=True))) for entry in entries])
        for topic, entries in topics
    ]
    return RequestShape(ms, connection, api_key, version, group, read)


def recording_path(workload: str, broker: str) -> Path:
    """Return the path of the recording of a workload with one Kafka release."""
    return FOLDER / f"{workload.replace(',', '').replace(' ', '-')}-{broker}{_SUFFIX}"


def list_recordings() -> list[Path]:
    """Return the files of all recordings."""
    return sorted(FOLDER.glob(f"*{_SUFFIX}"))


def load_recordings() -> list[RequestRecording]:
    """Return all recordings, the newest release first."""
    found = [load_recording(path) for path in list_recordings()]
    return sorted(found, key=lambda recording: recording.about["broker"], reverse=True)
