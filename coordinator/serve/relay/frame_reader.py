"""Read request headers and whole frames from a stream."""

from struct import Struct
from typing import NamedTuple

from coordinator.serve.relay.streams import Stream
from protocol.errors import FrameError

SIZE_BYTES = 4
# The first fields of a request: size, api_key, api_version, correlation_id, client_id_length.
_HEAD = Struct(">ihhih")
_CLIENT_ID_AT = _HEAD.size
# Every request begins with api_key, api_version and correlation_id; all but one API have a client id.
_REQUEST_BYTES_MIN = 8
_unpack_size = Struct(">i").unpack_from

# Read-ahead beyond the bytes asked for; small because unauthenticated peers may send any amount.
_AHEAD_BYTES = 4 << 10

PERSISTER = b"Persister-client-"


class EndOfStream(Exception):
    """The other side closed the connection before it sent a complete frame."""


class RefusedConnection(Exception):
    """The relay refuses a connection. `reason` is the metric's label value; the message is a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RequestHead(NamedTuple):
    """The start of a request header. `client_id` is truncated to the length of `PERSISTER`."""

    size: int
    api_key: int
    api_version: int
    client_id: bytes

    @property
    def is_from_persister(self) -> bool:
        """True if the client id is that of a broker's share-group persister."""
        return self.client_id == PERSISTER


class FrameReader:
    """Reads frames from one stream. Buffers at most the requested frame and the read-ahead."""

    def __init__(self, stream: Stream, frame_bytes_max: int) -> None:
        """Read from `stream`. `read_frame` rejects frames of more than `frame_bytes_max` bytes."""
        self.stream = stream
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    async def peek_head(self) -> RequestHead:
        """Return the start of the next request and keep the request in the buffer.

        The request may be incomplete. Raises EndOfStream; FrameError if the bytes are not a request.
        """
        await self._fill_buffer(SIZE_BYTES)
        (size,) = _unpack_size(self._buffer)
        if size < _REQUEST_BYTES_MIN:
            raise FrameError(f"a request has an invalid size: {size} bytes")
        await self._fill_buffer(min(SIZE_BYTES + size, _CLIENT_ID_AT))
        if SIZE_BYTES + size < _CLIENT_ID_AT:
            api_key, api_version = Struct(">hh").unpack_from(self._buffer, SIZE_BYTES)
            return RequestHead(size, api_key, api_version, b"")
        _, api_key, api_version, _, length = _HEAD.unpack_from(self._buffer)
        shown = min(max(length, 0), len(PERSISTER), SIZE_BYTES + size - _CLIENT_ID_AT)
        await self._fill_buffer(_CLIENT_ID_AT + shown)
        return RequestHead(
            size, api_key, api_version, bytes(self._buffer[_CLIENT_ID_AT : _CLIENT_ID_AT + shown])
        )

    async def read_frame(self) -> bytes:
        """Return the next frame with its size. Raises EndOfStream; FrameError if the frame is too large."""
        await self._fill_buffer(SIZE_BYTES)
        (size,) = _unpack_size(self._buffer)
        if not 0 <= size <= self.frame_bytes_max:
            raise FrameError(f"a frame has {size} bytes, but 0 to {self.frame_bytes_max} are allowed")
        end = SIZE_BYTES + size
        await self._fill_buffer(end)
        frame = bytes(memoryview(self._buffer)[:end])
        del self._buffer[:end]
        return frame

    def take_buffered_bytes(self) -> bytes:
        rest, self._buffer = bytes(self._buffer), bytearray()
        return rest

    def put_back(self, data: bytes) -> None:
        """Insert `data` into the buffer before the buffered bytes."""
        self._buffer[:0] = data

    async def _fill_buffer(self, count: int) -> None:
        while len(self._buffer) < count:
            data = await self.stream.receive(max(count - len(self._buffer), _AHEAD_BYTES))
            if not data:
                raise EndOfStream
            self._buffer += data
