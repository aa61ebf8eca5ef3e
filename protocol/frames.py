"""Frames without I/O: the bytes of a connection go in as they come, complete frames come out.

A frame is a big-endian int32 size and that many bytes. A size that is negative or above the limit means that
the stream cannot be followed: nothing after it is a frame, so the connection has to be closed. What is held
back is never more than one incomplete frame, and so never more than ``frame_bytes_max`` and its size prefix.
"""

from struct import Struct

from protocol.errors import FrameError

_SIZE_BYTES = 4

_unpack_size = Struct(">i").unpack_from


class FrameReader:
    """Cuts the bytes of one connection into frames. Owned by that connection, which may change the limit."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        # What came of the frame that is not complete yet, its size prefix included. Joining pieces when the
        # frame is complete would copy less, but a client that sends few bytes at a time would then cost us
        # an object for each piece.
        self._held = bytearray()
        # How many bytes have to be held before it is worth looking: the size prefix, then the whole frame.
        self._wanted_bytes = _SIZE_BYTES

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of an incomplete frame are held back."""
        return len(self._held)

    def receive_frame(self, data: bytes) -> bytes | None:
        """Take the next bytes of the stream if they are exactly one frame, as nearly always; return it.

        None: they are not, and `receive_data` has to take them.
        """
        body_bytes = len(data) - _SIZE_BYTES
        if not self._held and 0 <= body_bytes <= self.frame_bytes_max and _unpack_size(data)[0] == body_bytes:
            return data[_SIZE_BYTES:]
        return None

    def receive_data(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the stream; return the frames that they complete, without their sizes.

        Raises FrameError at a size that is negative or above the limit. Frames in front of it in the same
        data are lost with the connection, as they would be had it broken a moment earlier. The error comes
        again with all further data.
        """
        if self._held:
            self._held += data
            if len(self._held) < self._wanted_bytes:
                return []
            data, first = self._split_held()
        else:
            first = []

        frames = first
        start = 0
        self._wanted_bytes = _SIZE_BYTES
        while len(data) - start >= _SIZE_BYTES:
            body = start + _SIZE_BYTES
            (size,) = _unpack_size(data, start)
            if not 0 <= size <= self.frame_bytes_max:
                self._held += data[start:body]
                raise FrameError(f"frame of {size} bytes, where 0 to {self.frame_bytes_max} are allowed")
            end = body + size
            if end > len(data):
                self._wanted_bytes = end - start
                break
            frames.append(data[body:end])
            start = end
        if start < len(data):
            self._held += data[start:]
        return frames

    def _split_held(self) -> tuple[bytes, list[bytes]]:
        """Return the bytes after the frame that is complete now, and that frame.

        A large frame is copied once. If only its size has come, there is no frame.
        """
        wanted = self._wanted_bytes if self._wanted_bytes > _SIZE_BYTES else 0
        with memoryview(self._held) as held:
            first = [bytes(held[_SIZE_BYTES:wanted])] if wanted else []
            data = bytes(held[wanted:])
        self._held = bytearray()
        return data, first
