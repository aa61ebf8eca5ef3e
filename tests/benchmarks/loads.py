"""Synthetic loads: a number of connections that send one kind of request of one size."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from protocol.messages import find_coordinator as find_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from tests.benchmarks.frames import (
    GROUP_PREFIX,
    ClientRequests,
    Frame,
    RequestEntry,
    initialize_frame,
    rename_groups,
    request_frame,
)

# The number of different requests of a connection; they are repeated with greater offsets.
REQUESTS_A_LAP = 16
FIRST_OFFSET = 1_000
# The minimum number of milliseconds between the Initialize requests of a mixed load.
INITIALIZE_INTERVAL_MS = 1_000


class WriteLoad(NamedTuple):
    """A load: connections, share-partition entries per request, state batches per entry, and kind of request.

    A "write" request names each share-partition once. A "repeated" write names one share-partition in all
    entries, and a "one repeated" write names one share-partition twice. "overlapping" writes have overlapping
    state batches, and "unordered" writes have state batches that are not in order. "read" and "summary"
    requests read previously written state. A "mixed" load alternates three writes and one read, and one more
    connection sends an Initialize per second. A "find" load sends FindCoordinator before each write.
    """

    connections: int
    partitions: int
    batches: int
    kind: str = "write"
    in_flight: int = 1

    def __str__(self) -> str:
        kind = "" if self.kind == "write" else f" {self.kind}"
        in_flight = "" if self.in_flight == 1 else f", {self.in_flight} in flight"
        return f"{self.connections} x {self.partitions} x {self.batches}{kind}{in_flight}"

    @property
    def offset_step(self) -> int:
        """The increase of the offsets of a write when the frames are repeated."""
        return REQUESTS_A_LAP * _offsets_per_request(self)

    @property
    def epoch_step(self) -> int:
        return 0

    def clients(self, run: int, topic_ids: Sequence[bytes]) -> list[ClientRequests]:
        """Return the simulated connections of a benchmark run, those with a minimum interval first."""
        prologue, requests = _make_frames(self._replace(connections=1, in_flight=1), topic_ids[0])
        clients = [
            ClientRequests(
                rename_groups(prologue, run, number), rename_groups(requests, run, number), self.in_flight
            )
            for number in range(self.connections)
        ]
        if self.kind == "mixed":
            sent = [_initialize_frame(self, topic_ids[0], turn) for turn in range(REQUESTS_A_LAP)]
            frames = rename_groups(sent, run, self.connections)
            clients.insert(0, ClientRequests([], frames, interval_ms=INITIALIZE_INTERVAL_MS))
        return clients


def _offsets_per_request(load: WriteLoad) -> int:
    """Return the distance between the first offsets of two consecutive requests."""
    entries_of_one = {"repeated": load.partitions, "one repeated": 2}.get(load.kind, 1)
    return 2 * load.batches * entries_of_one


@cache
def _make_frames(load: WriteLoad, topic_id: bytes) -> tuple[list[Frame], list[Frame]]:
    """Return the frames that a connection sends once, and the frames that it repeats."""
    partitions = range(1 if load.kind == "repeated" else load.partitions)
    initialize = initialize_frame(GROUP_PREFIX, topic_id, partitions)
    writes = [write_frame(load, topic_id, turn) for turn in range(REQUESTS_A_LAP)]
    topics = [(topic_id, [RequestEntry(number) for number in partitions])]
    read = request_frame(read_api.API_KEY, 0, GROUP_PREFIX, topics)
    if load.kind == "read":
        return [initialize, writes[0]], [read]
    if load.kind == "summary":
        return [initialize, writes[0]], [request_frame(summary_api.API_KEY, 1, GROUP_PREFIX, topics)]
    if load.kind == "mixed":
        return [initialize], [read if turn % 4 == 3 else write for turn, write in enumerate(writes)]
    if load.kind == "find":
        find = request_frame(find_api.API_KEY, 6, GROUP_PREFIX, [(topic_id, [RequestEntry(0)])])
        return [initialize], [frame for write in writes for frame in (find, write)]
    return [initialize], writes


def write_frame(load: WriteLoad, topic_id: bytes, turn: int, group: str = GROUP_PREFIX) -> Frame:
    """Return the write with number `turn`; its offsets follow the offsets of the previous write."""
    first = FIRST_OFFSET + turn * _offsets_per_request(load)
    entries = [_make_entry(load, number, first) for number in range(load.partitions)]
    if load.kind == "one repeated":
        # The last entry names the first share-partition again.
        entries[-1] = _make_entry(load, 0, first + 2 * load.batches)
    return request_frame(write_api.API_KEY, 1, group, [(topic_id, entries)])


def _make_entry(load: WriteLoad, number: int, first: int) -> RequestEntry:
    if load.kind == "repeated":
        number, first = 0, first + number * 2 * load.batches
    if load.kind == "overlapping":
        # Each batch overlaps half of the next batch, which has another delivery count.
        batches = [(first + 2 * n, first + 2 * n + 3, 2, 1 + n % 2) for n in range(load.batches)]
    else:
        batches = [(first + 2 * n, first + 2 * n, 2, 1) for n in range(load.batches)]
    if load.kind == "unordered":
        batches = batches[1::2] + batches[::2][::-1]
    return RequestEntry(
        number, start_offset=first - 2 * load.batches, delivery_complete_count=0, batches=batches
    )


def _initialize_frame(load: WriteLoad, topic_id: bytes, turn: int) -> Frame:
    # Each Initialize has a new start offset, because an Initialize without an effect writes no record.
    start_offset = FIRST_OFFSET + turn * _offsets_per_request(load)
    return initialize_frame(GROUP_PREFIX, topic_id, range(load.partitions), start_offset)
