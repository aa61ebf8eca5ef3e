"""The load generator, against a server whose responses the test defines."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from protocol.frames import FrameReader
from protocol.messages import find_coordinator as find_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack
from tests.benchmarks.frames import HEADER_BYTES, ClientRequests, RequestEntry, request_frame
from tests.benchmarks.load import drive_frames
from tests.benchmarks.loads import WriteLoad, write_frame

TOPIC_ID = bytes(range(16))
Respond = Callable[[bytes], bytes]


@contextmanager
def run_server(respond: Respond) -> Iterator[tuple[int, list[bytes]]]:
    """Serve each connection in a thread; yield the port and the list of received requests."""
    received: list[bytes] = []

    def serve_connection(connection: socket.socket) -> None:
        reader = FrameReader(1 << 20)
        with connection:
            while data := connection.recv(1 << 16):
                for frame in reader.receive_data(data):
                    received.append(frame)
                    answer = frame[4:8] + b"\0" + respond(frame)
                    connection.sendall(len(answer).to_bytes(4, "big") + answer)

    def accept_connections() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve_connection, args=(connection,)))
            threads[-1].start()

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = threading.Thread(target=accept_connections)
        accepting.start()
        try:
            yield listening.getsockname()[1], received
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


def encode_write_response(*codes: int) -> bytes:
    results = [write_api.PartitionResult(number, code, "why" * code) for number, code in enumerate(codes)]
    return write_api.encode_response(
        write_api.WriteShareGroupStateResponse([write_api.WriteStateResult(TOPIC_ID, results)]), 1
    )


@pytest.mark.parametrize(("codes", "errors"), [((0, 0, 0), 0), ((0, 0, 42), 5)])
def test_error_of_any_share_partition_fails_the_response(codes: tuple[int, ...], errors: int) -> None:
    frame = write_frame(WriteLoad(1, 3, 4), TOPIC_ID, 0)
    with run_server(partial(lambda request: encode_write_response(*codes))) as (port, received):
        figures = drive_frames("127.0.0.1", port, [ClientRequests([], [frame])], 60.0, answers_max=5)
    assert (figures.errors, figures.first_error, len(received)) == (errors, 42 if errors else 0, 5)


def test_read_and_find_coordinator_responses_are_checked() -> None:
    asked = [(TOPIC_ID, [RequestEntry(0)])]
    read = request_frame(read_api.API_KEY, 0, "group", asked)
    find = request_frame(find_api.API_KEY, 6, "group", asked)

    def respond_with_errors(request: bytes) -> bytes:
        if int.from_bytes(request[:2], "big") == find_api.API_KEY:
            found = find_api.Coordinator("group:topic:0", 1, "host", 9092, 15, "none")
            return find_api.encode_response(find_api.FindCoordinatorResponse(coordinators=[found]), 6)
        batches = pack([StateBatch(1, 2, 2, 1)] * 3)
        parts = [read_api.PartitionResult(0, 0, None, 1, 5, batches), read_api.PartitionResult(1, 74)]
        result = read_api.ReadStateResult(TOPIC_ID, parts)
        return read_api.encode_response(read_api.ReadShareGroupStateResponse([result]), 0)

    with run_server(respond_with_errors) as (port, _):
        figures = [
            drive_frames("127.0.0.1", port, [ClientRequests([], [frame])], 60.0, answers_max=1)
            for frame in (read, find)
        ]
    assert [(each.errors, each.first_error) for each in figures] == [(1, 74), (1, 15)]


def test_each_repetition_of_the_frames_increases_their_offsets() -> None:
    load = WriteLoad(1, 1, 4)
    frames = [write_frame(load, TOPIC_ID, turn) for turn in range(2)]
    with run_server(lambda request: encode_write_response(0)) as (port, received):
        client = ClientRequests(frames[:1], frames, in_flight=3)
        drive_frames("127.0.0.1", port, [client], 60.0, offset_step=100, answers_max=6)
    starts = [
        write_api.decode_request(frame, HEADER_BYTES - 4, 1).topics[0].partitions[0].start_offset
        for frame in received
    ]
    first, second = starts[1], starts[2]
    assert starts == [first, first, second, first + 100, second + 100, first + 200, second + 200]
    # Each request has its own correlation id.
    assert [frame[4:8] for frame in received] == [number.to_bytes(4, "big") for number in range(7)]


def test_error_in_the_prologue_stops_the_load_generator() -> None:
    frame = write_frame(WriteLoad(1, 1, 4), TOPIC_ID, 0)
    with (
        run_server(lambda request: encode_write_response(42)) as (port, _),
        pytest.raises(RuntimeError, match="prologue failed with error code 42"),
    ):
        drive_frames("127.0.0.1", port, [ClientRequests([frame], [frame])], 60.0, answers_max=1)


def test_connection_with_an_interval_waits_between_requests() -> None:
    frame = write_frame(WriteLoad(1, 1, 4), TOPIC_ID, 0)
    with run_server(lambda request: encode_write_response(0)) as (port, received):
        drive_frames("127.0.0.1", port, [ClientRequests([], [frame], interval_ms=60_000)], 0.05)
    assert len(received) == 1
