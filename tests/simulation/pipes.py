"""Simulate one direction of a TCP connection, and the listener's end as an asyncio transport."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.net import SimConnection

# TCP closes a connection after this number of seconds without an acknowledgement.
RETRANSMISSION_TIMEOUT_S = 900.0

FIN = object()
RESET = object()


@dataclass(frozen=True)
class NetFaults:
    """The faults of the network. Rates are per connection. Times are means in seconds."""

    latency_s: float = 0.001
    jitter_s: float = 0.0
    split_rate: float = 0.0
    cut_rate: float = 0.0
    half_open_rate: float = 0.0
    cut_after_bytes: int = 4_000
    stall_rate: float = 0.0
    stall_s: float = 1.0
    # The size of the socket's send buffer, and of the transport's buffer above which it calls pause_writing.
    send_buffer_bytes: int = 65_536
    high_water_bytes: int = 65_536


class Pipe:
    """One direction of a connection.

    A pipe passes chunks of bytes to `sink` in order, each after its delay.
    """

    def __init__(
        self,
        link: "SimConnection",
        context: contextvars.Context,
        sink: Callable[[Any], None],
        cut_after: int | None,
    ) -> None:
        self.link = link
        self.in_flight = 0
        # Whether all data in flight and all later data is lost, without the sender detecting it.
        self.vanished = False
        # Whether the reader has closed the connection; data that arrives is then dropped.
        self.discarding = False
        self.paused = False
        self.on_delivered: Callable[[], None] | None = None
        self._context = context
        self._sink = sink
        self._cut_after = cut_after
        self._was_cut = False
        self._arrived: deque[Any] = deque()
        self._last_s = 0.0

    def send(self, data: bytes) -> None:
        """Send bytes, which arrive later in chunks."""
        if self.discarding:
            return
        self.in_flight += len(data)
        rng, faults = self.link.rng, self.link.network.faults
        while data:
            size = len(data)
            if size > 1 and rng.random() < faults.split_rate:
                size = rng.randrange(1, size)
            self._schedule_delivery(data[:size])
            data = data[size:]

    def finish(self, item: object = FIN) -> None:
        """Send FIN or RESET after the last byte."""
        self._schedule_delivery(item)

    def discard(self) -> None:
        """Drop data in flight and all later data, because the reader has closed."""
        self.discarding = True
        self.in_flight = 0

    def _schedule_delivery(self, item: Any) -> None:
        network = self.link.network
        loop, rng, faults = network.loop, self.link.rng, network.faults
        # A random factor prevents simultaneous events of several connections. The order of simultaneous
        # events would depend on the order of a set, which differs between Python processes.
        delay_s = faults.latency_s * rng.uniform(0.9, 1.1) + (
            rng.expovariate(1 / faults.jitter_s) if faults.jitter_s else 0.0
        )
        if rng.random() < faults.stall_rate:
            delay_s += rng.expovariate(1 / faults.stall_s)
        # A chunk arrives after the previous one, because TCP preserves the order.
        self._last_s = max(self._last_s + 1e-7, loop.time() + delay_s, network.blocked_until_s + delay_s)
        loop.call_at(self._last_s, self._receive_item, item, context=self._context)

    def _receive_item(self, item: Any) -> None:
        if self.vanished or self.discarding:
            return
        self._arrived.append(item)
        if not self.paused:
            self.deliver()

    def resume(self) -> None:
        """Continue reading; deliver the data that arrived during the pause."""
        self.paused = False
        self.link.network.loop.call_soon(self.deliver, context=self._context)

    def deliver(self) -> None:
        """Deliver the data that has arrived, until the reader pauses."""
        while self._arrived and not (self.paused or self.vanished or self.discarding):
            item = self._arrived.popleft()
            if isinstance(item, bytes):
                self.in_flight -= len(item)
                if delivered := self._bytes_before_cut(item):
                    self._sink(delivered)
                if self.on_delivered is not None:
                    self.on_delivered()
            else:
                self._sink(item)

    def _bytes_before_cut(self, item: bytes) -> bytes:
        """Return the part of a chunk before the position of the cut."""
        if self._was_cut:
            return b""
        if self._cut_after is None:
            return item
        left = self._cut_after
        self._cut_after = left - len(item)
        if self._cut_after <= 0:
            self._was_cut = True
            self.link.cut_connection()
            return item[:left]
        return item


class ServerTransport(asyncio.Transport):
    """The listener's end of a connection, as an asyncio transport."""

    def __init__(self, link: "SimConnection", protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._link = link
        self._protocol = protocol
        self._closing = False
        self._lost = False
        self._writing_paused = False
        self._peer_gone = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Send bytes, unless closing."""
        if self._closing or self._lost:
            return
        if self._peer_gone:
            self._lose_connection_later(BrokenPipeError("the client has closed the connection"))
            return
        self._link.to_client.send(data)
        if not self._writing_paused and self.get_write_buffer_size() > self._faults.high_water_bytes:
            self._writing_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that exceed the socket's send buffer."""
        return max(0, self._link.to_client.in_flight - self._faults.send_buffer_bytes)

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def close(self) -> None:
        """Stop reading; close the connection when the written data has been sent."""
        if self._closing or self._lost:
            return
        self._closing = True
        if not self.get_write_buffer_size():
            self._lose_connection_later(None)

    def abort(self) -> None:
        """Close the connection at once."""
        self._closing = True
        self._lose_connection_later(None)

    def pause_reading(self) -> None:
        """Keep data that arrives until `resume_reading` is called."""
        assert not self._closing
        assert not self._link.to_server.paused, "reading is paused twice"
        self._link.to_server.paused = True

    def resume_reading(self) -> None:
        """Deliver the data that was kept."""
        assert not self._closing
        assert self._link.to_server.paused, "reading is resumed twice"
        self._link.to_server.resume()

    @property
    def _faults(self) -> NetFaults:
        return self._link.network.faults

    def deliver_data(self, item: Any) -> None:
        """Pass bytes from the client, or the end of the connection, to the protocol."""
        if self._closing or self._lost:
            return
        if item is RESET:
            self._lose_connection(ConnectionResetError("reset by the client"))
        elif item is FIN:
            if not self._protocol.eof_received():
                self.close()
        else:
            self._protocol.data_received(item)

    def on_bytes_received(self) -> None:
        """Called when the client has received bytes: resume writing, or complete the close."""
        if self._lost:
            return
        if self._writing_paused and self.get_write_buffer_size() <= self._faults.high_water_bytes // 4:
            self._writing_paused = False
            self._protocol.resume_writing()
        if self._closing and not self.get_write_buffer_size():
            self._lose_connection_later(None)

    def on_client_closed(self) -> None:
        """Called when the client has closed its socket: all writes fail, including those in progress."""
        if self.get_write_buffer_size():
            self._lose_connection(ConnectionResetError("reset by the client"))
        self._peer_gone = True
        self._link.to_client.discard()

    def on_retransmission_timeout(self) -> None:
        """Close a half-open connection if it has unacknowledged data; otherwise check again later."""
        if self._link.to_client.in_flight or self._closing:
            self._lose_connection(TimeoutError("the client acknowledges no data"))
        elif not self._lost:
            self._link.run_at_server(RETRANSMISSION_TIMEOUT_S, self.on_retransmission_timeout)

    def _lose_connection_later(self, error: Exception | None) -> None:
        self._link.run_at_server(0.0, self._lose_connection, error)

    def _lose_connection(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._link.to_client.finish()
        self._link.network.links.discard(self._link)
        self._protocol.connection_lost(error)
