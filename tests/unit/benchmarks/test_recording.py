"""Recorded requests of Kafka's persister: the stored request shapes, and their replay."""

from functools import partial
from itertools import count
from pathlib import Path

import pytest

from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import request_header
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack
from tests.benchmarks.frames import HEADER_BYTES, RequestEntry
from tests.benchmarks.recorder import TrafficRecorder
from tests.benchmarks.recording import (
    RequestRecording,
    RequestShape,
    list_recordings,
    load_recording,
    save_recording,
)
from tests.benchmarks.replay import ReplayWorkload

BILLS = bytes(range(16, 32))
TOPIC_IDS = [bytes([number]) * 16 for number in range(5)]
ABOUT = {"workload": "test", "broker": "4.4.0"}


def encode_frame(  # type: ignore[no-untyped-def]
    api, version: int, request, client_id: str = "Persister-client-1"
) -> bytes:
    header = request_header.RequestHeader(api.API_KEY, version, 7, client_id)
    frame = request_header.encode(header, 2) + api.encode_request(request, version)
    return len(frame).to_bytes(4, "big") + frame


def encode_write(topic_id: bytes, *parts: write_api.PartitionData) -> bytes:
    topic = write_api.WriteStateData(topic_id, list(parts))
    return encode_frame(write_api, 1, write_api.WriteShareGroupStateRequest("workers", [topic]))


WRITE = encode_write(
    BILLS,
    write_api.PartitionData(40, 5, 3, 100, 2, pack([StateBatch(101, 105, 2, 1), StateBatch(100, 100, 0, 2)])),
    write_api.PartitionData(40, 5, 4, 106, 0, b""),
)


def record_shapes(*data: bytes, requests_max: int = 100) -> list[RequestShape]:
    recorder = TrafficRecorder(partial(next, count(10.0)))
    recorder.begin(requests_max)
    receive = recorder.record_connection()
    for piece in data:
        receive(piece)
    return recorder.shapes()


def test_write_request_is_recorded_as_its_shape() -> None:
    (shape,) = record_shapes(WRITE)
    assert shape == RequestShape(
        0,
        0,
        85,
        1,
        0,
        [(0, [RequestEntry(0, 0, 0, 0, 2, [(1, 4, 2, 1), (0, 0, 0, 2)]), RequestEntry(0, 0, 1, 6, 0, [])])],
    )


@pytest.mark.parametrize("size", [1, 3, 50])
def test_requests_that_arrive_in_pieces_are_recorded(size: int) -> None:
    data = WRITE + WRITE
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [shape.topics for shape in record_shapes(*pieces)] == [record_shapes(WRITE)[0].topics] * 2


def test_saved_recording_is_loaded_unchanged(tmp_path: Path) -> None:
    recording = RequestRecording(ABOUT, record_shapes(WRITE, WRITE))
    save_recording(recording, tmp_path / "one")
    again = load_recording(tmp_path / "one")
    save_recording(again, tmp_path / "two")
    assert again.about == ABOUT
    assert [shape.topics[0][1][0].start_offset for shape in again.shapes] == [0, 0]
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_replay_initializes_its_share_partitions() -> None:
    (client,) = ReplayWorkload(RequestRecording(ABOUT, record_shapes(WRITE)), brokers=1).clients(0, TOPIC_IDS)
    (prologue,) = client.prologue
    request = initialize_api.decode_request(prologue.data, HEADER_BYTES, 0)
    ((topic,),) = (request.topics,)
    assert (topic.topic_id, [part.partition for part in topic.partitions]) == (TOPIC_IDS[0], [0])


@pytest.mark.slow
@pytest.mark.parametrize("path", list_recordings(), ids=lambda path: path.name)
def test_every_recording_in_the_repository_can_be_replayed(path: Path) -> None:
    recording = load_recording(path)
    replay = ReplayWorkload(recording, brokers=1)
    clients = replay.clients(0, TOPIC_IDS)
    assert sum(len(client.run) for client in clients) == len(recording.shapes) == recording.about["requests"]
    assert {topic for shape in recording.shapes for topic, _ in shape.topics} <= set(range(len(TOPIC_IDS)))
