"""Replay recorded traffic: the requests of each connection in order, as fast as responses arrive.

Each connection uses its own share-partitions, so the order between connections does not matter. Each
repetition has greater epochs and offsets, so that the coordinator accepts every request again.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

from protocol.messages import initialize_share_group_state as initialize_api
from tests.benchmarks.frames import (
    GROUP_PREFIX,
    ClientRequests,
    Frame,
    RequestEntry,
    rename_groups,
    request_frame,
)
from tests.benchmarks.recording import RequestRecording, RequestShape

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
        encoder = _ShapeEncoder(topic_ids, epochs_grow=self.epoch_step > 0)
        return [
            (list(encoder.encode_prologue(shapes)), [encoder.encode_request(shape) for shape in shapes])
            for shapes in self._recorded_connections
        ]


class _ShapeEncoder:
    """Encodes recorded shapes as requests with the topics, groups, epochs and offsets of a replay."""

    def __init__(self, topic_ids: Sequence[bytes], *, epochs_grow: bool) -> None:
        self._topic_ids = topic_ids
        self._epochs_grow = epochs_grow

    def encode_prologue(self, shapes: Sequence[RequestShape]) -> Iterator[Frame]:
        """Yield Initialize requests for all share-partitions, one for each group and topic."""
        found: dict[tuple[int, int], set[int]] = {}
        for shape in shapes:
            for (group, topic, partition), _ in shape.keyed_entries():
                found.setdefault((group, topic), set()).add(partition)
        for (group, topic), partitions in found.items():
            entries = [_absolute_entry(RequestEntry(partition)) for partition in sorted(partitions)]
            yield request_frame(
                initialize_api.API_KEY,
                0,
                f"{GROUP_PREFIX}-{group}",
                [(self._topic_ids[topic], entries)],
                epochs_grow=self._epochs_grow,
            )

    def encode_request(self, shape: RequestShape) -> Frame:
        return request_frame(
            shape.api_key,
            shape.version,
            f"{GROUP_PREFIX}-{shape.group}",
            [
                (self._topic_ids[topic], list(map(_absolute_entry, entries)))
                for topic, entries in shape.topics
            ],
            epochs_grow=self._epochs_grow,
        )


def _absolute_entry(entry: RequestEntry) -> RequestEntry:
    """Return an entry with the epochs and offsets of a replay instead of differences."""
    start_offset = FIRST_OFFSET + entry.start_offset if entry.start_offset >= 0 else -1
    return entry._replace(
        state_epoch=FIRST_EPOCH + entry.state_epoch,
        leader_epoch=FIRST_EPOCH + entry.leader_epoch,
        start_offset=start_offset,
        batches=[
            (start_offset + first, start_offset + first + length, state, deliveries)
            for first, length, state, deliveries in entry.batches
        ],
    )
