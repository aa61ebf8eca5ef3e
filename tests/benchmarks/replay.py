"""Replay recorded traffic: the requests of each connection in order, as fast as responses arrive.

Each connection uses its own share-partitions, so the order between connections does not matter. Each
repetition has greater epochs and offsets, so that the coordinator accepts every request again.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import find_coordinator as find_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey
from tests.benchmarks.frames import (
    API_KEYS,
    GROUP_PREFIX,
    ClientRequests,
    Frame,
    find_request,
    rename_groups,
    request_frame,
)
from tests.benchmarks.recording import RequestEntry, RequestRecording, RequestShape

FIRST_OFFSET = 1_000
FIRST_EPOCH = 1


class ReplayWorkload:
    """A workload that replays a recording; `brokers` copies of the recording are sent at the same time."""

    def __init__(self, recording: RequestRecording, brokers: int) -> None:
        self.recording = recording
        self.brokers = brokers
        self._frames: dict[tuple[bytes, ...], list[tuple[list[Frame], list[Frame]]]] = {}

    def __str__(self) -> str:
        times = f", {self.brokers} times at once" if self.brokers > 1 else ""
        return f"{self.recording.name}{times}"

    @cached_property
    def _recorded_connections(self) -> list[list[RequestShape]]:
        """The requests of each connection."""
        found: dict[int, list[RequestShape]] = {}
        for shape in self.recording.shapes:
            found.setdefault(shape.connection, []).append(shape)
        return list(found.values())

    @property
    def connections(self) -> int:
        return self.brokers * len(self._recorded_connections)

    @cached_property
    def offset_step(self) -> int:
        """The increase of offsets between repetitions; greater than all offsets of the recording."""
        return 1 + max(
            (
                entry.start_offset + first + length
                for shape in self.recording.shapes
                for _, entry in shape.keyed_entries()
                for first, length, _, _ in entry.batches or [(0, 0, 0, 0)]
            ),
            default=0,
        )

    @cached_property
    def epoch_step(self) -> int:
        """The increase of epochs between repetitions; 0 if no epoch changes in the recording."""
        greatest = max(
            (
                max(entry.state_epoch, entry.leader_epoch)
                for shape in self.recording.shapes
                for _, entry in shape.keyed_entries()
            ),
            default=0,
        )
        return greatest + 1 if greatest else 0

    def clients(self, run: int, topic_ids: Sequence[bytes]) -> list[ClientRequests]:
        """Return the connections of a run."""
        key = tuple(topic_ids)
        if key not in self._frames:
            self._frames[key] = self._encode_connections(topic_ids)
        return [
            ClientRequests(rename_groups(prologue, run, number), rename_groups(sent, run, number))
            for number, (prologue, sent) in enumerate(self._frames[key] * self.brokers)
        ]

    def _encode_connections(self, topic_ids: Sequence[bytes]) -> list[tuple[list[Frame], list[Frame]]]:
        encode = _ShapeEncoder(topic_ids, epochs_grow=self.epoch_step > 0)
        return [
            (list(encode.prologue(shapes)), [encode.frame(shape) for shape in shapes])
            for shapes in self._recorded_connections
        ]


class _ShapeEncoder:
    """Encodes shapes as requests, with the topics, groups, epochs and offsets of a replay."""

    def __init__(self, topic_ids: Sequence[bytes], *, epochs_grow: bool) -> None:
        self._topic_ids = topic_ids
        self._epochs_grow = epochs_grow

    def prologue(self, shapes: Sequence[RequestShape]) -> Iterator[Frame]:
        """Yield Initialize requests for all share-partitions, one for each group and topic."""
        found: dict[tuple[int, int], set[int]] = {}
        for shape in shapes:
            for (group, topic, partition), _ in shape.keyed_entries():
                found.setdefault((group, topic), set()).add(partition)
        for (group, topic), partitions in found.items():
            entries = [RequestEntry(partition) for partition in sorted(partitions)]
            yield self.frame(RequestShape(0, 0, initialize_api.API_KEY, 0, group, [(topic, entries)]))

    def frame(self, shape: RequestShape) -> Frame:
        """Encode one request."""
        api = API_KEYS[shape.api_key]
        return request_frame(api, shape.version, self._build_request(shape), epochs_grow=self._epochs_grow)

    def _build_request(self, shape: RequestShape) -> Any:
        group = f"{GROUP_PREFIX}-{shape.group}"
        if shape.api_key == find_api.API_KEY:
            ((topic, (entry,)),) = shape.topics
            return find_request(str(SharePartitionKey(group, self._topic_ids[topic], entry.partition)))
        request, topic_class, partition = _REQUESTS[shape.api_key]
        topics = [
            topic_class(self._topic_ids[topic], [partition(entry) for entry in entries])
            for topic, entries in shape.topics
        ]
        return request(group, topics)


def _start_offset(entry: RequestEntry) -> int:
    return FIRST_OFFSET + entry.start_offset if entry.start_offset >= 0 else -1


def _initialize_partition(entry: RequestEntry) -> initialize_api.PartitionData:
    return initialize_api.PartitionData(
        entry.partition, FIRST_EPOCH + entry.state_epoch, _start_offset(entry)
    )


def _read_partition(entry: RequestEntry) -> read_api.PartitionData:
    return read_api.PartitionData(entry.partition, FIRST_EPOCH + entry.leader_epoch)


def _summary_partition(entry: RequestEntry) -> summary_api.PartitionData:
    return summary_api.PartitionData(entry.partition, 0)


def _delete_partition(entry: RequestEntry) -> delete_api.PartitionData:
    return delete_api.PartitionData(entry.partition)


def _write_partition(entry: RequestEntry) -> write_api.PartitionData:
    start_offset = _start_offset(entry)
    batches = (
        StateBatch(start_offset + first, start_offset + first + length, state, deliveries)
        for first, length, state, deliveries in entry.batches
    )
    return write_api.PartitionData(
        entry.partition,
        FIRST_EPOCH + entry.state_epoch,
        FIRST_EPOCH + entry.leader_epoch,
        start_offset,
        entry.delivery_complete_count,
        pack(batches),
    )


# The classes of a request and of its topics, and the function that converts an entry to a partition.
_REQUESTS: dict[int, tuple[Any, Any, Any]] = {
    initialize_api.API_KEY: (
        initialize_api.InitializeShareGroupStateRequest,
        initialize_api.InitializeStateData,
        _initialize_partition,
    ),
    read_api.API_KEY: (read_api.ReadShareGroupStateRequest, read_api.ReadStateData, _read_partition),
    summary_api.API_KEY: (
        summary_api.ReadShareGroupStateSummaryRequest,
        summary_api.ReadStateSummaryData,
        _summary_partition,
    ),
    delete_api.API_KEY: (
        delete_api.DeleteShareGroupStateRequest,
        delete_api.DeleteStateData,
        _delete_partition,
    ),
    write_api.API_KEY: (write_api.WriteShareGroupStateRequest, write_api.WriteStateData, _write_partition),
}
