"""Two ends joined: from here on their bytes go through unread. This is where replication passes.

In clear, bytes go from socket to socket in callbacks of the event loop, through one buffer that all
connections share: it is empty again when a callback returns. What the other socket does not take waits, and
nothing more is read for it meanwhile. That costs less processor time for each byte than HAProxy in its TCP
mode does.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from coordinator.relay.ends import CHUNK_BYTES, End, PlainEnd

# Told the bytes from the first end to the second, and from the second to the first.
Moved = Callable[[int, int], None]

_shared = memoryview(bytearray(CHUNK_BYTES))


async def join(first: End, second: End, moved: Moved, half_closed_s: float) -> None:
    """Carry bytes both ways until both directions are over. Raises OSError when an end broke.

    When one direction is over, the other one goes on for at most `half_closed_s`.
    """
    if isinstance(first, PlainEnd) and isinstance(second, PlainEnd):
        await _join_sockets(first.socket, second.socket, moved, half_closed_s)
    else:
        await _join_streams(first, second, moved)


async def _join_sockets(
    first: socket.socket, second: socket.socket, moved: Moved, half_closed_s: float
) -> None:
    there = _Direction(first, second, lambda count: moved(count, 0))
    back = _Direction(second, first, lambda count: moved(0, count))
    try:
        done, pending = await asyncio.wait({there.over, back.over}, return_when=asyncio.FIRST_COMPLETED)
        # An end that broke ends both directions; one that said its last word may still be told something.
        for direction in done:
            direction.result()
        if pending:
            done, _ = await asyncio.wait(pending, timeout=half_closed_s)
            for direction in done:
                direction.result()
    finally:
        there.close()
        back.close()


class _Direction:
    """Carries bytes from one socket to another while both are open. `over` tells when and how it ended."""

    __slots__ = ("_loop", "_moved", "_source", "_target", "_waiting", "over")

    def __init__(self, source: socket.socket, target: socket.socket, moved: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._target = target
        self._moved = moved
        self._waiting = b""
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(source, self._readable)

    def close(self) -> None:
        """Leave the sockets alone."""
        if not self.over.done():
            self.over.cancel()
            self._let_go()
        elif not self.over.cancelled():
            # Whoever joined us knows one error already.
            self.over.exception()

    def _readable(self) -> None:
        try:
            count = self._source.recv_into(_shared)
            if count == 0:
                self._end()
                return
            self._moved(count)
            try:
                sent = self._target.send(_shared[:count])
            except BlockingIOError:
                sent = 0
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        if sent < count:
            self._waiting = bytes(_shared[sent:count])
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._target, self._writable)

    def _writable(self) -> None:
        try:
            sent = self._target.send(self._waiting)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        self._waiting = self._waiting[sent:]
        if not self._waiting:
            self._loop.remove_writer(self._target)
            self._loop.add_reader(self._source, self._readable)

    def _end(self) -> None:
        self._loop.remove_reader(self._source)
        with suppress(OSError):
            self._target.shutdown(socket.SHUT_WR)
        self.over.set_result(None)

    def _fail(self, error: OSError) -> None:
        self._let_go()
        self.over.set_exception(error)

    def _let_go(self) -> None:
        if self._waiting:
            self._loop.remove_writer(self._target)
        else:
            self._loop.remove_reader(self._source)


async def _join_streams(first: End, second: End, moved: Moved) -> None:
    """Carry bytes where an end has TLS, until one direction is over: such an end closes as a whole."""
    there = asyncio.ensure_future(_carry(first, second, lambda count: moved(count, 0)))
    back = asyncio.ensure_future(_carry(second, first, lambda count: moved(0, count)))
    try:
        done, _ = await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        for direction in done:
            direction.result()
    finally:
        for direction in (there, back):
            direction.cancel()
        await asyncio.gather(there, back, return_exceptions=True)


async def _carry(source: End, target: End, moved: Callable[[int], None]) -> None:
    while data := await source.receive():
        moved(len(data))
        await target.send(data)
