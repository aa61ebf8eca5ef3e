"""Forward bytes between two streams. Replication traffic takes the path through this module.

Without TLS, event-loop callbacks copy bytes from socket to socket through one buffer shared by all
connections. The buffer is empty when a callback returns. If the target socket accepts only a part of the
bytes, the rest is kept and reading pauses until the rest is sent. This copying uses less CPU time than
HAProxy in TCP mode, and the same for small messages.
"""

import asyncio
import select
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from coordinator.serve.relay.streams import PlainStream, Stream

Bytes = bytes | memoryview
# Gets the received bytes and returns how many of them to forward. If this is fewer than all, the forwarding
# ends.
CountBytesToForward = Callable[[Bytes], int]

_BUFFER_BYTES = 256 << 10
_shared = memoryview(bytearray(_BUFFER_BYTES))


def forward_bytes(
    source: Stream,
    target: Stream,
    count_to_forward: CountBytesToForward,
    *,
    first: bytes = b"",
    on_all_sent: Callable[[], None] | None = None,
) -> "_SocketForwarding | _StreamForwarding":
    """Forward `first`, then everything received from `source`, to `target`.

    `count_to_forward` gets all bytes in order before they are sent. If `count_to_forward` raises an
    exception, the forwarding ends. `on_all_sent` is called each time that no received byte waits to be sent.

    The future `finished` of the result is done when the source is closed or `count_to_forward` rejects bytes.
    If an error ends the forwarding, the future `finished` has this error as its exception.
    """
    if isinstance(source, PlainStream) and isinstance(target, PlainStream):
        return _SocketForwarding(source.socket, target.socket, count_to_forward, first, on_all_sent)
    return _StreamForwarding(_forward_stream(source, target, count_to_forward, first, on_all_sent))


class _SocketForwarding:
    """Forwarding between two plain sockets. When the source is half-closed, so is the target."""

    __slots__ = (
        "_count_to_forward",
        "_ending",
        "_loop",
        "_on_all_sent",
        "_reset_poll",
        "_source",
        "_target",
        "_waiting",
        "finished",
    )

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        count_to_forward: CountBytesToForward,
        first: bytes,
        on_all_sent: Callable[[], None] | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._target = target
        self._count_to_forward = count_to_forward
        self._on_all_sent = on_all_sent
        # Bytes that the target has not accepted yet, and whether they are the last ones.
        self._waiting = b""
        self._ending = False
        # This poll reports a reset connection (POLLERR, POLLHUP), but no readable data.
        self._reset_poll = select.poll()
        self._reset_poll.register(source, 0)
        self.finished: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(source, self._on_source_readable)
        if first:
            self._forward_data_or_fail(first)

    def close(self) -> None:
        """Stop forwarding. Both streams stay open."""
        if not self.finished.done():
            self.finished.cancel()
            self._remove_callbacks()
        elif not self.finished.cancelled():
            # Mark the error as retrieved: the caller handles only the first error of the two directions.
            self.finished.exception()

    def _on_source_readable(self) -> None:
        # uvloop reports a reset only once, so read everything that the kernel still buffers now.
        while self._read_and_forward() and self._reset_poll.poll(0):
            pass

    def _read_and_forward(self) -> bool:
        """Read from the source once and forward the bytes; return whether more bytes may be readable."""
        try:
            count = self._source.recv_into(_shared)
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail_forwarding(error)
            return False
        if count:
            self._forward_data_or_fail(_shared[:count])
            return not self._waiting and not self.finished.done()
        with suppress(OSError):
            self._target.shutdown(socket.SHUT_WR)
        self._complete_forwarding()
        return False

    def _forward_data_or_fail(self, data: Bytes) -> None:
        try:
            self._forward_data(data)
        except Exception as error:
            self._fail_forwarding(error)

    def _forward_data(self, data: Bytes) -> None:
        count = self._count_to_forward(data)
        self._ending = count < len(data)
        try:
            sent = self._target.send(data[:count])
        except BlockingIOError:
            sent = 0
        if sent < count:
            self._loop.remove_reader(self._source)
            self._waiting = bytes(data[sent:count])
            self._loop.add_writer(self._target, self._on_writable)
        else:
            self._on_pending_data_sent()

    def _on_writable(self) -> None:
        try:
            sent = self._target.send(self._waiting)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail_forwarding(error)
            return
        self._waiting = self._waiting[sent:]
        if not self._waiting:
            self._loop.remove_writer(self._target)
            self._loop.add_reader(self._source, self._on_source_readable)
            self._on_pending_data_sent()

    def _on_pending_data_sent(self) -> None:
        if self._on_all_sent is not None:
            self._on_all_sent()
        if self._ending:
            self._complete_forwarding()

    def _complete_forwarding(self) -> None:
        self._remove_callbacks()
        self.finished.set_result(None)

    def _fail_forwarding(self, error: Exception) -> None:
        self._remove_callbacks()
        self.finished.set_exception(error)

    def _remove_callbacks(self) -> None:
        if self._waiting:
            self._loop.remove_writer(self._target)
        else:
            self._loop.remove_reader(self._source)


class _StreamForwarding:
    """Forwarding between two streams of which at least one uses TLS."""

    def __init__(self, forwarding: Coroutine[Any, Any, None]) -> None:
        self.finished: asyncio.Future[None] = asyncio.ensure_future(forwarding)

    def close(self) -> None:
        if not self.finished.cancel() and not self.finished.cancelled():
            self.finished.exception()


async def _forward_stream(
    source: Stream,
    target: Stream,
    count_to_forward: CountBytesToForward,
    first: bytes,
    on_all_sent: Callable[[], None] | None,
) -> None:
    data = first or await source.receive()
    while data:
        count = count_to_forward(data)
        if count:
            await target.send(data[:count])
        if on_all_sent is not None:
            on_all_sent()
        if count < len(data):
            return
        data = await source.receive()


async def forward_both_ways(
    first: Stream, second: Stream, count_bytes: Callable[[int, int], None], half_closed_s: float
) -> None:
    """Forward bytes in both directions until both are closed. Raises OSError if a connection breaks.

    `count_bytes` is called for each chunk, with the number of bytes from first to second and the number from
    second to first; one of them is 0. When one direction is closed, the other direction continues for at most
    `half_closed_s`. With TLS, the other direction ends at once, because a TLS connection is closed in both
    directions.
    """

    def count_sent(data: Bytes) -> int:
        count_bytes(len(data), 0)
        return len(data)

    def count_received(data: Bytes) -> int:
        count_bytes(0, len(data))
        return len(data)

    forward, backward = forward_bytes(first, second, count_sent), forward_bytes(second, first, count_received)
    in_clear = isinstance(first, PlainStream) and isinstance(second, PlainStream)
    try:
        done, pending = await asyncio.wait(
            {forward.finished, backward.finished}, return_when=asyncio.FIRST_COMPLETED
        )
        # A broken connection ends both directions. A half-closed connection can still receive.
        for direction in done:
            direction.result()
        if pending and in_clear:
            done, _ = await asyncio.wait(pending, timeout=half_closed_s)
            for direction in done:
                direction.result()
    finally:
        forward.close()
        backward.close()
