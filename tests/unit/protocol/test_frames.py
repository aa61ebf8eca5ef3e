"""Frames from a byte stream that arrives in pieces of any size."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import FrameError
from protocol.frames import FrameReader


def encode_frames(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def test_several_frames_and_a_partial_frame_are_read() -> None:
    reader = FrameReader(100)
    assert reader.receive_data(encode_frames(b"abc", b"", b"d") + b"\0\0") == [b"abc", b"", b"d"]
    assert reader.buffered_bytes == 2
    assert reader.receive_data(b"\0\1e") == [b"e"]
    assert reader.buffered_bytes == 0


@settings(deadline=None)
@given(bodies=st.lists(st.binary(max_size=20), max_size=8), data=st.data())
def test_frames_do_not_depend_on_the_chunks_of_the_stream(bodies: list[bytes], data: st.DataObject) -> None:
    stream = encode_frames(*bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader = FrameReader(20)
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reader.receive_data(stream[start:end])
    assert got == bodies
    assert reader.buffered_bytes == 0


@pytest.mark.parametrize("size", ["ffffffff", "80000000", "00000065", "7fffffff", "47455420"])
def test_frame_size_out_of_range_is_refused_permanently(size: str) -> None:
    reader = FrameReader(100)
    with pytest.raises(FrameError, match="0 to 100"):
        reader.receive_data(encode_frames(b"abc") + bytes.fromhex(size))
    with pytest.raises(FrameError):
        reader.receive_data(encode_frames(b"abc"))
    assert reader.buffered_bytes < 20


def test_invalid_frame_size_is_refused_before_the_body_arrives() -> None:
    reader = FrameReader(100)
    assert reader.receive_data(b"\0\0") == []
    with pytest.raises(FrameError):
        reader.receive_data(b"\0\x65")


def test_frame_of_the_greatest_size_is_accepted() -> None:
    assert FrameReader(100).receive_data(encode_frames(b"x" * 100)) == [b"x" * 100]


def test_buffered_bytes_counts_partial_frames() -> None:
    reader = FrameReader(1000)
    stream = encode_frames(b"x" * 1000)
    for sent in range(1, len(stream)):
        assert reader.receive_data(stream[sent - 1 : sent]) == []
        assert reader.buffered_bytes == sent
    assert reader.receive_data(stream[-1:]) == [b"x" * 1000]
