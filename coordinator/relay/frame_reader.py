"""What an end has said, read as frames where we want to know, and as bytes where we do not."""

from struct import Struct
from typing import NamedTuple

from coordinator.relay.streams import Stream
from protocol.errors import FrameError

SIZE_BYTES = 4
# size, api_key, api_version, correlation_id, client_id_length
_HEAD = Struct(">ihhih")
_CLIENT_ID_AT = _HEAD.size
# Every request begins with api_key, api_version and correlation_id; all but one API have a client id.
_REQUEST_BYTES_MIN = 8
_unpack_size = Struct(">i").unpack_from

# What is read beyond what is asked for: strangers may send as much as they like.
_AHEAD_BYTES = 4 << 10

PERSISTER = b"Persister-client-"


class EndOfStream(Exception):
    """The other side closed the connection where a frame was expected."""


class RefusedConnection(Exception):
    """A connection that the relay closes on purpose: why in a word, and in a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RequestHead(NamedTuple):
    """The beginning of a request. `client_id` is cut after as many bytes as `PERSISTER` has."""

    size: int
    api_key: int
    api_version: int
    client_id: bytes

    @property
    def is_from_persister(self) -> bool:
        """True if this is a request of the part of a broker that stores share-group state."""
        return self.client_id == PERSISTER


class FrameReader:
    """Reads one end. Holds no more than the frame that is asked for, and what came with it."""

    def __init__(self, end: Stream, frame_bytes_max: int) -> None:
        """`frame_bytes_max` bounds the frames that are taken as a whole."""
        self.end = end
        self.frame_bytes_max = frame_bytes_max
        self._held = bytearray()

    async def peek_head(self) -> RequestHead:
        """Return how the next request begins, and leave it where it is.

        The rest of it may not have come yet. Raises Ended; FrameError for what is no request.
        """
        await self._fill_buffer(SIZE_BYTES)
        (size,) = _unpack_size(self._held)
        if size < _REQUEST_BYTES_MIN:
            raise FrameError(f"a request of {size} bytes")
        await self._fill_buffer(min(SIZE_BYTES + size, _CLIENT_ID_AT))
        if SIZE_BYTES + size < _CLIENT_ID_AT:
            api_key, api_version = Struct(">hh").unpack_from(self._held, SIZE_BYTES)
            return RequestHead(size, api_key, api_version, b"")
        _, api_key, api_version, _, length = _HEAD.unpack_from(self._held)
        shown = min(max(length, 0), len(PERSISTER), SIZE_BYTES + size - _CLIENT_ID_AT)
        await self._fill_buffer(_CLIENT_ID_AT + shown)
        return RequestHead(
            size, api_key, api_version, bytes(self._held[_CLIENT_ID_AT : _CLIENT_ID_AT + shown])
        )

    async def frame(self) -> bytes:
        """Take the next frame, its size in front. Raises Ended; FrameError for a size beyond the bound."""
        await self._fill_buffer(SIZE_BYTES)
        (size,) = _unpack_size(self._held)
        if not 0 <= size <= self.frame_bytes_max:
            raise FrameError(f"a frame of {size} bytes, where 0 to {self.frame_bytes_max} are allowed")
        end = SIZE_BYTES + size
        await self._fill_buffer(end)
        frame = bytes(memoryview(self._held)[:end])
        del self._held[:end]
        return frame

    def take_buffered(self) -> bytes:
        """Take all that came and was not taken."""
        rest, self._held = bytes(self._held), bytearray()
        return rest

    def unread(self, data: bytes) -> None:
        """Have `data` again in front of what comes next."""
        self._held[:0] = data

    async def _fill_buffer(self, count: int) -> None:
        """Receive until at least `count` bytes are held."""
        while len(self._held) < count:
            data = await self.end.receive(max(count - len(self._held), _AHEAD_BYTES))
            if not data:
                raise EndOfStream
            self._held += data
