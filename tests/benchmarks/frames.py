"""Encode the requests of the benchmarks as frames, and find the positions of their offsets and epochs.

A connection sends its frames repeatedly. Each repetition has greater offsets and epochs, because the
coordinator would ignore a write with the offsets of the previous one.
"""

import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from protocol.messages import (
    delete_share_group_state,
    find_coordinator,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from protocol.state_batches import StateBatch, pack, unpack

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_CLIENT_ID = b"bench"
HEADER_BYTES = _SIZE.size + _HEADER.size + len(_CLIENT_ID) + 1

API_KEYS: dict[int, ModuleType] = {
    api.API_KEY: api
    for api in (
        delete_share_group_state,
        find_coordinator,
        initialize_share_group_state,
        read_share_group_state,
        read_share_group_state_summary,
        write_share_group_state,
    )
}
# Group ids start with a prefix of this length, so that each run and connection has its own groups.
GROUP_PREFIX = "bench-00000-0000"
# Placeholders for offsets and epochs; no other bytes of a request are equal to them.
_OFFSET_MARK = 0x7F01_0203_0405_0607
_EPOCH_MARK = 0x7E11_2233


class Frame(NamedTuple):
    """A request with its size prefix.

    Each repetition adds a step to the int64 offsets at the byte positions `offset_places`, and another step
    to
    the int32 epochs at `epoch_places`.
    """

    data: bytes
    offset_places: Sequence[int] = ()
    epoch_places: Sequence[int] = ()


class ClientRequests(NamedTuple):
    """The requests of one connection: `prologue` is sent once, then the frames of `run` are repeated."""

    prologue: Sequence[Frame]
    run: Sequence[Frame]
    in_flight: int = 1
    # The minimum number of milliseconds between two requests.
    interval_ms: int = 0


class Workload(Protocol):
    """A workload of a benchmark: a number of connections and the requests of each."""

    @property
    def connections(self) -> int: ...

    @property
    def offset_step(self) -> int: ...

    @property
    def epoch_step(self) -> int: ...

    def clients(self, run: int, topic_ids: Sequence[bytes]) -> list[ClientRequests]:
        """Return the simulated client connections of a benchmark run. No two runs share a group."""
        ...


def request_frame(api: ModuleType, version: int, request: Any, *, epochs_grow: bool = False) -> Frame:
    """Encode a request with the positions of its offsets, and with `epochs_grow` of its epochs too."""
    data = _encode_frame(api, version, request)
    marked = _encode_frame(api, version, _insert_placeholders(request, epochs_grow))
    return Frame(
        data,
        _find_positions(marked, _OFFSET_MARK.to_bytes(8, "big")),
        _find_positions(marked, _EPOCH_MARK.to_bytes(4, "big")),
    )


def _encode_frame(api: ModuleType, version: int, request: Any) -> bytes:
    body = api.encode_request(request, version)
    header = _HEADER.pack(api.API_KEY, version, 1, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
    return _SIZE.pack(len(header) + len(body)) + header + body


def _insert_placeholders(request: Any, epochs_grow: bool) -> Any:
    """Return the request with placeholders for its offsets and, with `epochs_grow`, its epochs."""
    if isinstance(request, find_coordinator.FindCoordinatorRequest):
        return request
    topics = [
        replace(
            topic, partitions=[_partition_with_placeholders(part, epochs_grow) for part in topic.partitions]
        )
        for topic in request.topics
    ]
    return replace(request, topics=topics)


def _partition_with_placeholders(part: Any, epochs_grow: bool) -> Any:
    marks: dict[str, Any] = {}
    # A start offset of -1 means that the share-partition has none, so it does not grow.
    if getattr(part, "start_offset", -1) >= 0:
        marks["start_offset"] = _OFFSET_MARK
    if getattr(part, "state_batches", b""):
        marked = (
            batch._replace(first_offset=_OFFSET_MARK, last_offset=_OFFSET_MARK)
            for batch in unpack(part.state_batches)
        )
        marks["state_batches"] = pack(marked)
    if epochs_grow:
        marks |= {name: _EPOCH_MARK for name in ("state_epoch", "leader_epoch") if hasattr(part, name)}
    return replace(part, **marks)


def _find_positions(marked: bytes, mark: bytes) -> list[int]:
    places = []
    at = marked.find(mark)
    while at >= 0:
        places.append(at)
        at = marked.find(mark, at + len(mark))
    return places


def initialize_request(
    group: str, topic_id: bytes, partitions: Sequence[int], start_offset: int = 0
) -> initialize_share_group_state.InitializeShareGroupStateRequest:
    """Return a request that initializes share-partitions of one topic."""
    parts = [initialize_share_group_state.PartitionData(number, 0, start_offset) for number in partitions]
    topic = initialize_share_group_state.InitializeStateData(topic_id, parts)
    return initialize_share_group_state.InitializeShareGroupStateRequest(group, [topic])


def read_request(
    group: str, topic_id: bytes, partitions: Sequence[int]
) -> read_share_group_state.ReadShareGroupStateRequest:
    """Return a request that reads share-partitions of one topic."""
    parts = [read_share_group_state.PartitionData(number, 0) for number in partitions]
    return read_share_group_state.ReadShareGroupStateRequest(
        group, [read_share_group_state.ReadStateData(topic_id, parts)]
    )


def summary_request(
    group: str, topic_id: bytes, partitions: Sequence[int]
) -> read_share_group_state_summary.ReadShareGroupStateSummaryRequest:
    """Return a request for the summaries of share-partitions of one topic."""
    parts = [read_share_group_state_summary.PartitionData(number, 0) for number in partitions]
    return read_share_group_state_summary.ReadShareGroupStateSummaryRequest(
        group, [read_share_group_state_summary.ReadStateSummaryData(topic_id, parts)]
    )


def write_request(
    group: str, topic_id: bytes, entries: Sequence[tuple[int, int, Sequence[StateBatch]]]
) -> write_share_group_state.WriteShareGroupStateRequest:
    """Return a write to one topic; each entry is (partition, start offset, state batches)."""
    parts = [
        write_share_group_state.PartitionData(number, 0, 0, start_offset, 0, pack(batches))
        for number, start_offset, batches in entries
    ]
    return write_share_group_state.WriteShareGroupStateRequest(
        group, [write_share_group_state.WriteStateData(topic_id, parts)]
    )


def find_request(key: str) -> find_coordinator.FindCoordinatorRequest:
    """Return a FindCoordinator request for a share-partition."""
    return find_coordinator.FindCoordinatorRequest(key_type=2, coordinator_keys=[key])


def group_prefix(run: int, connection: int) -> str:
    """Return the prefix of the groups of one connection in one run."""
    return f"bench-{run:05}-{connection:04}"


def rename_groups(frames: Sequence[Frame], run: int, connection: int) -> list[Frame]:
    """Replace GROUP_PREFIX in the frames with the prefix of one connection in one run."""
    old, new = GROUP_PREFIX.encode(), group_prefix(run, connection).encode()
    return [frame._replace(data=frame.data.replace(old, new)) for frame in frames]
