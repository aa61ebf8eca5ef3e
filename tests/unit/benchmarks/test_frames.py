"""The request frames of the benchmarks: contents, and the fields that increase in each lap.

A lap is one pass of the load generator over all prepared frames of a connection.
"""

from itertools import pairwise

import pytest

from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import unpack
from tests.benchmarks.frames import (
    HEADER_BYTES,
    Frame,
    RequestEntry,
    group_prefix,
    request_frame,
)
from tests.benchmarks.loads import REQUESTS_A_LAP, WriteLoad, write_frame
from tests.benchmarks.many_states import GROUP_PARTITIONS, share_partition_keys
from tests.benchmarks.resident_state import added_frames

TOPIC_ID = bytes(range(16))


def advance_frame(frame: Frame, offset_step: int, epoch_step: int = 0) -> bytes:
    """Return the frame of the next lap, with the fields increased as the generator does."""
    out = bytearray(frame.data)
    for places, size, step in ((frame.offset_places, 8, offset_step), (frame.epoch_places, 4, epoch_step)):
        for place in places:
            out[place : place + size] = (int.from_bytes(out[place : place + size]) + step).to_bytes(size)
    return bytes(out)


def decode_partitions(data: bytes) -> list[write_api.PartitionData]:
    (topic,) = write_api.decode_request(data, HEADER_BYTES, 1).topics
    return topic.partitions


@pytest.mark.parametrize(
    "load",
    [
        WriteLoad(1, 1, 4),
        WriteLoad(8, 50, 20),
        WriteLoad(1, 200, 1),
        WriteLoad(1, 10, 130),
        WriteLoad(8, 10, 4, "repeated"),
    ],
)
def test_next_lap_increases_only_start_offsets_and_batches(load: WriteLoad) -> None:
    frame = write_frame(load, TOPIC_ID, 0)
    old, new = decode_partitions(frame.data), decode_partitions(advance_frame(frame, 1000, 7))
    assert len(new) == load.partitions
    for one, other in zip(old, new, strict=True):
        assert other.start_offset == one.start_offset + 1000
        assert (other.partition, other.state_epoch, other.leader_epoch) == (one.partition, 0, 0)
        assert unpack(other.state_batches) == [
            batch._replace(first_offset=batch.first_offset + 1000, last_offset=batch.last_offset + 1000)
            for batch in unpack(one.state_batches)
        ]


def test_next_lap_increases_epochs_if_epochs_grow() -> None:
    topics = [(TOPIC_ID, [RequestEntry(number) for number in range(3)])]
    frame = request_frame(initialize_api, 0, "group", topics, epochs_grow=True)
    (topic,) = initialize_api.decode_request(advance_frame(frame, 1000, 7), HEADER_BYTES, 0).topics
    # A start offset of -1 means "unknown" and does not increase.
    assert [(part.state_epoch, part.start_offset) for part in topic.partitions] == [(7, -1)] * 3


@pytest.mark.parametrize("kind", ["write", "repeated", "one repeated", "overlapping", "unordered"])
def test_lap_begins_where_the_previous_one_ended(kind: str) -> None:
    load = WriteLoad(1, 10, 4, kind)
    (client,) = load.clients(0, [TOPIC_ID])
    assert len(client.run) == REQUESTS_A_LAP
    again = write_frame(load, TOPIC_ID, REQUESTS_A_LAP, group_prefix(0, 0))
    assert advance_frame(client.run[0], load.offset_step) == again.data


@pytest.mark.parametrize(
    ("kind", "partitions"),
    [("write", [0, 1, 2, 3]), ("repeated", [0, 0, 0, 0]), ("one repeated", [0, 1, 2, 0])],
)
def test_load_kind_determines_the_share_partitions(kind: str, partitions: list[int]) -> None:
    entries = decode_partitions(write_frame(WriteLoad(1, 4, 4, kind), TOPIC_ID, 0).data)
    assert [entry.partition for entry in entries] == partitions


def test_overlapping_and_unordered_loads_have_such_batches() -> None:
    (entry,) = decode_partitions(write_frame(WriteLoad(1, 1, 4, "overlapping"), TOPIC_ID, 0).data)
    batches = unpack(entry.state_batches)
    assert all(one.last_offset > next_one.first_offset for one, next_one in pairwise(batches))
    (entry,) = decode_partitions(write_frame(WriteLoad(1, 1, 4, "unordered"), TOPIC_ID, 0).data)
    first_offsets = [batch.first_offset for batch in unpack(entry.state_batches)]
    assert first_offsets not in (sorted(first_offsets), sorted(first_offsets, reverse=True))


def test_each_connection_and_run_has_its_own_group() -> None:
    load = WriteLoad(2, 1, 4, "find", in_flight=3)
    clients = load.clients(0, [TOPIC_ID]) + load.clients(1, [TOPIC_ID])
    for number, client in enumerate(clients):
        group = group_prefix(*divmod(number, 2)).encode()
        assert all(group in frame.data for frame in (*client.prologue, *client.run))
        assert client.in_flight == 3


def test_mixed_load_has_one_connection_with_an_interval() -> None:
    clients = WriteLoad(2, 1, 4, "mixed").clients(0, [TOPIC_ID])
    assert [bool(client.interval_ms) for client in clients] == [True, False, False]


def test_share_partitions_are_divided_into_groups() -> None:
    made = list(share_partition_keys(2 * GROUP_PARTITIONS + 1, TOPIC_ID, "held"))
    assert len(set(made)) == 2 * GROUP_PARTITIONS + 1
    assert [key.group_id for key in made[::GROUP_PARTITIONS]] == ["held-000000", "held-000001", "held-000002"]
    # Two frames for each group: an Initialize and a Write.
    assert len(added_frames(4 * GROUP_PARTITIONS, "added")) == 2 * 4
