"""Encode the requests of the benchmarks as frames, and find the positions of their offsets and epochs.

A connection sends its frames repeatedly. Each repetition has greater offsets and epochs, because the
coordinator would ignore a write with the offsets of the previous one.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from coordinator.client.rpcs import RPC_BY_API_KEY
from protocol.messages import APIS
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import find_coordinator as find_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_CLIENT_ID = b"bench"
HEADER_BYTES = _SIZE.size + _HEADER.size + len(_CLIENT_ID) + 1

# Group ids start with a prefix of this length, so that each run and connection has its own groups.
GROUP_PREFIX = "bench-00000-0000"
# Placeholders for offsets and epochs; these values occur nowhere else in a request.
_OFFSET_MARK = 0x7F01_0203_0405_0607
_EPOCH_MARK = 0x7E11_2233


class Frame(NamedTuple):
    """An encoded request with its size prefix.

    Each repetition adds a step to the int64 offsets at the byte positions `offset_places`, and another step
    to the int32 epochs at `epoch_places`.
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
        """Return the simulated client connections of one run of the load generator.

        No two runs use the same share group.
        """
        ...


class RequestEntry(NamedTuple):
    """A share-partition in a request. The API determines which fields are used."""

    partition: int
    state_epoch: int = 0
    leader_epoch: int = 0
    # -1: unknown.
    start_offset: int = -1
    delivery_complete_count: int = -1
    batches: Sequence[tuple[int, int, int, int]] = ()


# The topic id and the entries of each topic in a request.
RequestTopics = Sequence[tuple[bytes, Sequence[RequestEntry]]]


def request_frame(
    api_key: int, version: int, group: str, topics: RequestTopics, *, epochs_grow: bool = False
) -> Frame:
    """Encode a request with the positions of its offsets, and with `epochs_grow` of its epochs too."""
    marked = [
        (topic_id, [_mark_entry(entry, epochs_grow) for entry in entries]) for topic_id, entries in topics
    ]
    marked_data = _encode_frame(api_key, version, group, marked)
    return Frame(
        _encode_frame(api_key, version, group, topics),
        _find_positions(marked_data, _OFFSET_MARK.to_bytes(8, "big")),
        _find_positions(marked_data, _EPOCH_MARK.to_bytes(4, "big")),
    )


def _mark_entry(entry: RequestEntry, epochs_grow: bool) -> RequestEntry:
    """Return an entry with placeholders instead of its offsets and, with `epochs_grow`, its epochs."""
    batches = [(_OFFSET_MARK, _OFFSET_MARK, *batch[2:]) for batch in entry.batches]
    # An unknown start offset (-1) does not increase in the repetitions.
    start_offset = _OFFSET_MARK if entry.start_offset >= 0 else -1
    marked = entry._replace(start_offset=start_offset, batches=batches)
    return marked._replace(state_epoch=_EPOCH_MARK, leader_epoch=_EPOCH_MARK) if epochs_grow else marked


def _encode_frame(api_key: int, version: int, group: str, topics: RequestTopics) -> bytes:
    body = APIS[api_key].module.encode_request(_build_request(api_key, group, topics), version)
    header = _HEADER.pack(api_key, version, 1, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
    return _SIZE.pack(len(header) + len(body)) + header + body


def _build_request(api_key: int, group: str, topics: RequestTopics) -> Any:
    if api_key == find_api.API_KEY:
        ((topic_id, (entry,)),) = topics
        key = SharePartitionKey(group, topic_id, entry.partition)
        return find_api.FindCoordinatorRequest(key_type=2, coordinator_keys=[str(key)])
    rpc, make_part = RPC_BY_API_KEY[api_key], _MAKE_PART[api_key]
    return rpc.request(
        group, [rpc.topic(topic_id, list(map(make_part, entries))) for topic_id, entries in topics]
    )


def _make_write_part(entry: RequestEntry) -> write_api.PartitionData:
    batches = pack(StateBatch(*batch) for batch in entry.batches)
    return write_api.PartitionData(*entry[:-1], batches)


# The functions that convert an entry to a part of a request, by API key.
_MAKE_PART: dict[int, Callable[[RequestEntry], Any]] = {
    initialize_api.API_KEY: lambda entry: initialize_api.PartitionData(
        entry.partition, entry.state_epoch, entry.start_offset
    ),
    read_api.API_KEY: lambda entry: read_api.PartitionData(entry.partition, entry.leader_epoch),
    summary_api.API_KEY: lambda entry: summary_api.PartitionData(entry.partition, 0),
    delete_api.API_KEY: lambda entry: delete_api.PartitionData(entry.partition),
    write_api.API_KEY: _make_write_part,
}


def _find_positions(marked: bytes, mark: bytes) -> list[int]:
    places = []
    at = marked.find(mark)
    while at >= 0:
        places.append(at)
        at = marked.find(mark, at + len(mark))
    return places


def initialize_frame(group: str, topic_id: bytes, partitions: Sequence[int], start_offset: int = 0) -> Frame:
    """Return a request that initializes share-partitions of one topic."""
    entries = [RequestEntry(number, start_offset=start_offset) for number in partitions]
    return request_frame(initialize_api.API_KEY, 0, group, [(topic_id, entries)])


def group_prefix(run: int, connection: int) -> str:
    """Return the prefix of the share-group ids of one connection in one run of the load generator."""
    return f"bench-{run:05}-{connection:04}"


def rename_groups(frames: Sequence[Frame], run: int, connection: int) -> list[Frame]:
    """Replace GROUP_PREFIX in the frames with the prefix of one connection in one run."""
    old, new = GROUP_PREFIX.encode(), group_prefix(run, connection).encode()
    return [frame._replace(data=frame.data.replace(old, new)) for frame in frames]
