"""Split the byte stream of a connection into frames, without I/O.

A frame is a big-endian int32 size and that many bytes. If a size is negative or above the limit, later frames
cannot be found, so the connection must be closed. The reader buffers at most one incomplete frame: at most
``frame_bytes_max`` bytes and the size prefix.
"""

from struct import Struct

from protocol.errors import FrameError

_SIZE_BYTES = 4

_unpack_size = Struct(">i").unpack_from


class FrameReader:
    """Splits the bytes of one connection into frames. The caller may change `frame_bytes_max` at any time."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        # Bytes of the incomplete frame, with its size prefix. A list of received chunks would save a copy.
        # Such a list would also cost one Python object for each chunk, and a client may send a few bytes at a
        # time.
        self._buffer = bytearray()
        # The number of buffered bytes that is needed next: first the size prefix, then the whole frame.
        self._wanted_bytes = _SIZE_BYTES

    @property
    def buffered_bytes(self) -> int:
        """Number of buffered bytes of an incomplete frame."""
        return len(self._buffer)

    @property
    def missing_bytes(self) -> int:
        """Number of missing bytes of the size prefix or, after it, of the frame."""
        return self._wanted_bytes - len(self._buffer)

    def receive_data(self, data: bytes) -> list[bytes]:
        """Add the next bytes of the stream; return the frames that they complete, without size prefixes.

        Raises FrameError if a size is negative or above the limit. Complete frames before this size in the
        same data are dropped. Each further call raises the error again.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted_bytes:
                return []
            data, first = self._split_buffered_frame()
        else:
            first = []

        frames = first
        start = 0
        self._wanted_bytes = _SIZE_BYTES
        while len(data) - start >= _SIZE_BYTES:
            body = start + _SIZE_BYTES
            (size,) = _unpack_size(data, start)
            if not 0 <= size <= self.frame_bytes_max:
                self._buffer += data[start:body]
                raise FrameError(f"a frame has {size} bytes, but 0 to {self.frame_bytes_max} are allowed")
            end = body + size
            if end > len(data):
                self._wanted_bytes = end - start
                break
            frames.append(data[body:end])
            start = end
        if start < len(data):
            self._buffer += data[start:]
        return frames

    def _split_buffered_frame(self) -> tuple[bytes, list[bytes]]:
        """Return the buffered bytes after the completed frame, and a list with the frame.

        A large frame is copied once. If only the size prefix is complete, the list is empty.
        """
        wanted = self._wanted_bytes if self._wanted_bytes > _SIZE_BYTES else 0
        with memoryview(self._buffer) as view:
            first = [bytes(view[_SIZE_BYTES:wanted])] if wanted else []
            data = bytes(view[wanted:])
        self._buffer = bytearray()
        return data, first
