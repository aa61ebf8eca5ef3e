"""The requests that a load is made of."""

import struct
from typing import NamedTuple

from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import BATCH_BYTES, StateBatch, pack

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_CLIENT_ID = b"bench"

# Different writes in a row; then they come again, moved on.
TURNS_A_LAP = 16


class Load(NamedTuple):
    """What is asked for at a time: connections, share-partitions a request, state batches in each.

    `rpc` is "write", or "read" or "summary", which ask for what was written before.
    """

    connections: int
    partitions: int
    batches: int
    rpc: str = "write"

    def __str__(self) -> str:
        return f"{self.connections} x {self.partitions} x {self.batches}" + (
            "" if self.rpc == "write" else f" {self.rpc}"
        )


class Frame(NamedTuple):
    """A request with its size; the int64s at `offset_places` grow in each lap but the first."""

    data: bytes
    offset_places: list[int] = []  # noqa: RUF012


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    header = _HEADER.pack(api_key, version, 1, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
    return _SIZE.pack(len(header) + len(body)) + header + body


def initialize_frame(group: str, topic_id: bytes, load: Load) -> bytes:
    """Return a request that initializes the share-partitions of a load."""
    parts = [initialize_api.PartitionData(partition, 0, 0) for partition in range(load.partitions)]
    request = initialize_api.InitializeShareGroupStateRequest(
        group, [initialize_api.InitializeStateData(topic_id, parts)]
    )
    return _frame(initialize_api.API_KEY, 0, initialize_api.encode_request(request, 0))


def offsets_a_lap(load: Load) -> int:
    """Return how far the offsets of writes move in one lap."""
    return TURNS_A_LAP * 2 * load.batches


def write_frame(group: str, topic_id: bytes, load: Load, turn: int) -> Frame:
    """Return a write whose batches lie behind those of the last turn, and whose start offset follows."""
    first = 1_000 + turn * 2 * load.batches
    batches = pack(StateBatch(first + 2 * n, first + 2 * n, 2, 1) for n in range(load.batches))
    start_offset = first - 2 * load.batches
    parts = [
        write_api.PartitionData(partition, 0, 0, start_offset, 0, batches)
        for partition in range(load.partitions)
    ]
    request = write_api.WriteShareGroupStateRequest(group, [write_api.WriteStateData(topic_id, parts)])
    data = _frame(write_api.API_KEY, 1, write_api.encode_request(request, 1))
    return Frame(data, _offset_places(data, topic_id, load))


def _offset_places(data: bytes, topic_id: bytes, load: Load) -> list[int]:
    """Return where the offsets of a write stand: the start offset, and both ends of each batch."""
    count_bytes = 1 if load.batches < 127 else 2
    part_bytes = 24 + count_bytes + load.batches * BATCH_BYTES + 1
    begin = data.index(topic_id) + len(topic_id) + (1 if load.partitions < 127 else 2)
    places = []
    for part in range(begin, begin + load.partitions * part_bytes, part_bytes):
        places.append(part + 12)
        batches = part + 24 + count_bytes
        for batch in range(batches, batches + load.batches * BATCH_BYTES, BATCH_BYTES):
            places += [batch, batch + 8]
    return places


def read_frame(group: str, topic_id: bytes, load: Load) -> bytes:
    """Return a request that reads the share-partitions of a load."""
    parts = [read_api.PartitionData(partition, 0) for partition in range(load.partitions)]
    request = read_api.ReadShareGroupStateRequest(group, [read_api.ReadStateData(topic_id, parts)])
    return _frame(read_api.API_KEY, 0, read_api.encode_request(request, 0))


def summary_frame(group: str, topic_id: bytes, load: Load) -> bytes:
    """Return a request for the summaries of the share-partitions of a load."""
    parts = [summary_api.PartitionData(partition, 0) for partition in range(load.partitions)]
    topics = [summary_api.ReadStateSummaryData(topic_id, parts)]
    request = summary_api.ReadShareGroupStateSummaryRequest(group, topics)
    return _frame(summary_api.API_KEY, 1, summary_api.encode_request(request, 1))


def frames(group: str, topic_id: bytes, load: Load) -> tuple[list[Frame], list[Frame]]:
    """Return what goes first, and what is then sent lap after lap and measured."""
    initialise = Frame(initialize_frame(group, topic_id, load))
    writes = [write_frame(group, topic_id, load, turn) for turn in range(TURNS_A_LAP)]
    if load.rpc == "write":
        return [initialise], writes
    ask = read_frame if load.rpc == "read" else summary_frame
    return [initialise, Frame(writes[0].data)], [Frame(ask(group, topic_id, load))]
