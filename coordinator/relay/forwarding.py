"""Carrying bytes from one end to another. This is where replication passes.

In clear, bytes go from socket to socket in callbacks of the event loop, through one buffer that all
connections share: it is empty again when a callback returns. What the other socket does not take waits, and
nothing more is read for it meanwhile. That costs less processor time for each byte than HAProxy in its TCP
mode does, and as much for each small message.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from coordinator.relay.streams import PlainStream, Stream

Bytes = bytes | memoryview
# Told what came, returns how much of that may go on; less than all ends the carrying.
Take = Callable[[Bytes], int]

_BUFFER_BYTES = 256 << 10
_shared = memoryview(bytearray(_BUFFER_BYTES))


class Forwarding(Protocol):
    """One direction of a connection."""

    @property
    def over(self) -> "asyncio.Future[None]":
        """Done at the source's last word, at what `take` did not want, or with the error that ended it."""
        ...

    def close(self) -> None:
        """Carry no more, and leave both ends alone."""
        ...


def forward_bytes(
    source: Stream,
    target: Stream,
    take: Take,
    *,
    first: bytes = b"",
    settled: Callable[[], None] | None = None,
) -> Forwarding:
    """Carry `first`, and then what comes from `source`, to `target` until it is over.

    `take` sees all of it, in order, before it is sent; what it raises ends the carrying. `settled` is called
    when all that was taken has gone.
    """
    if isinstance(source, PlainStream) and isinstance(target, PlainStream):
        return _SocketForwarding(source.socket, target.socket, take, first, settled)
    return _StreamForwarding(source, target, take, first, settled)


class _SocketForwarding:
    """Between two sockets. At the source's last word the target is told so."""

    __slots__ = ("_broken", "_ending", "_loop", "_settled", "_source", "_take", "_target", "_waiting", "over")

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        take: Take,
        first: bytes,
        settled: Callable[[], None] | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._target = target
        self._take = take
        self._settled = settled
        # What the target has not taken yet, and whether nothing comes after it.
        self._waiting = b""
        self._ending = False
        # Tells of a reset, and of nothing else.
        self._broken = select.poll()
        self._broken.register(source, 0)
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(source, self._readable)
        if first:
            self._forward_or_fail(first)

    def close(self) -> None:
        if not self.over.done():
            self.over.cancel()
            self._detach()
        elif not self.over.cancelled():
            # Whoever closes us knows one error already.
            self.over.exception()

    def _readable(self) -> None:
        # Of a reset uvloop tells once, and nothing more after it: what the system still holds is read now.
        while self._read() and self._broken.poll(0):
            pass

    def _read(self) -> bool:
        """Carry what one read gives; return whether there may be more."""
        try:
            count = self._source.recv_into(_shared)
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail(error)
            return False
        if count:
            self._forward_or_fail(_shared[:count])
            return not self._waiting and not self.over.done()
        with suppress(OSError):
            self._target.shutdown(socket.SHUT_WR)
        self._end()
        return False

    def _forward_or_fail(self, data: Bytes) -> None:
        """Send what is to go on; whatever goes wrong is how it ended."""
        try:
            self._forward(data)
        except Exception as error:
            self._fail(error)

    def _forward(self, data: Bytes) -> None:
        count = self._take(data)
        self._ending = count < len(data)
        try:
            sent = self._target.send(data[:count])
        except BlockingIOError:
            sent = 0
        if sent < count:
            self._loop.remove_reader(self._source)
            self._waiting = bytes(data[sent:count])
            self._loop.add_writer(self._target, self._writable)
        else:
            self._all_sent()

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
            self._all_sent()

    def _all_sent(self) -> None:
        if self._settled is not None:
            self._settled()
        if self._ending:
            self._end()

    def _end(self) -> None:
        self._detach()
        self.over.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._detach()
        self.over.set_exception(error)

    def _detach(self) -> None:
        if self._waiting:
            self._loop.remove_writer(self._target)
        else:
            self._loop.remove_reader(self._source)


class _StreamForwarding:
    """Where at least one end has TLS."""

    def __init__(
        self, source: Stream, target: Stream, take: Take, first: bytes, settled: Callable[[], None] | None
    ) -> None:
        self.over: asyncio.Future[None] = asyncio.ensure_future(
            self._forward(source, target, take, first, settled)
        )

    def close(self) -> None:
        if not self.over.cancel() and not self.over.cancelled():
            self.over.exception()

    async def _forward(
        self, source: Stream, target: Stream, take: Take, first: bytes, settled: Callable[[], None] | None
    ) -> None:
        data = first or await source.receive()
        while data:
            count = take(data)
            if count:
                await target.send(data[:count])
            if settled is not None:
                settled()
            if count < len(data):
                return
            data = await source.receive()


async def forward_both_ways(
    first: Stream, second: Stream, moved: Callable[[int, int], None], half_closed_s: float
) -> None:
    """Carry bytes both ways until both directions are over. Raises OSError when an end broke.

    `moved` is told the bytes from first to second, and back. When one direction is over, the other one goes
    on for at most `half_closed_s`; where there is TLS not at all, for such an end closes as a whole.
    """

    def there_moved(data: Bytes) -> int:
        moved(len(data), 0)
        return len(data)

    def back_moved(data: Bytes) -> int:
        moved(0, len(data))
        return len(data)

    there, back = forward_bytes(first, second, there_moved), forward_bytes(second, first, back_moved)
    in_clear = isinstance(first, PlainStream) and isinstance(second, PlainStream)
    try:
        done, pending = await asyncio.wait({there.over, back.over}, return_when=asyncio.FIRST_COMPLETED)
        # An end that broke ends both directions; one that said its last word may still be told something.
        for direction in done:
            direction.result()
        if pending and in_clear:
            done, _ = await asyncio.wait(pending, timeout=half_closed_s)
            for direction in done:
                direction.result()
    finally:
        there.close()
        back.close()
