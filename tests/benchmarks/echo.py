"""A server without logic: the upper bound of sockets, event loop and load generator on this machine.

    python -m tests.benchmarks.echo PORT

The server answers every frame at once with the response of a successful write of one share-partition. The
server copies the correlation id, but does not decode requests or store state.
"""

import asyncio
import sys
from typing import cast

import uvloop

from protocol.frames import FrameReader

_FRAME_BYTES_MAX = 1 << 24
_CORRELATION_ID = slice(4, 8)
# Response after the correlation id: header tags, one topic with a zero id, and one partition without error.
_REST = b"\0\2" + bytes(16) + b"\2" + bytes(10)
_SIZE = (4 + len(_REST)).to_bytes(4, "big")


def make_response(frame: bytes) -> bytes:
    """Return the response to a frame, with its size."""
    return _SIZE + frame[_CORRELATION_ID] + _REST


class _EchoProtocol(asyncio.Protocol):
    def __init__(self) -> None:
        self._reader = FrameReader(_FRAME_BYTES_MAX)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._reader.receive_data(data):
            self._transport.write(make_response(frame))


async def _serve_echo(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_EchoProtocol, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve_echo(int(sys.argv[1])))
